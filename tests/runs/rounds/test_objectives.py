"""Losses of a plan, trained with: whatever clients compute as it is, the model is that of all data in one place."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.nn.functional as F

from bilateral.data import Dataset, Split
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan, parse_plan
from bilateral.engine.setup import initial_model
from bilateral.errors import DataError, PlanError, UnsoundPlanError
from bilateral.runs.rounds.in_process import run

NAME = "data_of_a_test_of_losses"


def a_set(task="multi-label"):
    drawn = torch.Generator().manual_seed(3)

    def split(count):
        inputs = torch.randn(count, 6, generator=drawn)
        marks = (inputs[:, :3] + 0.3 * torch.randn(count, 3, generator=drawn) > 0.4).float()
        targets = {"multi-label": marks, "classification": marks.argmax(1), "regression": inputs[:, :3].tanh()}[task]
        return Split(inputs, targets)

    return Dataset(f"made-{task}", task, split(60), split(40), 3)


@pytest.fixture(autouse=True)
def own_code():
    module = types.ModuleType(NAME)
    module.load = a_set
    module.squares = lambda outputs, targets: (outputs - targets).square().sum(1)
    sys.modules[NAME] = module
    yield
    del sys.modules[NAME]


def plan(task="multi-label", protection="masks", **training):
    values = {"rounds": 4, "batch_size": 0, "schedule": "constant", "momentum": 0.0, "learning_rate": 0.5, **training}
    return parse_plan(
        {
            "protection": protection,
            "data": {"name": f"{NAME}:load", "options": {"task": task}},
            "model": {"name": "mlp-3"},
            "federation": {"clients": 3},
            "training": values,
        },
        "of a test",
    )


CASES = [
    ("multi-label", {}, F.binary_cross_entropy_with_logits),
    (
        "multi-label",
        {"class_weights": [2.0, 1.0, 0.5]},
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, pos_weight=torch.tensor([2.0, 1.0, 0.5])),
    ),
    ("regression", {"loss": "huber", "huber_delta": 0.2}, lambda o, t: F.huber_loss(o, t, delta=0.2)),
    (
        "classification",
        {"class_weights": [1.0, 3.0, 2.0], "label_smoothing": 0.1},
        lambda o, t: F.cross_entropy(o, t, torch.tensor([1.0, 3.0, 2.0]), label_smoothing=0.1, reduction="none").mean(),
    ),
    ("regression", {"loss": f"{NAME}:squares"}, lambda o, t: (o - t).square().sum(1).mean()),
]


@pytest.mark.parametrize("protection", ["fedavg", "masks"])
@pytest.mark.parametrize(("task", "training", "of_batch"), CASES)
def test_a_run_trains_what_one_place_with_all_data_would(task, training, of_batch, protection):
    chosen = plan(task, protection, **training)
    result = run(chosen, save=False, reference=False)
    problem, data = load_federation(chosen).problem, a_set(task).train
    alone = initial_model(chosen, problem)
    for _ in range(4):
        gradients = torch.autograd.grad(of_batch(alone(data.inputs), data.targets), list(alone.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(alone.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.5)
    for found, expected in zip(result.model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("task", ["multi-label", "classification"])
def test_sound_noise_takes_any_loss(task):
    extras = {"class_weights": [1.0, 3.0, 2.0]} if task == "classification" else {}
    chosen = plan(task, "masks", **extras, batch_size=16).with_settings(
        {"noise.mechanism": "sound", "noise.epsilon": 8.0}
    )
    assert run(chosen, save=False).rounds == 4


@pytest.mark.parametrize("protection", ["perturbation", "sealed"])
@pytest.mark.parametrize(
    ("task", "training"),
    [
        ("multi-label", {}),
        ("classification", {"class_weights": [1.0, 2.0, 3.0]}),
        ("classification", {"label_smoothing": 0.1}),
        ("regression", {"loss": "huber"}),
        ("regression", {"loss": f"{NAME}:squares"}),
    ],
)
def test_protections_that_compute_mse_and_ce_alone_refuse_others_and_say_who_takes_them(protection, task, training):
    with pytest.raises(UnsoundPlanError, match="another loss than mse or ce") as caught:
        run(plan(task, protection, **training), save=False)
    assert "protection = 'masks'" in caught.value.remedy


def test_plans_from_before_keep_their_fingerprints():
    assert RunPlan().fingerprint() == RunPlan().with_settings({"training.label_smoothing": 0.0}).fingerprint()
    assert RunPlan().fingerprint() != RunPlan().with_settings({"training.label_smoothing": 0.1}).fingerprint()
    assert RunPlan().fingerprint() != RunPlan().with_settings({"training.class_weights": [1.0, 2.0]}).fingerprint()


def test_a_loss_that_does_not_exist_is_refused_by_the_plan():
    with pytest.raises(PlanError, match=r"'bce', 'huber' or 'package\.module:function'"):
        plan(loss="crossentropy")
    with pytest.raises(DataError, match="'bce' is not for data of the task 'classification'"):
        run(plan("classification", loss="bce"), save=False)
