"""Whose data are opened where: a site opens its own, the server its own."""

import pytest
import torch
from tests.runs.rounds.test_in_process import plan

from bilateral.data import Dataset, Split
from bilateral.engine import federation as module
from bilateral.engine.federation import (
    load_federation,
    load_server_view,
    load_site_share,
    member_names,
    needs_sample_counts,
)
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError, PlanError
from bilateral.runs.rounds.in_process import run

OPENED: list[dict] = []
"""The options of every call of the loader below."""
SITES = {"north": {"place": "north"}, "east": {"place": "east"}, "south": {"place": "south", "num_samples": 50}}


def load_place(place="", num_samples=30, num_features=4, num_classes=2, noise=0.1):
    """Points of two classes, other ones in every place."""
    OPENED.append({"place": place, "num_samples": num_samples})
    generator = torch.Generator().manual_seed(len(place) + num_samples)
    targets = torch.arange(num_samples) % num_classes
    inputs = torch.randn(num_samples, num_features, generator=generator) * noise + targets[:, None]
    split = Split(inputs, targets)
    return Dataset(f"points of {place}", "classification", split, split, num_classes)


@pytest.fixture(autouse=True)
def _nothing_opened():
    OPENED.clear()


def with_sites(**settings):
    own = {
        "data__name": f"{__name__}:load_place",
        "data__sites": SITES,
        "data__server": {"place": "server"},
        "federation__clients": None,
        "training__learning_rate": 0.3,
    }
    return plan(**{**own, **settings})


def places():
    return [call["place"] for call in OPENED]


def test_a_site_opens_its_own_data_and_nobody_elses():
    share = load_site_share(with_sites(), "south")
    assert OPENED == [{"place": "south", "num_samples": 50}]
    assert len(share) == 50


def test_the_server_opens_its_own_data_and_no_sites():
    view = load_server_view(with_sites())
    assert places() == ["server"]
    assert view.names == ["north", "east", "south"]
    assert not view.shares
    assert view.test is not None
    assert all(member.num_samples == 0 for member in view.members)


def test_settings_of_the_machine_go_before_those_of_the_plan():
    load_site_share(with_sites(), "south", settings={"place": "the basement"})
    load_server_view(with_sites(), settings={"num_samples": 12})
    assert OPENED == [{"place": "the basement", "num_samples": 50}, {"place": "server", "num_samples": 12}]


def test_names_need_no_data_where_the_plan_has_them():
    assert member_names(with_sites()) == ("north", "east", "south")
    assert member_names(RunPlan()) == tuple(f"client-{number}" for number in range(1, 6))
    assert OPENED == []


def test_a_simulation_opens_everybodys_data_and_learns_from_all():
    result = run(with_sites(training__rounds=30), save=False)
    assert places() == ["server", "north", "east", "south"]
    assert result.metrics["test_accuracy"] > 0.95
    assert result.difference_to_fedavg < 2e-6
    assert {member.num_samples for member in load_federation(with_sites()).members} == {30, 50}


@pytest.mark.parametrize(
    ("option", "said"),
    [({"num_features": 5}, r"east: a sample has the shape \[5\]"), ({"num_classes": 3}, "east: .*3 outputs")],
)
def test_a_site_with_data_of_another_problem_is_refused_by_name(option, said):
    sites = {**SITES, "east": {"place": "east", **option}}
    with pytest.raises(DataError, match=said):
        run(with_sites(data__sites=sites), save=False)


def test_a_site_that_the_plan_does_not_know_is_refused():
    with pytest.raises(PlanError, match="Expected a site among north, east, south, got 'west'"):
        load_site_share(with_sites(), "west")
    with pytest.raises(PlanError, match="Expected a client among client-1, client-2, client-3, got 'west'"):
        load_site_share(plan(), "west")


def test_a_site_with_one_class_is_refused_unless_the_plan_allows_it():
    sites = {**SITES, "east": {"place": "east", "num_samples": 1}}
    with pytest.raises(DataError, match="east has samples of class 0 only"):
        load_site_share(with_sites(data__sites=sites), "east")
    allowed = with_sites(data__sites=sites, federation__allow_single_class=True)
    assert len(load_site_share(allowed, "east")) == 1


def test_a_site_called_as_the_server_is_refused():
    with pytest.raises(DataError, match="A site is called 'server'"):
        member_names(with_sites(data__sites={"server": {}, "north": {}}))


@pytest.mark.parametrize("settings", [{}, {"federation__partition": "dirichlet"}, {"training__loss": "mse"}])
def test_a_share_of_one_dataset_is_the_same_wherever_it_is_dealt(settings):
    chosen = plan(**settings, training__dtype="float64")
    together = load_federation(chosen)
    assert member_names(chosen) == tuple(together.names) == tuple(load_server_view(chosen).names)
    for name, share in together.shares.items():
        alone = load_site_share(chosen, name)
        assert torch.equal(alone.inputs, share.inputs)
        assert torch.equal(alone.targets, share.targets)
        assert alone.inputs.dtype == torch.float64


def test_names_of_a_partition_by_site_come_from_the_data(monkeypatch):
    def load(*_, **__):
        found = load_place().train
        placed = Split(found.inputs, found.targets, tuple("aabb" * 7 + "ab"))
        return Dataset("two places", "classification", placed, placed, 2)

    monkeypatch.setattr(module, "load_dataset", load)
    chosen = plan(federation__partition="site", federation__clients=None)
    assert member_names(chosen) == ("a", "b")
    assert load_server_view(chosen).names == ["a", "b"]


def test_sample_counts_are_told_only_where_samples_are_accounted_for():
    assert not needs_sample_counts(plan())
    assert not needs_sample_counts(with_sites())
    private = {"noise__mechanism": "sound", "noise__noise_multiplier": 1.0}
    assert needs_sample_counts(plan(**private))
    assert not needs_sample_counts(plan(**private, noise__unit="client"))
    assert needs_sample_counts(plan(noise__mechanism="published", noise__epsilon=1.0))
