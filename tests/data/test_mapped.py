"""Map-style datasets as splits: what is loaded, when, by whom, and what is said of samples that are none."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, Subset, TensorDataset

from bilateral.data import Dataset, Split, validate
from bilateral.data.dataset import LazySplit
from bilateral.data.mapped import MappedSamples
from bilateral.errors import DataError


class Counting(TorchDataset):
    """Notes what is read; with `draws` its samples are jittered anew each time, by all three generators."""

    def __init__(self, count=20, draws=False, sample=None):
        self.count, self.draws, self.sample, self.read = count, draws, sample, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        if self.sample is not None:
            return self.sample(index)
        x = torch.full((3,), float(index))
        if self.draws:
            x = x + torch.rand(3) + random.random() + float(np.random.rand())
        return x, index % 2


def lazy(source, task="classification", workers=0):
    return LazySplit(MappedSamples(source, task, "a test", workers=workers))


def test_nothing_is_loaded_that_is_not_needed():
    source = Counting()
    dataset = validate(Dataset("mine", "classification", source, Subset(source, range(5)), 2))
    assert set(source.read) == {0}  # one sample says what all are like
    split = dataset.train.part(torch.arange(4, 12))
    assert len(split) == 8
    source.read.clear()
    batch = split.subset(torch.tensor([1, 3]))
    assert source.read == [5, 7]
    assert batch.inputs[:, 0].tolist() == [5, 7]
    assert batch.targets.tolist() == [1, 1]
    assert batch.targets.dtype == torch.int64


def test_all_of_it_is_what_a_split_of_tensors_would_be():
    whole = lazy(Counting())
    assert torch.equal(whole.inputs[:, 0], torch.arange(20.0))
    assert whole.targets.tolist() == [0, 1] * 10
    assert [len(part) for part in whole.chunks(8)] == [7, 7, 6]
    assert torch.equal(torch.cat([part.inputs for part in whole.chunks(8)]), whole.inputs)
    assert whole.cast(torch.float64).subset(torch.tensor([2])).inputs.dtype == torch.float64
    assert len(whole.subset(torch.tensor([], dtype=torch.int64)).inputs) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_with_any_number_of_workers_a_run_draws_the_same(workers):
    alone, together = lazy(Counting(draws=True)), lazy(Counting(draws=True), workers=workers)
    for seed, places in ((5, torch.tensor([3, 1, 17, 4])), (6, torch.tensor([3, 1])), (5, torch.arange(20))):
        found = [split.drawn(places, lambda seed=seed: seed) for split in (alone, together)]
        assert torch.equal(found[0].inputs, found[1].inputs)
        assert torch.equal(found[0].targets, found[1].targets)


def test_another_batch_draws_anew_and_the_programs_own_generators_are_left_alone():
    split, places = lazy(Counting(draws=True)), torch.tensor([3, 3])
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first, second, again = (split.drawn(places, lambda seed=seed: seed).inputs for seed in (1, 2, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]


def test_tokens_stay_whole_numbers():
    split = lazy(Counting(sample=lambda i: (torch.arange(4, dtype=torch.int32) + i, i % 3)))
    batch = split.cast(torch.float64).subset(torch.tensor([0, 2]))
    assert batch.inputs.dtype == torch.int64
    assert batch.inputs.tolist() == [[0, 1, 2, 3], [2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("task", "target", "dtype", "shape"),
    [
        ("classification", np.int32(1), torch.int64, ()),
        ("classification", True, torch.int64, ()),
        ("regression", 1, torch.float32, (1,)),
        ("regression", np.array([1.0, 2.0]), torch.float32, (2,)),
        ("multi-label", [0, 1, 1], torch.float32, (3,)),
        ("segmentation", torch.zeros(2, 2, dtype=torch.uint8), torch.int64, (2, 2)),
    ],
)
def test_targets_take_the_form_of_the_task(task, target, dtype, shape):
    _, found = lazy(Counting(sample=lambda i: (torch.zeros(3), target)), task).first
    assert (found.dtype, tuple(found.shape)) == (dtype, shape)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("sample", "said", "remedy"),
    [
        (lambda i: torch.zeros(3), "an input and a target, got Tensor", "must be a pair"),
        (lambda i: (torch.zeros(3), torch.zeros(2), i), "got 3 values", "Several inputs go into a tuple"),
        (lambda i: (Image.new("L", (4, 4)), 1), "to be a tensor, got Image", "ToTensor"),
        (lambda i: ("some text", 1), "to be a tensor, got str", "as a tensor"),
        (lambda i: (torch.zeros(3, dtype=torch.uint8), 1), "got torch.uint8", "/ 255"),
        (lambda i: (torch.zeros(3), "cat"), "number or numbers, got str", "Number the classes"),
        (lambda i: (torch.zeros(3), 0.5), "one class number, got torch.float64", "task = 'regression'"),
        (lambda i: (torch.zeros(3 + i), 0), r"one shape in a test, got \[3\] and \[4\]", "Resize"),
        (lambda i: 1 / 0, "Sample 0 of a test could not be read: ZeroDivisionError", "Try `dataset"),
    ],
)
def test_a_sample_that_is_none_is_told_with_what_to_do(sample, said, remedy, workers):
    split = lazy(Counting(sample=sample), workers=workers)
    with pytest.raises(DataError, match=said) as caught:
        split.subset(torch.tensor([0, 1]))
    assert remedy in caught.value.remedy


def test_a_stream_is_no_split():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(DataError, match="Stream") as caught:
        Dataset("mine", "classification", Stream(), Stream(), 2)
    assert "map-style" in caught.value.remedy


def test_labels_that_a_dataset_says_itself_cost_no_reading():
    source = Counting()
    source.targets = [index % 2 for index in range(20)]
    split = lazy(source).part(torch.tensor([1, 2, 5]))
    assert split.known_targets.tolist() == [1, 0, 1]
    assert not source.read
    source.targets = [7] * 20
    with pytest.raises(DataError, match="labels between 0 and 1"):
        validate(Dataset("mine", "classification", source, Split(torch.zeros(2, 3), torch.tensor([0, 1])), 2))


def test_tensors_are_taken_as_they_are():
    dataset = Dataset("mine", "classification", TensorDataset(torch.zeros(4, 2), torch.zeros(4).long()), Counting(), 2)
    assert not isinstance(dataset.train, LazySplit)
    assert isinstance(dataset.test, LazySplit)
