"""The model's function: judged broken under perturbation, and scored right where the answer is known."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.model.function_recovery import AGREEMENT, EXPERIMENT, PREDICTION_ERROR
from bilateral.audit.topics.model.trained_runs import trained_plan
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

torch.set_num_threads(1)
SMALL = {"model.name": "mlp-3", "model.options": {"width": 16}, "training.rounds": 20}


def audited(**settings):
    return _audited(tuple(settings.items()))


@cache
def _audited(settings):
    context = Context(RunPlan().with_settings({**SMALL, **dict(settings)}), EFFORTS["smoke"])
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    return {one.attack: one for one in EXPERIMENT.run(context)}


@pytest.mark.parametrize(
    ("softmax", "name"),
    [("local", "noise that comes with the model"), ("blinded", "group secrets from the softmax exchange")],
)
def test_a_client_owns_the_function_of_a_perturbed_model(softmax, name):
    rows = audited(**{"perturbation.softmax": softmax})
    exact = rows[name]
    fitted = rows["group secrets fitted to 100 labelled samples of its own"]
    assert exact.target.of(AGREEMENT).mean > 0.999
    assert judge(exact).verdict == judge(fitted).verdict == "broken"
    naive = rows["outputs as they come"]
    assert not naive.adaptive
    assert naive.target.of(AGREEMENT).mean < fitted.target.of(AGREEMENT).mean
    (curve,) = fitted.curves
    assert [point[0] for point in curve.lines["fitted group secrets"]][:5] == [1, 3, 10, 30, 100]
    assert {one.adversary for one in rows.values()} == {"curious client", "colluding clients", "eavesdropper"}


def test_fedavg_gives_the_function_away_and_has_nothing_to_fit():
    (only,) = audited(protection="fedavg").values()
    assert only.tests == 0
    assert only.target.of(AGREEMENT).mean == 1.0
    assert judge(only).verdict == "broken"


def test_regression_is_scored_by_the_error_of_predictions():
    rows = audited(**{"data.name": "diabetes"})
    fitted = next(one for name, one in rows.items() if "of its own" in name)
    assert fitted.positive.of(PREDICTION_ERROR).mean < 1e-5
    assert fitted.target.of(PREDICTION_ERROR).mean < rows["outputs as they come"].target.of(PREDICTION_ERROR).mean


def test_a_client_that_predicts_nothing_is_not_called_a_break():
    """The negative control against itself: an attack that ends where training from scratch ends does not break."""
    rows = audited(**{"perturbation.softmax": "local"})
    fitted = rows["group secrets fitted to 100 labelled samples of its own"]
    harmless = type(fitted)(**{**fitted.__dict__, "target": fitted.negative})
    assert judge(harmless).verdict == "holds"


@pytest.mark.parametrize("mechanism", ["none", "sound"])
def test_masks_are_left_out_only_where_no_claim_rests_on_them(mechanism):
    settings = {"noise.mechanism": mechanism, "training.loss": "mse"}
    if mechanism == "sound":
        settings["noise.noise_multiplier"] = 1.0
    plan = trained_plan(Context(RunPlan().with_settings(settings), EFFORTS["smoke"]))
    assert plan.aggregation.masks == ("none" if mechanism == "none" else "auto")
