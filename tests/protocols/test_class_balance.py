"""Counts of classes as messages, and the weights that follow from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from bilateral.errors import ProtocolError
from bilateral.protocols.class_balance import ClassTotals, as_terms, count_classes, totals_of, weights_from
from bilateral.protocols.objective import make_objective

CE = make_objective("ce", "classification", class_weights="balanced")
BCE = make_objective("bce", "multi-label", class_weights="balanced")


def test_balanced_is_what_scikit_learn_calls_so():
    labels = torch.tensor([0, 0, 0, 1, 2, 2, 0])
    counts = count_classes(CE, labels, 3).long()
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels.numpy())
    assert weights_from(ClassTotals(1, counts), CE, 3) == pytest.approx(tuple(expected))


def test_a_class_that_is_never_there_does_not_count():
    assert weights_from(ClassTotals(1, torch.tensor([6, 0, 2, 8])), CE, 3) == pytest.approx((8 / 12, 1, 2))


def test_labels_are_weighed_by_those_without_them():
    marks = torch.tensor([[1.0, 0, 1], [0, 0, 1], [0, 0, 1], [1, 1, 1]])
    counts = count_classes(BCE, marks, 3).long()
    assert counts.tolist() == [2, 1, 4, 4]
    assert weights_from(ClassTotals(1, counts), BCE, 3) == (1.0, 3.0, 1.0)


def test_places_of_a_map_are_counted_one_by_one():
    objective = make_objective("ce", "segmentation", class_weights="balanced")
    assert count_classes(objective, torch.tensor([[[0, 1], [1, 1]]]), 2).tolist() == [1, 3, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_of_a_million_samples_survive_the_way(dtype):
    one, other = (torch.tensor([float(a), float(b), float(a + b)]) for a, b in ((1, 999_999), (3, 777)))
    total = as_terms(one.double(), (1, 5), dtype) + as_terms(other.double(), (1, 5), dtype)
    assert totals_of(total, 2).tolist() == [4, 1_000_776, 1_000_780]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, 1e18])
def test_sums_that_are_no_counts_are_refused(wrong):
    terms = torch.zeros(1, 5, dtype=torch.float64)
    terms[0, 2] = 1.0
    terms[0, 0] = wrong
    with pytest.raises(ProtocolError):
        totals_of(terms, 2)


@pytest.mark.parametrize(
    "totals",
    [
        torch.tensor([1, 2]),
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([-1, 4, 3]),
        torch.tensor([0, 0, 0]),
        torch.tensor([5, 1, 3]),
        torch.tensor([[1, 2, 3]]),
        torch.tensor([1, 1 << 60, 1 << 60]),
    ],
)
def test_malformed_totals_are_refused(totals):
    with pytest.raises(ProtocolError):
        weights_from(ClassTotals(0, totals), CE, 2)


def test_a_model_too_small_to_count_in_is_refused():
    with pytest.raises(ProtocolError, match="no room to count 9 classes"):
        as_terms(torch.zeros(10, dtype=torch.float64), (1, 4), torch.float32)
