"""Which values of a gradient a client shares, and with what noise (Shokri and Shmatikov 2015)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bilateral.randomness import Randomness

QUERY_SHARE = 8 / 9
ANSWER_SHARE = 2 / 9
"""Of epsilon, as published: for choosing values, and for the values themselves. They add up to more than it."""


def largest(values: Tensor, fraction: float) -> Tensor:
    """Whether each value is among the largest `fraction` in absolute value; at least one is."""
    count = max(1, round(fraction * values.numel()))
    chosen = torch.zeros_like(values, dtype=torch.bool)
    chosen[values.abs().topk(count).indices] = True
    return chosen


def share_largest(values: Tensor, fraction: float, bound: float, variance: float, randomness: Randomness) -> Tensor:
    """The largest values, bounded, with Gaussian noise on those alone; all others are 0."""
    noise = math.sqrt(variance) * randomness.normal(values.numel()).to(values.dtype)
    return torch.where(largest(values, fraction), values.clamp(-bound, bound) + noise, torch.zeros_like(values))


def share_by_sparse_vectors(
    values: Tensor, fraction: float, bound: float, threshold: float, epsilon: float, randomness: Randomness
) -> Tensor:
    """Values whose noisy size is above a noisy threshold, in random order, up to `fraction` of all; others are 0.

    One noise for the threshold is drawn for each value that is shared, as published.
    """
    count = max(1, round(fraction * values.numel()))
    sensitivity = 2 * bound
    query_scale = 2 * count * sensitivity / (QUERY_SHARE * epsilon)
    answer_scale = 2 * count * sensitivity / (ANSWER_SHARE * epsilon)
    bounded = values.double().clamp(-bound, bound)
    order = randomness.permutation(values.numel())
    queries = bounded[order].abs() + laplace(randomness, 2 * query_scale, values.numel())
    thresholds = threshold + laplace(randomness, query_scale, count)
    shared = torch.zeros_like(bounded)
    answers = (bounded + laplace(randomness, answer_scale, values.numel())).clamp(-bound, bound)
    place, used = 0, 0
    while used < count:
        above = torch.nonzero(queries[place:] >= thresholds[used])
        if not len(above):
            break
        place += int(above[0])
        shared[order[place]] = answers[order[place]]
        place, used = place + 1, used + 1
    return shared.to(values.dtype)


def laplace(randomness: Randomness, scale: float, count: int) -> Tensor:
    """Laplace noise of this scale."""
    drawn = randomness.uniform(count, low=-0.5, high=0.5)
    return -scale * drawn.sign() * torch.log1p(-2 * drawn.abs())
