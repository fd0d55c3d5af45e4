"""Sizes from refusals and presence from talk, judged."""

from __future__ import annotations

from dataclasses import replace

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.masks.sizes_and_presence import PRESENCE, SIZES
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

SMALL = {"model.name": "mlp-3", "training.loss": "mse", "training.batch_size": 8}


def context(kind=Context, **settings):
    return kind(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"])


def test_sizes_of_unlike_clients_are_told_by_their_refusals():
    """With cross entropy on few classes each, uploads of different clients have different sizes."""
    (found,) = SIZES.run(context(**{"training.loss": "ce", "federation.partition": "dirichlet", "seed": 3}))
    assert found.target.scores[0].mean < 0.5
    assert found.positive.scores[0].mean < 1e-9
    assert judge(found).verdict == "broken"


class SameData(Context):
    """All clients have the samples of the first."""

    def federation(self, plan=None):
        found = super().federation(plan)
        samples = found.shares[found.names[0]]
        return replace(found, shares=dict.fromkeys(found.names, samples)).with_members(
            dict.fromkeys(found.names, len(samples))
        )


def test_alike_clients_tell_nothing_of_each_other_by_the_same_refusals():
    """Of the same samples, not only of alike ones: a difference of 1 % in a size is found by a third of all draws."""
    (found,) = SIZES.run(context(SameData, **{"training.batch_size": 0, "federation.clients": 4}))
    assert found.target.scores == found.negative.scores
    assert judge(found).verdict == "holds"


def test_fixed_ranges_and_missing_masks_are_left_alone():
    for settings in ({"noise.mechanism": "sound", "noise.noise_multiplier": 1.0}, {"aggregation.masks": "none"}):
        plain = context(**settings)
        assert SIZES.applies(plain.plan, plain.guarantee())


def test_presence_is_read_from_who_talks():
    (found,) = PRESENCE.run(context())
    assert found.target.scores[0].mean == found.positive.scores[0].mean == 1.0
    assert found.negative.scores[0].mean < 0.8
    assert judge(found).verdict == "broken"
