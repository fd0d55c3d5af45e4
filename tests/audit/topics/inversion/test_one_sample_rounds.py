"""Controls of gradient inversion: the same numbers, and nothing that they say together."""

from __future__ import annotations

import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.inversion.inversion_methods import Observed
from bilateral.audit.topics.inversion.one_sample_rounds import random_gradients, tools_of
from bilateral.engine.plan import RunPlan


def test_a_random_gradient_has_the_numbers_of_the_true_one_in_another_order_each():
    plan = RunPlan().with_settings({"model.name": "mlp-3", "training.rounds": 1})
    context = Context(plan, EFFORTS["smoke"])
    tools = tools_of(context, context.record(plan), "controls")
    rows = torch.arange(1000.0).expand(3, -1)
    drawn = random_gradients(Observed(None, torch.zeros(3, 1000), rows), tools).gradients
    assert torch.equal(drawn.sort(1).values, rows)
    assert not torch.equal(drawn[0], drawn[1])
    assert abs(float(torch.corrcoef(torch.stack([drawn[0], rows[0]]))[0, 1])) < 0.15
    again = random_gradients(Observed(None, torch.zeros(3, 1000), rows), tools).gradients
    assert torch.equal(drawn, again)
