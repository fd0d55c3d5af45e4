"""What `validate` accepts, and how it says no."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bilateral.data import Dataset, Split, validate
from bilateral.errors import DataError


def classification(**changes) -> Dataset:
    split = Split(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    return replace(Dataset("toy", "classification", split, split, num_outputs=2), **changes)


def regression(**changes) -> Dataset:
    split = Split(torch.zeros(4, 3), torch.zeros(4, 2))
    return replace(Dataset("toy", "regression", split, split, num_outputs=2), **changes)


def test_well_formed_datasets_pass_and_come_back_unchanged():
    for dataset in (classification(), regression()):
        assert validate(dataset) is dataset
        assert dataset.input_shape == (3,)
        assert len(dataset.train) == 4


def test_subset_keeps_inputs_targets_and_sites_together():
    split = Split(torch.arange(8.0).reshape(4, 2), torch.arange(4), ("a", "b", "c", "d"))
    part = split.subset(torch.tensor([3, 1]))
    assert part.inputs.tolist() == [[6.0, 7.0], [2.0, 3.0]]
    assert part.targets.tolist() == [3, 1]
    assert part.sites == ("d", "b")
    assert len(part) == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_inputs_are_refused_with_split_count_and_first_row(bad):
    inputs = torch.zeros(4, 3)
    inputs[1, 2] = inputs[3, 0] = inputs[3, 1] = bad
    dataset = classification(test=Split(inputs, torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(DataError, match=r'inputs in the test split of dataset "toy".*2 of 4 rows.*row 1'):
        validate(dataset)


def test_non_finite_regression_targets_are_refused():
    targets = torch.zeros(4, 2)
    targets[2, 1] = float("nan")
    with pytest.raises(DataError, match=r"targets in the train split.*1 of 4 rows.*row 2"):
        validate(regression(train=Split(torch.zeros(4, 3), targets)))


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_outside_the_outputs_are_refused(label):
    split = Split(torch.zeros(3, 3), torch.tensor([0, 1, label]))
    with pytest.raises(DataError, match=rf"between 0 and 1 in the train split.*\({label}\) at row 2"):
        validate(classification(train=split))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Split(torch.zeros(4, 3), torch.zeros(3, dtype=torch.int64)), "4 inputs and 3 targets"),
        (Split(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), ("a",)), "2 inputs and 1 sites"),
        (Split(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)), "empty split"),
        (Split(torch.zeros(4, 3).double(), torch.zeros(4, dtype=torch.int64)), "float32 inputs.*float64"),
        (Split(torch.zeros(4), torch.zeros(4, dtype=torch.int64)), r"\[samples, features...\].*\[4\]"),
        (Split(torch.zeros(4, 3), torch.zeros(4)), r"int64 targets of shape \[4\].*float32"),
        (Split(torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.int64)), r"int64 of shape \[4, 1\]"),
        (Split(torch.zeros(4, 3), torch.tensor(0)), "4 inputs and 0 targets"),
    ],
)
def test_malformed_classification_splits_are_refused(split, message):
    with pytest.raises(DataError, match=message):
        validate(classification(train=split))


@pytest.mark.parametrize("targets", [torch.zeros(4), torch.zeros(4, 1), torch.zeros(4, 2).long()])
def test_regression_targets_of_wrong_shape_or_type_are_refused(targets):
    with pytest.raises(DataError, match=r"float32 targets of shape \[4, 2\] in the train split"):
        validate(regression(train=Split(torch.zeros(4, 3), targets)))


def test_splits_of_different_sample_shapes_are_refused():
    with pytest.raises(DataError, match=r"one shape.*\[3\].*\[5\]"):
        validate(classification(test=Split(torch.zeros(2, 5), torch.tensor([0, 1]))))


def test_wrong_task_number_of_outputs_and_class_names_are_refused():
    with pytest.raises(DataError, match='"classification" or "regression", got "ranking"'):
        validate(classification(task="ranking"))
    with pytest.raises(DataError, match="at least 1, got 0"):
        validate(classification(num_outputs=0))
    with pytest.raises(DataError, match=r"Expected 2 class names.*got 1"):
        validate(classification(class_names=("only",)))


def test_every_refusal_says_what_to_do():
    with pytest.raises(DataError) as refusal:
        validate(classification(num_outputs=1))
    assert refusal.value.remedy
    assert refusal.value.remedy in str(refusal.value)
