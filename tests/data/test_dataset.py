"""What `validate` accepts, and how it says no."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from bilateral.data import Dataset, Split, load_dataset, validate
from bilateral.errors import ArgumentError, DataError


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
        (Split(torch.zeros(4, 3).double(), torch.zeros(4, dtype=torch.int64)), r"float32 inputs.*float64"),
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
    with pytest.raises(DataError, match=r'"classification" or "regression" or .* got "ranking"'):
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


INPUTS, LABELS = torch.arange(12.0).reshape(4, 3), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    "given",
    [
        TensorDataset(INPUTS, LABELS),
        (INPUTS, LABELS),
        [INPUTS, LABELS],
        (INPUTS.numpy(), LABELS.numpy()),
        Split(INPUTS.numpy(), LABELS.numpy()),  # type: ignore[arg-type]
        (np.asfortranarray(INPUTS.numpy()), LABELS.numpy().astype(">i8")),
    ],
)
def test_what_is_plainly_a_split_is_taken_for_one(given):
    dataset = validate(Dataset("toy", "classification", train=given, test=given, num_outputs=2))
    for split in (dataset.train, dataset.test):
        assert torch.equal(split.inputs, INPUTS) and torch.equal(split.targets, LABELS)
        assert split.subset(torch.tensor([3])).targets.tolist() == [1]


def test_read_only_arrays_are_copied_without_a_warning():
    inputs = INPUTS.numpy().copy()
    inputs.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split = Split(inputs, LABELS)  # type: ignore[arg-type]
    assert torch.equal(split.inputs, INPUTS)


@pytest.mark.parametrize(
    ("given", "came"),
    [
        (None, "nothing"),
        (TensorDataset(INPUTS), "1 tensor"),
        (TensorDataset(INPUTS, LABELS, LABELS), "3 tensors"),
        (INPUTS, "Tensor"),
        ((INPUTS,), "tuple of 1"),
        ("train.csv", "str"),
        ({"inputs": INPUTS}, "dict"),
    ],
)
def test_anything_else_than_a_split_is_refused_with_what_to_do(given, came):
    with pytest.raises(DataError, match=r"train.*Split.*torch.stack") as refusal:
        Dataset("toy", "classification", train=given, test=Split(INPUTS, LABELS), num_outputs=2)
    assert came in str(refusal.value)


@pytest.mark.parametrize("given", ["2", 2.0, None, True, [2], float("nan"), 0, -1])
def test_a_number_of_outputs_that_is_no_positive_integer_is_refused(given):
    with pytest.raises(DataError, match=r"num_outputs.*the number of classes"):
        validate(classification(num_outputs=given))


@pytest.mark.parametrize("given", [np.int64(2), torch.tensor(2)])
def test_a_number_of_outputs_may_come_out_of_the_data(given):
    dataset = validate(classification(num_outputs=given))
    assert type(dataset.num_outputs) is int


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "name.*text.*None"),
        ({"name": ""}, "name.*text"),
        ({"task": None}, "task"),
        ({"task": ["classification"]}, "task"),
        ({"class_names": None}, "class names"),
        ({"class_names": "ab"}, "class names"),
        ({"class_names": (1, 2)}, "class names"),
        ({"train": Split(INPUTS, None)}, "targets in the train split.*nothing"),  # type: ignore[arg-type]
        ({"train": Split([[1.0]], LABELS)}, "inputs in the train split.*list"),  # type: ignore[arg-type]
        ({"train": Split(np.array(["a"]), LABELS)}, "inputs in the train split.*ndarray of <U1"),  # type: ignore[arg-type]
        ({"train": Split(np.array([None]), LABELS)}, "inputs in the train split.*ndarray of object"),  # type: ignore[arg-type]
        ({"train": Split(torch.tensor(1.0), LABELS)}, "samples, features"),
        ({"train": Split(INPUTS, LABELS, 3)}, "sites in the train split.*int"),  # type: ignore[arg-type]
        ({"train": Split(INPUTS, LABELS, "abcd")}, "sites in the train split.*str"),  # type: ignore[arg-type]
        ({"train": Split(INPUTS, LABELS, (1, 2, 3, 4))}, "sites in the train split.*int"),  # type: ignore[arg-type]
        ({"train": Split(INPUTS.to_sparse(), LABELS)}, "inputs in the train split.*sparse"),
        ({"train": Split(INPUTS.to("meta"), LABELS)}, "inputs in the train split.*meta"),
    ],
)
def test_parts_of_the_wrong_type_are_refused_by_name(changes, message):
    with pytest.raises(DataError, match=message):
        validate(classification(**changes))


@pytest.mark.parametrize(
    ("name", "data_dir"), [(None, None), (3, None), ("", None), (["digits"], None), ("mnist", 3), ("mnist", b"x")]
)
def test_a_name_or_folder_that_is_none_is_refused(name, data_dir):
    with pytest.raises(DataError, match="Expected"):
        load_dataset(name, data_dir)


ONE_HOT = [[1, 0], [0, 1], [1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("targets", "remedy"),
    [
        (torch.tensor(ONE_HOT), "`targets.argmax(1)`."),
        (np.array(ONE_HOT, np.float32), "`targets.argmax(1)`."),
        (np.array([0.0, 1.0, 0.0, 1.0]), '`targets.long()` of a tensor, `targets.astype("int64")` of a numpy array.'),
        (torch.tensor([[0], [1], [0], [1]]), '`targets.astype("int64").flatten()` of a numpy array.'),
        (np.array(["cat", "dog", "cat", "dog"]), "`names, numbers = numpy.unique(texts, return_inverse=True)`."),
        (np.array(["cat", "dog", "cat", "dog"], object), "numpy.unique(texts"),
        (["cat", "dog", "cat", "dog"], "numpy.unique(texts"),
    ],
)
def test_labels_in_another_form_are_refused_with_what_makes_them_right(targets, remedy):
    with pytest.raises(DataError) as caught:
        validate(classification(train=Split(torch.zeros(4, 3), targets)))
    assert remedy in str(caught.value)


def test_the_remedies_for_labels_work():
    """As they are printed, on arrays and tensors."""
    numbers = np.unique(np.array(["cat", "dog", "cat", "dog"]), return_inverse=True)[1]
    one_hot, floats = np.array(ONE_HOT), np.array([0.0, 1.0, 0.0, 1.0])
    for right in (numbers, one_hot.argmax(1), torch.tensor(ONE_HOT).argmax(1), floats.astype("int64")):
        dataset = validate(classification(train=Split(torch.zeros(4, 3), right)))
        assert dataset.train.targets.tolist() == [0, 1, 0, 1]


def test_a_dataset_without_its_parts_says_what_it_needs():
    data = TensorDataset(torch.zeros(4, 3), torch.zeros(4))
    with pytest.raises(ArgumentError) as caught:
        Dataset(train=data)
    assert str(caught.value).startswith(
        "Dataset was called without name, task, test, num_outputs. A Dataset needs a name,"
    )
    with pytest.raises(ArgumentError, match=r"Dataset was called wrongly: .*'labels'\. A Dataset needs"):
        Dataset("toy", "classification", data, data, 2, labels=("a", "b"))
    with pytest.raises(
        ArgumentError, match=r"Split was called without targets\. A Split is made of inputs and targets"
    ):
        Split(torch.zeros(4, 3))
