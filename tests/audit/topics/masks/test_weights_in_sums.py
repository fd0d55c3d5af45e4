"""Weights in the last bits of sums, judged; and that the experiment would notice if they were there."""

from __future__ import annotations

import numpy as np
import pytest
from tests.audit.chance import each_holds

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.masks.weights_in_sums import EXPERIMENT
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan
from bilateral.protocols.mask.last_bits import LastBits

WEIGHTS, SINGLE = "divisors of sums of one client alone", "bits that a sum uses"


def judged(**settings):
    context = Context(RunPlan().with_settings(settings), EFFORTS["smoke"])
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    return {one.attack: judge(one) for one in EXPERIMENT.run(context)}


@pytest.mark.parametrize(
    "settings",
    [{}, {"model.name": "mlp-3", "training.loss": "mse", "training.batch_size": 8}],
    ids=["default", "squared error"],
)
def test_weights_and_single_contributors_stay_hidden(settings):
    def of(seed):
        found = judged(**settings, seed=seed)
        assert set(found) == {WEIGHTS, SINGLE}
        return found

    each_holds(of)


def exact(self, values, scale, dtype):
    return np.rint(values * scale).astype(np.int64)


def rounded_to_float32(self, values, scale, dtype):
    return np.rint((values * scale).astype(np.float32).astype(np.float64)).astype(np.int64)


def half_a_step(self, values, scale, dtype):
    power = (values.view(np.uint64) & np.uint64(0x7FF << 52)).view(np.float64)
    moved = power * 2.0**-23 * 0.5 * (np.random.default_rng(0).random(len(values)) - 0.5)
    return np.rint((values + moved) * scale).astype(np.int64)


@pytest.mark.parametrize("sabotage", [rounded_to_float32, half_a_step])
def test_last_bits_that_tell_are_judged_broken(monkeypatch, sabotage):
    monkeypatch.setattr(LastBits, "integers", sabotage)
    assert judged()[WEIGHTS].verdict == "broken"


def test_exact_products_show_weights_and_who_is_alone(monkeypatch):
    monkeypatch.setattr(LastBits, "integers", exact)
    found = judged()
    assert found[WEIGHTS].verdict == found[SINGLE].verdict == "broken"


def test_plans_without_ring_masks_and_with_noise_are_left_alone():
    for settings in (
        {"aggregation.masks": "none"},
        {"aggregation.masks": "float"},
        {"noise.mechanism": "sound", "noise.noise_multiplier": 1.0, "model.name": "mlp-3", "training.loss": "mse"},
    ):
        context = Context(RunPlan().with_settings(settings), EFFORTS["smoke"])
        assert EXPERIMENT.applies(context.plan, context.guarantee())
