"""Experiments of the topics, of installed packages, and of a call."""

from __future__ import annotations

import pickle
from importlib.metadata import EntryPoint

import pytest

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics import registry
from bilateral.audit.topics.registry import about_of, all_experiments, experiments_for, register, unregister
from bilateral.engine.plan import RunPlan
from bilateral.errors import PlanError
from bilateral.runs.hetero.plan import HeteroPlan


def never(plan, guarantee):
    return "only a test"


def nothing(context):
    return []


OURS = Experiment("from-a-test", "an experiment of a test", (12,), never, nothing)
THEIRS = Experiment("from-a-package", "an experiment of a package", (5,), never, nothing, kinds=(HeteroPlan,))
NO_EXPERIMENT = "a text"


@pytest.fixture
def ours():
    register(OURS)
    yield OURS
    unregister(OURS.name)


@pytest.fixture
def installed(monkeypatch):
    """Say which entry points there are."""

    def install(*values):
        found = [EntryPoint(f"entry-{number}", value, registry.GROUP) for number, value in enumerate(values)]
        monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.GROUP else [])
        registry._of_packages.cache_clear()

    yield install
    registry._of_packages.cache_clear()


def test_every_topic_has_its_experiments_in_the_order_of_audits():
    names = [one.name for one in all_experiments()]
    assert names[0] == "gradient-inversion"
    assert names[-1] == "hidden-queries"
    assert len(names) == len(set(names)) == 29


def test_an_experiment_is_for_the_kinds_of_plans_that_it_names(ours):
    assert ours in experiments_for(RunPlan())
    assert ours not in experiments_for(HeteroPlan())


def test_what_was_registered_is_known_until_it_is_taken_back(ours):
    assert about_of(ours.name) == (12,)
    unregister(ours.name)
    assert about_of(ours.name) == ()
    register(ours)


def test_a_name_that_is_taken_is_refused(ours):
    with pytest.raises(PlanError, match="'from-a-test' already"):
        register(OURS)
    with pytest.raises(PlanError, match="'presence' already"):
        register(Experiment("presence", "", (), never, nothing))


@pytest.mark.parametrize("name", ["", "../elsewhere", "With Spaces", "a--b", "a.json"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(PlanError, match="name like 'my-attack'"):
        register(Experiment(name, "", (), never, nothing))


def test_what_cannot_be_handed_to_a_process_is_refused_by_name():
    with pytest.raises(PlanError, match="'local' cannot be handed to the processes"):
        register(Experiment("local", "", (), lambda plan, guarantee: "", nothing))


def test_what_was_not_registered_cannot_be_taken_back():
    with pytest.raises(PlanError, match="No experiment 'presence' was registered"):
        unregister("presence")


def test_a_registered_experiment_survives_the_way_to_another_process(ours):
    assert pickle.loads(pickle.dumps(registry.registered())) == (ours,)


def test_an_installed_package_adds_experiments_by_its_entry_point(installed):
    installed(f"{__name__}:THEIRS")
    assert THEIRS in experiments_for(HeteroPlan())
    assert THEIRS not in experiments_for(RunPlan())


def test_an_entry_point_that_is_no_experiment_is_refused_by_its_name(installed):
    installed(f"{__name__}:NO_EXPERIMENT")
    with pytest.raises(PlanError, match=r"test_registry:NO_EXPERIMENT.*got str"):
        all_experiments()
