"""Baselines over sites: the same sums as in one process, to the bit, through FLARE."""

import pytest
from tests.protections.baselines.harness import digests, plan_of

from bilateral.engine.flare.launch import run_on_flare
from bilateral.runs.rounds.in_process import run
from bilateral.runs.rounds.kind import KIND


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "dealer"),
    [
        ("gaussian", "rotating"),
        ("dbcl", "rotating"),
        ("ckks", "rotating"),
        ("tp-smc", "rotating"),
        ("pile", "rotating"),
        ("hybrid-alpha", "auditor"),
    ],
)
def test_a_baseline_over_sites_has_the_same_gradients(name, dealer, tmp_path):
    plan = plan_of(name, **{"federation.dealer": dealer, "training.rounds": 2})
    run(plan, output=tmp_path / "here", reference=False)
    there = run_on_flare(KIND, plan, "flare-sim", output=tmp_path / "there", options={"reference": False})
    assert there.finished
    assert not there.values["incidents"]
    assert digests(tmp_path / "there") == digests(tmp_path / "here")
