"""What colluders take out of a sum is what they put into it."""

from __future__ import annotations

import pytest

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.threat import server_view
from bilateral.audit.topics.inversion.attacks.uploads import own_gradient, sum_gradient
from bilateral.engine.plan import RunPlan

SMALL = {"federation.clients": 3, "training.rounds": 1, "training.batch_size": 8, "training.loss": "mse"}


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_sum_less_what_colluders_recompute_is_the_mean_of_the_others(batch_norm):
    model = {"model.name": "convnet", "model.options": {"width": 2, "batch_norm": batch_norm}}
    plan = RunPlan().with_settings({**SMALL, **model, "aggregation.masks": "none"})
    recording = Context(plan, EFFORTS["smoke"]).record(plan)
    view = server_view(recording, ["client-3"])
    rest, honest = sum_gradient(view, 0)
    assert honest == ("client-1", "client-2")
    weights = [len(recording.shares[name]) for name in honest]
    single = [own_gradient(view, 0, name) for name in honest]
    mean = sum(weight * one for weight, one in zip(weights, single, strict=True)) / sum(weights)
    assert float((rest - mean).norm() / mean.norm()) < 1e-3
