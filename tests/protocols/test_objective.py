"""Losses as one object: against torch's own, and what it says of samples against what it says of a batch."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.errors import DataError, PlanError
from bilateral.protocols.objective import Objective, as_objective, auto_loss, make_objective, plain_objective

CASES = [
    ("ce", "classification", {}),
    ("ce", "classification", {"class_weights": (0.5, 2.0, 1.0)}),
    ("ce", "classification", {"label_smoothing": 0.1}),
    ("ce", "classification", {"class_weights": (0.5, 2.0, 1.0), "label_smoothing": 0.2}),
    ("ce", "segmentation", {}),
    ("ce", "segmentation", {"class_weights": (0.5, 2.0, 1.0)}),
    ("bce", "multi-label", {}),
    ("bce", "multi-label", {"class_weights": (3.0, 1.0, 0.2), "label_smoothing": 0.1}),
    ("mse", "regression", {}),
    ("mse", "classification", {}),
    ("huber", "regression", {"huber_delta": 0.3}),
]


def a_batch(task, count=5, outputs=3, seed=0, dtype=torch.float64):
    """Outputs and a dataset's targets."""
    drawn = torch.Generator().manual_seed(seed)
    place = (2, 4) if task == "segmentation" else ()
    values = torch.randn(count, outputs, *place, generator=drawn, dtype=dtype) * 2
    if task in ("classification", "segmentation"):
        return values, torch.randint(outputs, (count, *place), generator=drawn)
    if task == "multi-label":
        return values, torch.randint(2, (count, outputs), generator=drawn).to(dtype)
    return values, torch.randn(count, outputs, generator=drawn, dtype=dtype)


def by_hand(objective, outputs, target):
    """One sample's loss, slowly: the mean over its places (or outputs) of formulas out of a textbook."""
    weights = objective.class_weights or (1.0,) * outputs.shape[0]
    smooth = objective.label_smoothing
    if objective.name == "ce":
        flat, labels = outputs.reshape(outputs.shape[0], -1).T, target.reshape(-1)
        lost = []
        for logits, label in zip(flat, labels, strict=True):
            log = (logits - logits.exp().sum().log()).tolist()
            spread = sum(w * -v for w, v in zip(weights, log, strict=True)) / len(log)
            lost.append((1 - smooth) * weights[label] * -log[label] + smooth * spread)
        return sum(lost) / len(lost)
    lost = []
    for number, (value, wanted) in enumerate(zip(outputs.tolist(), target.tolist(), strict=True)):
        if objective.name == "bce":
            chance = 1 / (1 + torch.tensor(-value, dtype=torch.float64).exp().item())
            goal = wanted * (1 - smooth) + smooth / 2
            log, other = torch.tensor([chance, 1 - chance], dtype=torch.float64).log().tolist()
            lost.append(-weights[number] * goal * log - (1 - goal) * other)
        elif objective.name == "huber":
            off, delta = abs(value - wanted), objective.huber_delta
            lost.append(off**2 / 2 if off < delta else delta * (off - delta / 2))
        else:
            lost.append((value - wanted) ** 2)
    return sum(lost) / len(lost)


@pytest.mark.parametrize(("loss", "task", "extras"), CASES)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6))
@settings(deadline=None, max_examples=15, derandomize=True)
def test_a_batch_is_the_mean_of_its_samples_and_a_sample_is_as_the_textbook_has_it(loss, task, extras, seed, count):
    objective = make_objective(loss, task, **extras)
    outputs, raw = a_batch(task, count, seed=seed)
    targets = objective.prepared(raw, 3, torch.float64)
    singly = objective.of_samples(outputs, targets)
    assert singly.tolist() == pytest.approx([by_hand(objective, o, t) for o, t in zip(outputs, targets, strict=True)])
    assert float(objective.of_batch(outputs, targets)) == pytest.approx(float(singly.mean()), rel=1e-12)


@pytest.mark.parametrize(("loss", "task", "extras"), CASES)
@pytest.mark.parametrize("count", [1, 4])
def test_cotangents_are_the_gradient_of_the_batch(loss, task, extras, count):
    objective = make_objective(loss, task, **extras)
    outputs, raw = a_batch(task, count)
    targets = objective.prepared(raw, 3, torch.float64)
    leaf = outputs.clone().requires_grad_()
    objective.of_batch(leaf, targets).backward()
    torch.testing.assert_close(objective.cotangents(outputs, targets), leaf.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_losses_are_torchs_to_the_last_bit(dtype):
    outputs, labels = a_batch("classification", 7, dtype=dtype)
    assert torch.equal(plain_objective("ce").of_batch(outputs, labels), F.cross_entropy(outputs, labels))
    values = F.one_hot(labels, 3).to(dtype)
    assert torch.equal(plain_objective("mse").of_batch(outputs, values), F.mse_loss(outputs, values))


def test_weights_do_not_change_what_a_sample_counts():
    """Unlike in torch, which divides by the weights of the batch: two clients' batches would have two units."""
    objective = make_objective("ce", "classification", class_weights=(1.0, 5.0))
    outputs, labels = torch.zeros(4, 2), torch.tensor([1, 1, 1, 1])
    assert float(objective.of_batch(outputs, labels)) == pytest.approx(5 * 0.693147, rel=1e-4)
    assert float(F.cross_entropy(outputs, labels, torch.tensor([1.0, 5.0]))) == pytest.approx(0.693147, rel=1e-4)


@pytest.mark.parametrize(
    ("task", "loss"),
    [("classification", "ce"), ("segmentation", "ce"), ("regression", "mse"), ("multi-label", "bce")],
)
def test_auto_is_the_usual_loss_of_a_task(task, loss):
    assert auto_loss(task) == loss
    assert make_objective("auto", task).name == loss


@pytest.mark.parametrize(
    ("loss", "task", "extras", "error", "said"),
    [
        ("cross_entropy", "classification", {}, PlanError, "no loss 'cross_entropy'"),
        ("bce", "classification", {}, DataError, "'bce' is not for data of the task 'classification'"),
        ("ce", "multi-label", {}, DataError, "'ce' is not for data of the task 'multi-label'"),
        ("ce", "regression", {}, DataError, "not for data of the task 'regression'"),
        ("mse", "regression", {"class_weights": (1.0,)}, PlanError, "Class weights are for the losses ce and bce"),
        ("huber", "regression", {"label_smoothing": 0.1}, PlanError, "smoothing is for the losses ce and bce"),
        ("no_such_module:loss", "regression", {}, PlanError, "Could not import 'no_such_module'"),
        ("math:tau", "regression", {}, PlanError, "Expected a function at 'math:tau', found float"),
        ("math:no", "regression", {}, PlanError, "found nothing"),
        ("a b:c", "regression", {}, PlanError, "package.module:function"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_remedy(loss, task, extras, error, said):
    with pytest.raises(error, match=said) as caught:
        make_objective(loss, task, **extras)
    assert caught.value.remedy


@pytest.fixture
def own_losses():
    module = types.ModuleType("own_losses_of_a_test")
    module.focal = lambda outputs, labels: (1 - outputs.softmax(1).gather(1, labels[:, None])[:, 0]) ** 2
    module.of_all = F.cross_entropy
    module.heads = lambda outputs, labels: F.cross_entropy(outputs[0], labels) + F.cross_entropy(outputs[1], labels)
    module.a_matrix = lambda outputs, labels: outputs
    module.a_number = lambda outputs, labels: 1.0
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


@pytest.mark.parametrize("name", ["focal", "of_all"])
def test_a_loss_of_ones_own_gives_a_number_a_sample_or_their_mean(own_losses, name):
    objective = make_objective(f"{own_losses}:{name}", "classification")
    outputs, labels = a_batch("classification")
    singly = objective.of_samples(outputs, labels)
    assert singly.shape == (5,)
    assert float(objective.of_batch(outputs, labels)) == pytest.approx(float(singly.mean()))


def test_a_loss_of_ones_own_takes_several_heads(own_losses):
    objective = make_objective(f"{own_losses}:heads", "classification")
    outputs, labels = a_batch("classification")
    expected = 2 * F.cross_entropy(outputs, labels)
    assert float(objective.of_batch((outputs, outputs), labels)) == pytest.approx(float(expected))
    assert float(objective.of_samples((outputs, outputs), labels).mean()) == pytest.approx(float(expected))
    with pytest.raises(DataError, match="The model returns tuple, and loss = 'ce' takes one tensor"):
        plain_objective("ce").of_batch((outputs, outputs), labels)


@pytest.mark.parametrize("name", ["a_matrix", "a_number"])
def test_a_loss_of_ones_own_that_gives_anything_else_is_refused(own_losses, name):
    objective = make_objective(f"{own_losses}:{name}", "classification")
    with pytest.raises(DataError, match=r"one number a sample \(\[5\]\) or their mean"):
        objective.of_batch(*a_batch("classification"))


def test_targets_of_another_shape_than_the_outputs_are_refused():
    with pytest.raises(DataError, match=r"outputs of shape \[5, 3\] need targets of shape \[5\]"):
        plain_objective("ce").of_batch(torch.zeros(5, 3), torch.zeros(5, 4).long())
    with pytest.raises(DataError, match=r"need targets of shape \[5, 3\]"):  # torch would broadcast
        plain_objective("mse").of_batch(torch.zeros(5, 3), torch.zeros(5, 1))


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (torch.tensor([[0.0, 2.0, 1.0]]), "0 or 1 for each label, got values from 0 to 2"),
        (torch.tensor([[0, 1, 1]]), "floating point, got torch.int64"),
        (torch.zeros(1, 4), r"shape \(1, 3\), got \(1, 4\)"),
        (torch.full((1, 3), float("nan")), "NaN"),
    ],
)
def test_labels_that_are_none_are_refused(targets, said):
    with pytest.raises(DataError, match=said):
        make_objective("bce", "multi-label").check_targets("site-a", targets, 1, 3)


def test_scores_and_predictions_are_in_the_form_of_the_task():
    outputs = torch.tensor([[0.0, 2.0], [3.0, -1.0]])
    assert torch.equal(make_objective("ce", "classification").predictions(outputs), torch.tensor([1, 0]))
    assert torch.equal(make_objective("bce", "multi-label").predictions(outputs), torch.tensor([[0, 1], [1, 0]]))
    assert torch.equal(make_objective("huber", "regression").predictions(outputs), outputs)
    assert make_objective("ce", "classification").scores(outputs).sum(1).tolist() == pytest.approx([1, 1])
    assert not make_objective("mse", "classification").gives_probabilities()


def test_a_name_alone_is_the_plain_loss():
    assert as_objective("ce") == Objective("ce", "classification")
    assert as_objective("mse").is_plain
    assert not make_objective("ce", "classification", label_smoothing=0.1).is_plain
