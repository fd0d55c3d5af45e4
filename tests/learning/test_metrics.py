"""Metrics against slow ones that say what they mean."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.data import Split
from bilateral.learning.evaluation import Measures, measure
from bilateral.learning.metrics import METRICS, class_metrics, is_better, only_prediction, summary
from bilateral.protocols.objective import make_objective, plain_objective


def made(seed, count=30, classes=2):
    drawn = torch.Generator().manual_seed(seed)
    outputs = torch.randn(count, classes, generator=drawn).mul(3).round().div(2).double()  # with ties
    return outputs, torch.randint(classes, (count,), generator=drawn)


def slow_auroc(score, there):
    """How often a positive scores above a negative; ties count half."""
    pairs = [
        (p, n)
        for (p, is_p), (n, is_n) in itertools.product(list(zip(score, there, strict=True)), repeat=2)
        if is_p and not is_n
    ]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


def slow_auprc(score, there):
    """Precision at each threshold, weighed by how much recall it brings."""
    found, last = 0.0, 0.0
    for threshold in sorted(set(score), reverse=True):
        taken = [t for s, t in zip(score, there, strict=True) if s >= threshold]
        recall = sum(taken) / sum(there)
        found += (recall - last) * sum(taken) / len(taken)
        last = recall
    return found


def slow_ece(confidence, right):
    found = 0.0
    for number in range(15):
        low, high = number / 15, (number + 1) / 15
        inside = [
            (c, r)
            for c, r in zip(confidence, right, strict=True)
            if low <= c and (c < high or (number == 14 and c <= 1))
        ]
        if inside:
            sure, true = (sum(values) / len(inside) for values in zip(*inside, strict=True))
            found += abs(sure - true) * len(inside) / len(confidence)
    return found


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 4))
@settings(deadline=None, max_examples=30, derandomize=True)
def test_each_class_is_measured_as_the_slow_ones_say(seed, classes):
    outputs, labels = made(seed, classes=classes)
    objective, scores = plain_objective("ce"), outputs.softmax(1)
    each = class_metrics(objective, outputs, labels, METRICS, 0.4)
    for number, of_class in enumerate(each):
        there, score = (labels == number).tolist(), scores[:, number].tolist()
        assert of_class["count"] == sum(there)
        if not 0 < sum(there) < len(there):
            continue
        assert of_class["auroc"] == pytest.approx(slow_auroc(score, there))
        assert of_class["auprc"] == pytest.approx(slow_auprc(score, there))
        assert of_class["sensitivity"] == pytest.approx(
            sum(s >= 0.4 for s, t in zip(score, there, strict=True) if t) / sum(there)
        )
        assert of_class["specificity"] == pytest.approx(
            sum(s < 0.4 for s, t in zip(score, there, strict=True) if not t) / (len(there) - sum(there))
        )
        assert of_class["ece"] == pytest.approx(slow_ece(score, there))
        assert of_class["brier"] == pytest.approx(
            sum((s - t) ** 2 for s, t in zip(score, there, strict=True)) / len(there)
        )
        said = (outputs.argmax(1) == number).tolist()
        both = sum(s and t for s, t in zip(said, there, strict=True))
        assert of_class["f1"] == pytest.approx(2 * both / (sum(said) + sum(there)))


def test_two_classes_are_told_by_class_one_and_more_by_their_mean():
    outputs, labels = made(1)
    objective = plain_objective("ce")
    two = class_metrics(objective, outputs, labels, ["auroc", "f1"], 0.5)
    assert summary(objective, outputs, labels, ["auroc", "f1"], 0.5) == {name: two[1][name] for name in ("auroc", "f1")}
    outputs, labels = made(2, classes=3)
    three = class_metrics(objective, outputs, labels, ["auprc"], 0.5)
    mean = sum(of_class["auprc"] for of_class in three) / 3
    assert summary(objective, outputs, labels, ["auprc"], 0.5)["auprc"] == pytest.approx(mean)


def test_calibration_of_all_classes_is_of_the_class_that_is_said():
    outputs, labels = made(3, classes=3)
    confidence, said = outputs.softmax(1).max(1)
    expected = slow_ece(confidence.tolist(), (said == labels).tolist())
    assert summary(plain_objective("ce"), outputs, labels, ["ece"], 0.5)["ece"] == pytest.approx(expected)


def test_what_is_defined_for_no_class_is_left_out():
    outputs, labels = made(4)[0], torch.ones(30, dtype=torch.int64)
    found = summary(plain_objective("ce"), outputs, labels, METRICS, 0.5)
    assert "auroc" not in found
    assert "specificity" not in found
    assert "sensitivity" in found


def test_a_class_that_is_not_there_is_left_out_of_the_mean():
    outputs, labels = made(5, classes=3)
    without = torch.where(labels == 2, 0, labels)
    each = class_metrics(plain_objective("ce"), outputs, without, ["auroc"], 0.5)
    assert "auroc" not in each[2]
    expected = (each[0]["auroc"] + each[1]["auroc"]) / 2
    assert summary(plain_objective("ce"), outputs, without, ["auroc"], 0.5)["auroc"] == pytest.approx(expected)


def test_several_labels_are_measured_one_by_one():
    drawn = torch.Generator().manual_seed(0)
    outputs, marks = torch.randn(40, 3, generator=drawn).double(), torch.randint(2, (40, 3), generator=drawn).double()
    objective = make_objective("bce", "multi-label")
    found = summary(objective, outputs, marks, ["auroc"], 0.5)["auroc"]
    slow = [slow_auroc(outputs[:, i].tolist(), marks[:, i].bool().tolist()) for i in range(3)]
    assert found == pytest.approx(sum(slow) / 3)


def test_the_squared_error_gives_no_probabilities_and_so_no_calibration():
    outputs, labels = made(6)
    objective = make_objective("mse", "classification")
    assert set(summary(objective, outputs, labels, ["auroc", "ece", "brier"], 0.5)) == {"auroc"}


def test_places_of_a_segmentation_are_samples():
    drawn = torch.Generator().manual_seed(7)
    outputs, labels = torch.randn(4, 2, 3, 5, generator=drawn), torch.randint(2, (4, 3, 5), generator=drawn)
    flat = outputs.permute(0, 2, 3, 1).reshape(-1, 2), labels.reshape(-1)
    of_places = summary(make_objective("ce", "segmentation"), outputs, labels, ["auroc", "f1"], 0.5)
    assert of_places == pytest.approx(summary(plain_objective("ce"), *flat, ["auroc", "f1"], 0.5))


def test_a_model_that_says_one_class_only_is_noticed():
    labels = torch.tensor([0, 1, 1])
    assert only_prediction(plain_objective("ce"), torch.tensor([[0.0, 1], [0, 1], [0, 1]]), labels) == 1
    assert only_prediction(plain_objective("ce"), torch.tensor([[1.0, 0], [0, 1], [0, 1]]), labels) is None
    assert only_prediction(plain_objective("ce"), torch.tensor([[0.0, 1], [0, 1], [0, 1]]), labels * 0) is None
    assert only_prediction(plain_objective("mse"), torch.zeros(3, 1), torch.zeros(3, 1)) is None


def test_sites_and_classes_have_figures_of_their_own():
    split = Split(torch.eye(4), torch.tensor([0, 1, 0, 1]), ("a", "a", "b", "b"))
    outputs = torch.tensor([[1.0, 0], [0, 1], [1, 0], [1, 0]])
    measured = measure(lambda x: outputs[x.argmax(1)], split, "ce", Measures(("f1",)))
    assert measured.per_site()["a"]["test_accuracy"] == 1
    assert measured.per_site()["b"]["test_accuracy"] == 0.5
    assert measured.per_class(("no", "yes"))["yes"] == {"count": 2, "f1": pytest.approx(2 / 3)}


@pytest.mark.parametrize(("name", "better"), [("loss", 0.1), ("ece", 0.1), ("auroc", 0.3), ("accuracy", 0.3)])
def test_better_is_lower_for_errors_and_higher_for_the_rest(name, better):
    assert is_better(name, better, 0.2)
    assert not is_better(name, 0.2, better)
    assert not is_better(name, 0.2, 0.2)
    assert is_better(name, 0.2, None)
