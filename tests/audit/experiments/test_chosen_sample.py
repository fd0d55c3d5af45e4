"""Ledger line 16 as an experiment: broken with blinded answers, not there with checked ones."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.attacks.chosen_blinders import answer_about
from bilateral.audit.attacks.split_view import honest_sum
from bilateral.audit.experiment import EFFORTS, Context
from bilateral.audit.experiments import chosen_sample
from bilateral.audit.experiments.chosen_sample import EXPERIMENT
from bilateral.audit.experiments.staged_rounds import Cast
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan
from bilateral.errors import ProtocolError
from bilateral.protocols.perturb.messages import SoftmaxQuery

torch.set_num_threads(1)
MLP = {"model.name": "mlp-3", "model.options": {"width": 32}, "training.batch_size": 16}


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


def test_checked_answers_mse_and_bare_uploads_have_no_such_line():
    assert "checked" in reason(context_of(**{"perturbation.softmax": "checked"}))
    assert reason(context_of(**{"training.loss": "mse"}))
    assert "lines 3 and 6" in reason(context_of(**{"aggregation.masks": "none"}))


def test_with_checked_answers_clients_refuse_the_attack():
    """The same server, against clients that check: nobody uploads anything."""
    context = context_of(**{"perturbation.softmax": "checked"})
    cast = Cast(context, context.plan)
    stage = cast.stage(0)

    def respond(sender, message):
        if not isinstance(message, SoftmaxQuery):
            return ()
        return (
            answer_about(message, stage.half.secrets, cast.around.perturbation, 0 if sender == "client-2" else None),
        )

    with pytest.raises(ProtocolError, match="is blinded"):
        honest_sum(type(stage)(**{**vars(stage), "respond": respond}))
    assert honest_sum(cast.stage(0)).total_weight > 0
