"""Ledger line 16 as an experiment: broken in the published exchange, and not there without one."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.dishonest import chosen_sample
from bilateral.audit.topics.dishonest.chosen_sample import EXPERIMENT
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

torch.set_num_threads(1)
MLP = {
    "perturbation.softmax": "blinded",
    "model.name": "mlp-3",
    "model.options": {"width": 32},
    "training.batch_size": 16,
}


def context_of(**settings):
    return Context(RunPlan().with_settings({**MLP, **settings}), EFFORTS["smoke"])


def reason(context):
    return EXPERIMENT.applies(context.plan, context.guarantee())


@pytest.mark.parametrize("noise", ["activation", "offset"])
def test_a_sample_of_the_servers_choice_comes_out_of_the_masked_sum(noise):
    context = context_of(**{"perturbation.noise": noise})
    assert context.plan.masks(5) == "ring"
    assert not reason(context)
    gradients, samples = EXPERIMENT.run(context)
    assert judge(gradients).verdict == judge(samples).verdict == "broken"
    assert max(gradients.target.scores[1].values) < 1e-4
    assert min(samples.target.scores[0].values) > 40  # dB: exact, since the network begins with a Linear
    assert samples.pictures


def test_where_the_server_draws_its_blinders_nothing_is_found(monkeypatch):
    monkeypatch.setattr(chosen_sample, "_choosing", lambda stage, *_: stage)
    gradients, samples = EXPERIMENT.run(context_of())
    assert judge(gradients).verdict != "broken"
    assert judge(samples).verdict != "broken"


def test_without_the_published_exchange_or_with_bare_uploads_there_is_no_such_line():
    for settings in ({"perturbation.softmax": "local"}, {"training.loss": "mse"}):
        assert "no blinders to choose" in reason(context_of(**settings))
    assert "lines 3 and 6" in reason(context_of(**{"aggregation.masks": "none"}))
