"""Canaries in sums: masks do not hide them, and coins that nobody used are not found."""

from __future__ import annotations

import pytest
import torch
from tests.audit.chance import none_is_broken

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.scores import AUC, TPR_AT_1
from bilateral.audit.topics.membership.canaries_in_sums import EXPERIMENT, KINDS, make_run
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan
from bilateral.randomness import SeededRandomness

SMALL = {"model.name": "mlp-3", "federation.clients": 4, "training.batch_size": 16}


def context_of(**settings):
    return Context(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"])


@pytest.fixture(scope="module")
def masked():
    context = context_of()
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    return {(one.attack, one.adaptive): one for one in EXPERIMENT.run(context)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_sum_tells_which_canaries_are_in_the_run(masked, kind):
    row = masked[f"presence of {kind} canaries in the sums of a run", True]
    assert judge(row).verdict == "broken"
    assert row.tests == 12
    assert row.target.of(AUC).mean > 0.9
    assert row.target.of(TPR_AT_1).mean > 0.5


def test_the_sum_as_it_comes_tells_less_than_with_the_secrets_of_the_round(masked):
    for kind in KINDS:
        naive, adaptive = (masked[f"presence of {kind} canaries in the sums of a run", way] for way in (False, True))
        assert naive.target.of(AUC).mean < adaptive.target.of(AUC).mean - 0.1


def test_coins_that_were_never_used_are_not_found(masked):
    for row in masked.values():
        assert 0.42 < row.negative.of(AUC).mean < 0.58


def test_a_run_has_the_canaries_that_coins_gave_it_and_no_other():
    run = make_run(context_of(), 0)
    held = {row.numpy().tobytes() for share in run.federation.shares.values() for row in share.inputs}
    assert [row.numpy().tobytes() in held for row in run.canaries.inputs] == run.coins.tolist()
    sizes = [len(share) for share in run.federation.shares.values()]
    assert max(sizes) - min(sizes) <= 2
    assert not torch.equal(run.other_coins(SeededRandomness(0)), run.coins)


def test_sound_noise_hides_canaries_that_bare_sums_show():
    noise = {"noise.mechanism": "sound", "noise.noise_multiplier": 4.0, "training.loss": "mse"}
    found = {seed: {} for seed in range(5)}

    def of(seed):
        context = context_of(seed=seed, **noise)
        found[seed] = {(one.attack, one.adaptive): one for one in EXPERIMENT.run(context)}
        return {name: judge(one) for name, one in found[seed].items()}

    none_is_broken(of)
    assert all(row.positive.of(AUC).mean > 0.8 for rows in found.values() for row in rows.values())
