"""Heterogeneous plans: as TOML and back, what is refused, and what may share models."""

import pytest

from bilateral.engine.plan import HETEROGENEOUS, RunPlan, dump_plan, load_plan
from bilateral.errors import PlanError
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED, SEALED
from bilateral.runs.hetero.parties import guarantee_of
from bilateral.runs.hetero.plan import ONE_MODEL, HeteroPlan, dump_hetero_plan, load_hetero_plan, parse_hetero_plan


def test_a_plan_survives_its_toml(tmp_path):
    plan = HeteroPlan().with_settings({
        "seed": 3,
        "clients.architectures": [{"name": "lenet"}, {"name": "vgg-7", "options": {"width": 8}}],
        "data.samples_per_client": 0,
        "queries.selection": "icd",
        "retraining.max_steps": 7,
    })  # fmt: skip
    path = tmp_path / "plan.toml"
    path.write_text(dump_hetero_plan(plan))
    assert load_hetero_plan(path) == plan


def test_answers_are_secure_unless_a_plan_says_otherwise():
    assert HeteroPlan().answers == "secure"


def test_comparisons_are_sealed_unless_a_plan_says_otherwise(tmp_path):
    assert HeteroPlan().comparisons is SEALED
    assert 5 not in {leak.ledger_line for leak in guarantee_of(HeteroPlan()).leaks}
    for style in (HARDENED, PUBLISHED):
        plan = HeteroPlan(style=style.name)
        assert plan.comparisons is style
        assert 5 in {leak.ledger_line for leak in guarantee_of(plan).leaks}
        path = tmp_path / f"{style.name}.toml"
        path.write_text(dump_hetero_plan(plan))
        assert load_hetero_plan(path) == plan


def test_a_plan_with_sealed_comparisons_is_written_and_fingerprinted_as_before_there_was_the_setting():
    plan = HeteroPlan(style="sealed")
    assert "style" not in dump_hetero_plan(plan)
    assert plan.digest() == HeteroPlan().digest() == "4780847583ef5893"
    assert plan.with_settings({"style": "hardened"}).digest() != plan.digest()
    assert plan.with_settings({"style": "hardened"}).with_settings({"style": "sealed"}) == plan


def test_architectures_are_dealt_in_turn():
    clients = HeteroPlan().clients
    assert [clients.architecture(name).name for name in clients.names] == ["mlp-3", "lenet", "convnet"] * 2
    assert clients.label("client-2") == "lenet"


def test_architectures_of_one_name_are_told_apart_by_their_options():
    two = [{"name": "mlp-3", "options": {"width": width}} for width in (8, 16)]
    clients = HeteroPlan().with_settings({"clients.architectures": two}).clients
    assert [clients.label(name) for name in clients.names[:2]] == ["mlp-3 width=8", "mlp-3 width=16"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"queries.pool": "mixdown"}, "queries.pool"),
        ({"queries.fraction": 0}, "queries.fraction"),
        ({"clients.number": 1}, "clients.number"),
        ({"clients.architectures": []}, "clients.architectures"),
        ({"training.epoch": 3}, "`training.epoch` is not a setting"),
        ({"trainings.epochs": 3}, "no plan section `trainings`"),
        ({"retraining.temperature": -1}, "retraining.temperature"),
        ({"seed": 2**63}, "seed"),
        ({"style": "open"}, "style"),
    ],
)
def test_wrong_settings_are_named(settings, words):
    with pytest.raises(PlanError, match=words):
        HeteroPlan().with_settings(settings)


def test_a_sum_of_one_answer_is_refused_when_answers_are_to_be_hidden():
    for settings in ({"clients.number": 2}, {"clients.number": 6, "queries.fraction": 0.2}):
        with pytest.raises(PlanError, match="sum of one answer is that answer"):
            HeteroPlan().with_settings(settings)
        assert HeteroPlan().with_settings({**settings, "answers": "plain"}).num_answerers == 1


def test_exact_normalisation_is_refused_when_answers_are_to_be_hidden():
    with pytest.raises(PlanError, match="in the clear"):
        HeteroPlan().with_settings({"queries.normalisation": "softmax"})
    HeteroPlan().with_settings({"queries.normalisation": "scale"})


@pytest.mark.parametrize(("number", "fraction", "expected"), [(9, 0.6, 5), (9, 0.8, 7), (9, 1.0, 8), (3, 0.5, 1)])
def test_a_fraction_of_the_others_answers(number, fraction, expected):
    settings = {"clients.number": number, "queries.fraction": fraction, "answers": "plain"}
    assert HeteroPlan().with_settings(settings).num_answerers == expected


def test_plans_that_differ_after_the_training_share_its_digest():
    plan = HeteroPlan()
    later = {"queries.number": 9, "retraining.epochs": 1, "iterations": 2, "answers": "plain", "style": "hardened"}
    for settings in ({name: value} for name, value in later.items()):
        assert plan.with_settings(settings).training_digest() == plan.training_digest()
        assert plan.with_settings(settings).digest() != plan.digest()
    for settings in ({"seed": 1}, {"data.alpha": 3.0}, {"clients.number": 7}, {"training.epochs": 1}):
        assert plan.with_settings(settings).training_digest() != plan.training_digest()


def test_unreadable_plans_say_why(tmp_path):
    with pytest.raises(PlanError, match="hetero --write-plan"):
        load_hetero_plan(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("seed = = 1")
    with pytest.raises(PlanError, match="not a readable TOML"):
        load_hetero_plan(tmp_path / "bad.toml")
    with pytest.raises(PlanError, match="sections: data, clients, training, queries, retraining"):
        parse_hetero_plan({"federation": {}}, "x")


def test_plans_of_the_two_kinds_know_what_the_other_has():
    """The sections by which a plan of the other kind is told: its own, and not of this one."""
    for own, other, told in ((HeteroPlan, RunPlan, HETEROGENEOUS), (RunPlan, HeteroPlan, ONE_MODEL)):
        assert told.sections == {
            name
            for name, value in own().model_dump().items()
            if isinstance(value, dict) and name not in other.model_fields
        }


def test_a_plan_of_the_other_kind_is_told_as_such(tmp_path):
    hetero, run = tmp_path / "hetero.toml", tmp_path / "run.toml"
    hetero.write_text(dump_hetero_plan(HeteroPlan()), encoding="utf-8")
    run.write_text(dump_plan(RunPlan()), encoding="utf-8")
    with pytest.raises(PlanError, match=r"hetero\.toml is a plan for heterogeneous learning .*Use `bilateral hetero`"):
        load_plan(hetero)
    with pytest.raises(PlanError, match=r"run\.toml is a plan for clients that train one model.*Use `bilateral run`"):
        load_hetero_plan(run)
