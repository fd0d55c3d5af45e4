"""Ledger line 19 on real runs: while these tests pass, these baselines hide uploads from honest servers alone."""

from __future__ import annotations

import pytest
from tests.protections.baselines.conftest import primes, primes_at_hand  # noqa: F401 (fixtures)
from tests.protections.baselines.harness import plan_of

from bilateral.audit.auditor import audit
from bilateral.audit.topics.ciphers.opened_uploads import EXPERIMENT
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee

ENCRYPTED = ("ckks", "tp-smc", "hybrid-alpha", "pile")


@pytest.mark.parametrize("name", ENCRYPTED)
def test_a_server_that_asks_for_one_upload_or_mixes_them_reads_it(name):
    result = audit(plan_of(name), effort="smoke", only=("opened-uploads",), save=False, num_workers=1)
    assert not result.failed
    (evidence,) = result.evidence
    assert evidence.tests == 19
    assert max(evidence.target.scores[0].values) < 0.01
    assert min(evidence.negative.scores[0].values) > 0.05
    assert {verdict.verdict for verdict in result.verdicts if verdict.tests == 19} == {"broken"}


@pytest.mark.parametrize("name", ["ckks", "pile"])
def test_the_honest_server_has_bytes_that_look_like_any_others(name):
    result = audit(plan_of(name), effort="smoke", only=("gradient-inversion",), save=False, num_workers=1)
    assert not result.failed
    assert "single uploads" in {one.tests for one in result.evidence}
    assert "broken" not in {verdict.verdict for verdict in result.verdicts if verdict.tests == "single uploads"}


def test_it_does_not_apply_where_no_ciphertexts_are_summed():
    assert EXPERIMENT.applies(RunPlan(), Guarantee("any", (), ())) == "the plan sums no ciphertexts"
