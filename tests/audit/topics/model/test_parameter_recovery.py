"""Values of the parameters: judged broken by the adaptive client, not by the naive one, and not by chance."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.audit.chance import each_holds

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.scores import PARAMETER_ERROR
from bilateral.audit.topics.model.parameter_recovery import CANONICAL_ERROR, EXPERIMENT, FOLLOWED, PATH_ERROR
from bilateral.audit.topics.model.parameter_values import FACTOR_OCTAVES
from bilateral.audit.verdict import judge, judge_claims
from bilateral.engine.plan import RunPlan

torch.set_num_threads(1)
SMALL = {"model.name": "mlp-3", "model.options": {"width": 32}, "training.rounds": 20}


def audited(**settings):
    return _audited(tuple(settings.items()))


@cache
def _audited(settings):
    context = Context(RunPlan().with_settings({**SMALL, **dict(settings)}), EFFORTS["smoke"])
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    return context, EXPERIMENT.run(context)


def first_about(line, **settings):
    return next(one for one in audited(**settings)[1] if one.tests == line)


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_an_adaptive_client_finds_the_values_and_a_naive_one_does_not(loss):
    given = {"training.loss": loss} if loss == "mse" else {}
    context, rows = audited(**given)
    values = [one for one in rows if one.tests == 15]
    assert [judge(one).verdict for one in values[1:]] == ["broken"] * 4
    each_holds(lambda seed: {"naive": judge(first_about(15, **{**given, "seed": seed}))})
    assert [one.adaptive for one in values] == [False, True, True, True, True]
    assert all(one.target.of(FACTOR_OCTAVES).mean < 0.3 for one in values[1:])
    assert all(one.target.scores[0].metric == PARAMETER_ERROR for one in values)
    assert values[0].target.of(PARAMETER_ERROR).mean > 0.5
    assert all(one.target.of(PARAMETER_ERROR).mean < 0.25 for one in values[1:])
    assert all(one.positive.of(PARAMETER_ERROR).mean < 1e-6 for one in values)
    assert all(one.negative.of(PARAMETER_ERROR).mean > 0.5 for one in values)
    claim = next(one for one in judge_claims(context.guarantee(), rows) if one.tests == 15)
    assert claim.verdict == "broken"


def test_the_model_up_to_scaling_and_its_neurons_are_known_from_round_to_round():
    _, rows = audited()
    up_to_scaling, paths, followed = (one for one in rows if one.tests == 7)
    assert up_to_scaling.target.of(CANONICAL_ERROR).mean < 1e-6
    assert paths.target.of(PATH_ERROR).mean < 1e-6
    assert paths.negative.of(PATH_ERROR).mean > 0.05
    assert followed.target.of(FOLLOWED).mean > 0.95
    assert followed.negative.of(FOLLOWED).mean < 0.2
    assert {judge(one).verdict for one in rows if one.tests in (7, 9)} == {"broken"}


def test_knowing_the_range_alone_is_not_called_a_break():
    _, rows = audited()
    row = next(one for one in rows if one.tests == 15 and one.adaptive)
    assert judge(type(row)(**{**row.__dict__, "target": row.negative})).verdict == "holds"


def test_fedavg_sends_the_parameters_as_they_are():
    plan = RunPlan().with_settings({"protection": "fedavg"})
    assert "as they are" in EXPERIMENT.applies(plan, Context(plan, EFFORTS["smoke"]).guarantee())
