import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.engine.plan import RunPlan, dump_plan, load_plan, parse_plan
from bilateral.errors import PlanError


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"protection": "maskss"}, "(Did you mean 'masks'?)"),
        ({"training.schedule": "cosin"}, "(Did you mean 'cosine'?)"),
        ({"training.device": "gpu"}, "`training.device`: expected auto, cpu, cuda, cuda:1 (or another number) or mps"),
    ],
)
def test_a_value_that_is_nearly_right_is_told_the_right_one(settings, said):
    with pytest.raises(PlanError) as caught:
        RunPlan().with_settings(settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_default_plan_survives_toml(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(dump_plan(RunPlan()))
    assert load_plan(path) == RunPlan()


@given(
    rounds=st.integers(1, 10_000),
    rate=st.floats(1e-6, 10),
    name=st.text(min_size=1),
    option=st.one_of(st.booleans(), st.integers(-5, 5), st.text(), st.lists(st.integers())),
    proportions=st.none() | st.lists(st.floats(0.1, 1), min_size=1),
)
@settings(deadline=None, derandomize=True)
def test_every_plan_survives_toml(tmp_path_factory, rounds, rate, name, option, proportions):
    plan = RunPlan().with_settings(
        {
            "training.rounds": rounds,
            "training.learning_rate": rate,
            "data.name": name,
            "model.options": {"some option": option},
            "federation.proportions": proportions,
        }
    )
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(dump_plan(plan), encoding="utf-8")
    assert load_plan(path) == plan


def test_an_unknown_setting_is_named():
    with pytest.raises(PlanError, match=r"training\.round.*not a setting"):
        parse_plan({"training": {"round": 3}}, "x")


def test_a_wrong_value_is_shown_with_its_place():
    with pytest.raises(PlanError, match=r"training\.rounds.*got 0"):
        parse_plan({"training": {"rounds": 0}}, "x")


def test_settings_are_listed_only_for_an_unknown_one_and_only_those_of_its_section():
    with pytest.raises(PlanError) as caught:
        RunPlan().with_settings({"training.learning_rate": -1})
    assert str(caught.value) == "Settings: `training.learning_rate`: Input should be greater than 0, got -1."
    with pytest.raises(PlanError) as caught:
        RunPlan().with_settings({"aggregation.mask": "ring"})
    assert str(caught.value) == "Settings: `aggregation.mask` is not a setting (Did you mean `masks`?)."
    with pytest.raises(PlanError) as caught:
        RunPlan().with_settings({"trainig.rounds": 3})
    assert str(caught.value) == "There is no plan section `trainig` in `trainig.rounds`. Did you mean `training`?"
    with pytest.raises(PlanError) as caught:
        RunPlan().with_settings({"aggregation.zzz": 3})
    assert str(caught.value) == (
        "Settings: `aggregation.zzz` is not a setting. "
        "Settings of [aggregation]: masks, graph, neighbours, threshold, float_scale, width, resolution."
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rounds", "`training.rounds`"),
        ("federation.rounds", "`training.rounds`"),
        ("name", "`data.name` or `model.name`"),
        ("sed", "`seed`"),
    ],
)
def test_a_setting_without_its_section_is_found(typed, meant):
    with pytest.raises(PlanError) as caught:
        RunPlan().with_settings({typed: 3})
    assert f"(Did you mean {meant}?)" in str(caught.value)


def test_no_clients_is_refused():
    with pytest.raises(PlanError, match=r"federation\.clients"):
        parse_plan({"federation": {"clients": 0}}, "x")


def test_a_missing_plan_file_says_how_to_make_one(tmp_path):
    with pytest.raises(PlanError, match="--write-plan"):
        load_plan(tmp_path / "nothing.toml")


def test_a_plan_that_is_no_toml_is_refused(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("training = [")
    with pytest.raises(PlanError, match="not a readable TOML"):
        load_plan(path)


def test_different_plans_have_different_digests():
    assert RunPlan().digest() != RunPlan(seed=1).digest()
    assert RunPlan().digest() == RunPlan().digest()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_settings_must_be_finite(value):
    with pytest.raises(PlanError, match=r"training\.learning_rate"):
        parse_plan({"training": {"learning_rate": value}}, "x")


def test_five_clients_are_the_default_except_with_sites():
    assert RunPlan().federation.num_clients == 5
    assert RunPlan().with_settings({"federation.partition": "site"}).federation.num_clients is None


SITES = {"north": {"path": "n.csv"}, "a site with spaces": {}}


def test_sites_survive_toml_in_their_order(tmp_path):
    plan = RunPlan().with_settings({"data.sites": SITES, "data.server": {"path": "test.csv"}})
    path = tmp_path / "plan.toml"
    path.write_text(dump_plan(plan))
    assert load_plan(path) == plan
    assert list(load_plan(path).data.sites) == list(SITES)
    assert load_plan(path).digest() == plan.digest()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"federation.clients": 3}, r"`federation\.clients` is 3, but `data\.sites` names 2 sites"),
        ({"federation.partition": "dirichlet"}, r"`federation\.partition`.*every site has its own"),
        ({"federation.proportions": [1.0, 2.0]}, r"`federation\.proportions`.*every site has its own"),
        ({"federation.min_sites": 3}, r"`federation\.min_sites` is 3, but a round has 2 clients"),
        ({"data.sites": {}, "data.server": {"path": "x"}}, r"`data\.server` only beside `data\.sites`"),
    ],
)
def test_settings_that_contradict_the_sites_are_refused(settings, problem):
    with pytest.raises(PlanError, match=problem):
        RunPlan().with_settings({"data.sites": SITES, **settings})


def test_as_many_clients_as_sites_may_be_said():
    assert RunPlan().with_settings({"data.sites": SITES, "federation.clients": 2}).data.sites == SITES


def test_more_sites_than_a_round_has_are_not_waited_for():
    with pytest.raises(PlanError, match="a round has 3 clients"):
        RunPlan().with_settings({"federation.participation": 0.5, "federation.min_sites": 4})


@pytest.mark.parametrize(
    "settings", [{"federation.timeout": 5.0}, {"federation.patience": 0.0}, {"federation.min_sites": 3}]
)
def test_an_operator_may_change_what_the_server_waits_for_between_terms(settings):
    assert RunPlan().with_settings(settings).digest() == RunPlan().digest()
    assert RunPlan().with_settings(settings) != RunPlan()


def test_sites_and_their_options_are_part_of_the_digest():
    plans = [
        RunPlan(),
        RunPlan().with_settings({"data.sites": SITES}),
        RunPlan().with_settings({"data.sites": {**SITES, "north": {"path": "other.csv"}}}),
        RunPlan().with_settings({"data.sites": SITES, "data.server": {"path": "t"}}),
    ]
    assert len({plan.digest() for plan in plans}) == len(plans)


def test_a_plan_without_sites_keeps_the_digest_that_its_old_checkpoints_carry():
    as_before = {"perturbation.softmax": "blinded", "perturbation.norm_inputs": "scaled"}
    assert RunPlan().with_settings(as_before).digest() == "cdbb1b0712b7924e"


def test_a_plan_that_now_means_something_else_has_another_digest():
    blinded, scaled = {"perturbation.softmax": "blinded"}, {"perturbation.norm_inputs": "scaled"}
    plans = [RunPlan().with_settings(settings) for settings in ({}, blinded, scaled, {**blinded, **scaled})]
    assert len({plan.digest() for plan in plans}) == 4


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"patience": -1}, {"min_sites": 0}])
def test_waiting_makes_sense(settings):
    with pytest.raises(PlanError, match=rf"federation\.{next(iter(settings))}"):
        parse_plan({"federation": settings}, "x")
