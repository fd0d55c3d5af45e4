"""Ledger line 16 as an experiment: broken with blinded answers, and refused by clients that check."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.attacks.split_view import honest_sum
from bilateral.audit.experiment import EFFORTS, Context
from bilateral.audit.experiments import chosen_sample
from bilateral.audit.experiments.chosen_sample import EXPERIMENT
from bilateral.audit.experiments.staged_rounds import Cast
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


def test_mse_and_bare_uploads_have_no_such_line():
    assert "no cross-entropy exchange" in reason(context_of(**{"training.loss": "mse"}))
    assert "lines 3 and 6" in reason(context_of(**{"aggregation.masks": "none"}))


CHECKED = {"perturbation.softmax": "checked"}


@pytest.mark.parametrize("noise", ["activation", "offset"])
def test_clients_that_check_refuse_the_attack_and_upload_nothing(noise):
    context = context_of(**CHECKED, **{"perturbation.noise": noise})
    assert not reason(context)
    (row,) = EXPERIMENT.run(context)
    assert judge(row).verdict == "holds"
    assert row.positive.scores[0].mean == 1.0  # the same server gets every sample from clients that do not check
    assert "in 12 of 12 rounds" in row.remark


def test_a_check_that_lets_the_answers_pass_would_be_seen(monkeypatch):
    """Sabotage: clients run the published exchange, whatever the plan says."""
    blinded = context_of()
    monkeypatch.setattr(chosen_sample, "_checks", lambda _plan: True)
    (row,) = EXPERIMENT.run(blinded)
    assert judge(row).verdict == "broken"
    assert "in 0 of 12 rounds" in row.remark


def test_an_honest_server_gets_its_sum_from_clients_that_check():
    context = context_of(**CHECKED)
    assert honest_sum(Cast(context, context.plan).stage(0)).total_weight > 0
