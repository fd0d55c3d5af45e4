"""Weights, and who is alone at a coordinate, from the last bits of a sum.

A client uploads `weight * value`. Values are floats: whole numbers of steps. Where one client alone contributes, the
sum over its weight is a float again, if the sum is exact; if it was rounded, some floats can be reached from a weight
and others cannot. Both are tried for every weight that comes into question:

1. *lattice*: sum / weight in steps of a float of that size, as an angle. Right weights give whole numbers
2. *bits*: the same in steps 16 times as large, for values whose last bits are not like coins
3. *reach*: whether the sum, as a float, is some float times the weight, rounded; compared with sums that were moved a
   little, of which each weight reaches a part that is its own

A weight and its double have the same lattice, so weights are told up to powers of two. Sums of several clients have
more bits than those of one (`used_bits`), which tells single contributors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_STEP = 2.0**-23
_COARSE = 16.0
_MOVED = 2.0**-20


def odd_part(weight: int) -> int:
    """The weight without its factors of two."""
    return weight // (weight & -weight)


def weight_scores(sums: FloatArray, weights: Sequence[int], draws: np.random.Generator) -> FloatArray:
    """How well each weight explains these sums of one client alone; standard normal if it explains nothing."""
    sizes = np.abs(sums[sums != 0])
    moved = sizes * (1.0 + _MOVED * (draws.random(len(sizes)) - 0.5))
    scores = [lattice_score(sizes, w) + lattice_score(sizes, w, _COARSE) + _reach(sizes, moved, w) for w in weights]
    normal: FloatArray = np.array(scores) / np.sqrt(3.0)
    return normal


def lattice_score(sizes: FloatArray, weight: int, period: float = 1.0) -> float:
    """How near to whole numbers of steps these numbers are, over the weight: standard normal if it is not theirs."""
    values = sizes / weight
    _, exponents = np.frexp(values)
    steps = np.ldexp(values, 1 - exponents) / (_STEP * period)
    return float(np.cos(2.0 * np.pi * steps).sum() * np.sqrt(2.0 / len(steps)))


def _reach(sizes: FloatArray, moved: FloatArray, weight: int) -> float:
    expected = min(float(reachable(moved, weight).mean()), 1.0 - 1.0 / len(sizes))
    found = float(reachable(sizes, weight).mean())
    return (found - expected) * float(np.sqrt(len(sizes) / max(expected * (1.0 - expected), 1.0 / len(sizes))))


def reachable(sizes: FloatArray, weight: int) -> NDArray[np.bool_]:
    """Which of these numbers, as float32, are a float32 times the weight, rounded to float32."""
    wanted = sizes.astype(np.float32)
    middle = (sizes / weight).astype(np.float32)
    near = [np.nextafter(middle, np.float32(-np.inf)), middle, np.nextafter(middle, np.float32(np.inf))]
    found: NDArray[np.bool_] = np.any([(v.astype(np.float64) * weight).astype(np.float32) == wanted for v in near], 0)
    return found


def used_bits(sums: FloatArray) -> NDArray[np.int64]:
    """How many bits there are from the first to the last that is set: few where a number has one float's alone."""
    mantissas, _ = np.frexp(np.abs(sums))
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    lowest = whole & -whole
    found: NDArray[np.int64] = 53 - np.round(np.log2(np.maximum(lowest, 1))).astype(np.int64)
    return found
