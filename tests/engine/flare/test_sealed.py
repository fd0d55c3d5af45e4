"""Sealed training over sites: the same integers as in one process, with a site without data that deals."""

import pytest
from tests.protections.sealed.harness import plan_of

from bilateral.engine.events import read_events
from bilateral.engine.flare.deployment import deploy
from bilateral.engine.flare.launch import run_on_flare
from bilateral.runs.rounds.in_process import run
from bilateral.runs.rounds.kind import KIND


def gradients(path):
    return [e["gradient_digest"] for e in read_events(path / "events.jsonl") if e["event"] == "round_done"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    path = tmp_path_factory.mktemp("sealed") / "run"
    return path, run(plan_of(**{"federation.dealer": "auditor"}), output=path, reference=False)


@pytest.mark.parametrize("engine", ["flare-sim", pytest.param("flare-poc", marks=pytest.mark.long)])
def test_sealed_rounds_over_sites_have_the_same_gradients_to_the_last_integer(tmp_path, here, engine):
    path, result = here
    plan = plan_of(**{"federation.dealer": "auditor"})
    there = run_on_flare(KIND, plan, engine, output=tmp_path / "run", options={"reference": False})
    assert there.finished
    assert gradients(tmp_path / "run") == gradients(path)
    assert len(set(gradients(path))) == plan.training.rounds
    for key in ("metrics", "megabytes_up", "megabytes_down", "dealer", "client_view"):
        assert there.values[key] == result.as_dict()[key]


@pytest.mark.long
def test_sites_deal_for_each_other(tmp_path, here):
    path, _ = here
    there = run_on_flare(KIND, plan_of(), "flare-sim", output=tmp_path / "run", options={"reference": False})
    assert there.finished
    assert gradients(tmp_path / "run") == gradients(path)


def test_a_deployment_has_a_kit_for_the_dealer_and_says_whose_it_must_not_be(tmp_path):
    plan = plan_of(**{"federation.dealer": "auditor"})
    deployed = deploy(plan, server="localhost", output=tmp_path / "federation")
    assert set(deployed.kits.sites) == {"client-1", "client-2", "client-3", "auditor"}
    text = deployed.handbook.read_text()
    assert "the operator of auditor, who deals: it has no data" in text
    assert any("auditor deals" in warning for warning in deployed.warnings)
    for kit in deployed.kits.sites.values():
        assert "auditor" in (kit / "bilateral.toml").read_text()
