"""Choosing samples and scaling features, always by statistics of the train split only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bilateral.errors import DataError
from bilateral.randomness import SeededRandomness

TEST_FRACTION = 0.2


def stratified_indices(strata: NDArray[Any], count: int, seed: int, *labels: str) -> NDArray[np.int64]:
    """`count` indices, ascending, in which every stratum keeps its share up to rounding.

    A sample ranked k-th of the n in its stratum sits at (k + 1/2) / n; the `count` lowest are taken.
    Proportions are kept on purpose: equalising the classes of a skewed set would make it another problem.
    """
    order = SeededRandomness(seed, "data", *labels).permutation(len(strata)).numpy()
    _, stratum, sizes = np.unique(strata[order], return_inverse=True, return_counts=True)
    by_stratum = np.argsort(stratum, kind="stable")
    first = np.cumsum(sizes) - sizes
    rank = np.empty(len(order), dtype=np.int64)
    rank[by_stratum] = np.arange(len(order)) - first[stratum[by_stratum]]
    position = (rank + 0.5) / sizes[stratum]
    chosen = order[np.argsort(position, kind="stable")[:count]]
    return np.sort(chosen).astype(np.int64)


def hold_out(strata: NDArray[Any], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of a stratified 80/20 split into train and test; the same for the same seed."""
    num_test = round(TEST_FRACTION * len(strata))
    if not 0 < num_test < len(strata):
        raise DataError(
            f"Expected enough samples for an 80/20 split, got {len(strata)}.",
            remedy="Give a file with at least 3 samples.",
        )
    test = stratified_indices(strata, num_test, seed, "hold-out")
    train = np.setdiff1d(np.arange(len(strata)), test)
    return train, test


def limit(strata: NDArray[Any], count: int | None, option: str, seed: int) -> NDArray[np.int64]:
    """The indices kept by the option `num_train` or `num_test`: all of them if it is None."""
    available = len(strata)
    if count is None:
        return np.arange(available)
    if not isinstance(count, int) or not 1 <= count <= available:
        raise DataError(
            f"Expected {option} between 1 and {available} (the samples there are), got {count!r}.",
            remedy=f"Lower {option}, or leave it out to use all samples.",
        )
    return stratified_indices(strata, count, seed, option)


def standardise(train: Tensor, test: Tensor, dims: tuple[int, ...] = (0,)) -> tuple[Tensor, Tensor]:
    """Both splits with the train split's mean removed and its standard deviation divided out, over `dims`.

    A feature that is constant in the train split has no scale of its own: it is centred only.
    """
    deviation, mean = torch.std_mean(train, dim=dims, correction=0, keepdim=True)
    # Rounding can leave a constant column with a tiny deviation: dividing by it would amplify noise.
    negligible = deviation <= 1e-6 * mean.abs()
    scale = torch.where(negligible | (deviation == 0), torch.ones_like(deviation), deviation)
    return (train - mean).div_(scale), (test - mean).div_(scale)


def shrunk(images: Tensor, factor: int, option: str) -> Tensor:
    """Images (NCHW) with blocks of `factor` pixels either way averaged; `option` is what an error calls the factor."""
    if factor == 1:
        return images
    if not isinstance(factor, int) or factor < 1 or images.ndim != 4 or min(images.shape[2:]) < factor:
        raise DataError(
            f"Expected {option} from 1 to the size of the images, which are {list(images.shape[1:])}, got {factor!r}.",
            remedy=f"Lower {option}, or leave it out.",
        )
    return F.avg_pool2d(images, factor)
