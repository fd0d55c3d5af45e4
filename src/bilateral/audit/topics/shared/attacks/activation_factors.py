"""The querying party factors blinded numbers, and reads activations and weights exactly (ledger, line 5).

P4 blinds with a factor: u = k t + (k + 1) / 2, so 2u - 1 = k (2t + 1). Whoever sees one activation under two factors
takes the greatest common divisor, which is 2t + 1 times the common divisor of the factors: 1 with probability
8 / pi^2 = 0.81, since they are odd. Truncation rounds at random, so t may differ by a few units from view to view, and
such pairs have small divisors or none: the divisor is taken that is least likely to be an accident.

The hardened offset is random between zero and the factor. Nothing divides then, and the order hides which to compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from bilateral.protocols.share.circuit.description import FRACTION_BITS, VALUE_BITS

_LARGEST = 1 << (VALUE_BITS + FRACTION_BITS + 1)
"""Compared numbers are bounded, so a divisor beyond this has a part of a factor in it."""


def read_exactly(views: Sequence[Tensor]) -> Tensor:
    """t of one comparison, from u in two or more views of the same queries."""
    odd = np.stack([2 * view.numpy() - 1 for view in views])
    divisors = np.stack([np.gcd(odd[i], odd[j]) for i, j in combinations(range(len(odd)), 2)])
    doubled = _best_divisors(divisors)
    signed = np.where(np.sign(odd).sum(0) < 0, -doubled, doubled)
    return torch.from_numpy((signed - 1) // 2)


def _best_divisors(divisors: np.ndarray) -> np.ndarray:
    """Of the divisors of all pairs (first axis) the one with the most evidence.

    Two random numbers have the common divisor d with a probability of about 1 / d^2, so each pair that d divides counts
    log d.
    """
    best, most = np.ones(divisors.shape[1:], dtype=np.int64), np.zeros(divisors.shape[1:])
    for candidate in divisors:
        evidence = (divisors % candidate == 0).sum(0) * np.log(candidate)
        is_better = (evidence > most) & (candidate < _LARGEST)
        best, most = np.where(is_better, candidate, best), np.where(is_better, evidence, most)
    return best


def dotted_queries(shape: tuple[int, ...]) -> Tensor:
    """A black image, then each pixel alone at 1: their first-layer numbers are the bias, then bias plus one weight."""
    size = int(np.prod(shape))
    return torch.cat([torch.zeros(1, size), torch.eye(size)]).reshape(size + 1, *shape)


def first_layer(views: Sequence[Tensor]) -> Tensor:
    """The weights and biases (neurons, inputs + 1; biases last) of a dense first layer that is followed by a ReLU.

    `views`: the first comparison's u, for `dotted_queries` asked several times. Fixed point, as floats.
    """
    numbers = read_exactly(views).double() / 2**FRACTION_BITS
    bias, rest = numbers[0], numbers[1:]
    return torch.cat([(rest - bias).T, bias[:, None]], dim=1)
