"""Two real digits side by side, and which digits these are: several labels a picture, without a download."""

from __future__ import annotations

import torch
from torch import Tensor

from bilateral.data.dataset import Dataset, Split
from bilateral.data.embedded import load_digits
from bilateral.errors import DataError
from bilateral.randomness import SeededRandomness

NUM_DIGITS = 10


def load_digit_pairs(*, num_train: int = 2000, num_test: int = 500, seed: int = 0) -> Dataset:
    """Pictures of 1x8x16, and for each of the ten digits whether it is in there: once, or twice, which is one label.

    Pairs are drawn at random; those to train on from digits that are in no pair to test on.
    """
    for name, count in (("num_train", num_train), ("num_test", num_test)):
        if type(count) is not int or count < 1:
            raise DataError(f"Expected {name} to be a positive integer, got {count!r}.", remedy="Try 500.")
    digits = load_digits(seed=seed)
    return Dataset(
        "digit-pairs",
        "multi-label",
        _pairs(digits.train, num_train, SeededRandomness(seed, "pairs", "train")),
        _pairs(digits.test, num_test, SeededRandomness(seed, "pairs", "test")),
        NUM_DIGITS,
        digits.class_names,
    )


def _pairs(singles: Split, count: int, randomness: SeededRandomness) -> Split:
    left, right = (_drawn(len(singles), count, randomness.child(side)) for side in ("left", "right"))
    marks = torch.zeros(count, NUM_DIGITS)
    for side in (left, right):
        marks[torch.arange(count), singles.targets[side]] = 1.0
    return Split(torch.cat([singles.inputs[left], singles.inputs[right]], dim=3), marks)


def _drawn(available: int, count: int, randomness: SeededRandomness) -> Tensor:
    return (randomness.uniform(count) * available).long()
