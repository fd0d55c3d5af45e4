"""The permutation test of two means, with the draws kept: they depend on how many scores there are, on nothing else.

Formal guarantee (tests/audit/test_permutations.py): the p-value is that of `scipy.stats.permutation_test` with the same
generator, ties that rounding decides included. SciPy draws ten thousand permutations anew for every row of every audit.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES: Final = 9999
FloatArray = NDArray[np.float64]

_TOLERANCE: Final = 100 * float(np.finfo(np.float64).eps)
"""Relative: means that are equal in theory, and were added up in another order, are equal."""


def chance_of_a_larger_mean(ours: FloatArray, theirs: FloatArray, *, paired: bool) -> float:
    """How often the mean of ours is at least so much above that of theirs if nobody knows which are whose.

    Signs of differences are flipped if paired, otherwise scores change sides: in every way if there are few enough,
    otherwise in `NUM_RESAMPLES` drawn ones, and as it is.
    """
    observed = float(np.mean(ours) - np.mean(theirs))
    differences, is_exact = _paired(ours, theirs) if paired else _independent(ours, theirs)
    as_large = int(np.count_nonzero(differences >= observed - abs(_TOLERANCE * observed)))
    added = 0 if is_exact else 1
    return min(1.0, (as_large + added) / (len(differences) + added))


def _paired(ours: FloatArray, theirs: FloatArray) -> tuple[FloatArray, bool]:
    count = len(ours)
    is_exact = 2**count <= NUM_RESAMPLES
    swapped = _all_swaps(count) if is_exact else _drawn_swaps(count)
    both = np.empty((*swapped.shape, 2))  # laid out as SciPy does: the order of additions decides ties
    both[..., 0] = np.where(swapped, theirs[:, None], ours[:, None])
    both[..., 1] = np.where(swapped, ours[:, None], theirs[:, None])
    first, second = both[..., 0].T, both[..., 1].T
    return np.mean(first, axis=-1) - np.mean(second, axis=-1), is_exact


def _independent(ours: FloatArray, theirs: FloatArray) -> tuple[FloatArray, bool]:
    whole, count = np.concatenate([ours, theirs]), len(ours)
    is_exact = math.comb(len(whole), count) <= NUM_RESAMPLES
    orders = _all_partitions(len(whole), count) if is_exact else _drawn_orders(len(whole))
    mixed = whole[orders]
    return np.mean(mixed[:, :count], axis=1) - np.mean(mixed[:, count:], axis=1), is_exact


@lru_cache(maxsize=8)
def _drawn_swaps(count: int) -> NDArray[np.bool_]:
    """Which pairs change places, (count, resamples)."""
    pairs = np.tile(np.arange(2), (NUM_RESAMPLES, count, 1))
    drawn = np.random.default_rng(0).permuted(pairs, axis=-1)
    return np.ascontiguousarray(drawn[:, :, 0].T == 1)


@lru_cache(maxsize=8)
def _drawn_orders(count: int) -> NDArray[np.intp]:
    draws = np.random.default_rng(0)
    return np.array([draws.permutation(count) for _ in range(NUM_RESAMPLES)])


@lru_cache(maxsize=8)
def _all_swaps(count: int) -> NDArray[np.bool_]:
    return np.array(list(product((False, True), repeat=count))).T


@lru_cache(maxsize=8)
def _all_partitions(count: int, first: int) -> NDArray[np.intp]:
    chosen = [(*some, *sorted(set(range(count)) - set(some))) for some in combinations(range(count), first)]
    return np.array(chosen)
