"""Relative parameter error as a test needs it: over parts of the network that share no secret.

The weights into two neurons of a layer are off by the same wrong factors of the layer before: as trials they would be
copies of one another, and a test would take one piece of luck for many. So the scale classes are dealt out to
`NUM_PARTS` parts, and a part's error is that of the weights whose classes all belong to it. The server draws every
factor by itself: for whoever guesses without knowing the factors, the errors of parts are independent.

Of the weights between two hidden layers only one in `NUM_PARTS` lies inside a part. It counts for all of them, so that
the mean over parts is the relative error of the whole network, up to sampling.

Tested (tests/audit/topics/model/test_parameter_parts.py): zeros, parameters as they come, and other factors (shrunk or
not) are not called better than `guess_by_range`. It has the least expected *squared* error, and the test compares means
of errors, which are skewed: a fixed multiple slightly above it is called better in up to some 2 % of draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.audit.scores import PARAMETER_ERROR, Scores
from bilateral.models.scale_graph import ScaleGraph

NUM_PARTS = 16


def part_errors(graph: ScaleGraph, guess: Tensor, truth: Tensor) -> Scores:
    """Relative errors of the parts that have any parameters."""
    ends = _Ends.of(graph)
    above, below = (ends.above - 1) % NUM_PARTS, (ends.below - 1) % NUM_PARTS
    is_hidden = (ends.above > 0) & (ends.below > 0)
    inside = torch.where(is_hidden, above == below, (ends.above > 0) | (ends.below > 0))
    part = torch.where(ends.above > 0, above, below)[inside]
    counts_for = torch.where(is_hidden & (ends.above != ends.below), float(NUM_PARTS), 1.0)[inside]

    def sums(values: Tensor) -> Tensor:
        return torch.bincount(part, counts_for * values[inside].double().square(), minlength=NUM_PARTS)

    wrong, there = sums(guess - truth), sums(truth)
    return Scores(PARAMETER_ERROR, tuple((wrong / there)[there > 0].sqrt().tolist()))


def guess_by_range(graph: ScaleGraph, received: Tensor, scale_range: tuple[float, float]) -> Tensor:
    """The parameters with the least expected squared error for who knows the range of the factors alone.

    A parameter arrives as r times its value, so the best multiple of what arrives is E[r] / E[r^2]. This shrinks it:
    with the middle of the range for every factor (a multiple of 1), even a guess of all zeros would be "better".
    """
    ends = _Ends.of(graph)

    def mean_of_power(power: int) -> Tensor:
        return _moments(graph, scale_range, power)[ends.above] * _moments(graph, scale_range, -power)[ends.below]

    multiple = torch.where(ends.above == ends.below, 1.0, mean_of_power(1) / mean_of_power(2))
    return received.double() * multiple


def _moments(graph: ScaleGraph, scale_range: tuple[float, float], power: int) -> Tensor:
    """E[s^power] of every scale class, for factors as `protocols.perturb.secrets.log_uniform_factors` draws them."""
    low, high = scale_range
    one = low**power if low == high else (high**power - low**power) / (power * math.log(high / low))
    found = torch.full((graph.num_scale_classes,), one, dtype=torch.float64)
    found[graph.normalised_classes] /= low**power
    found[0] = 1.0
    return found


@dataclass(frozen=True)
class _Ends:
    """The scale classes of every parameter, flat: what it is multiplied with, and divided by."""

    above: Tensor
    below: Tensor

    @staticmethod
    def of(graph: ScaleGraph) -> _Ends:
        none = torch.zeros((), dtype=torch.int64)
        above, below = [], []
        for layout in graph.parameters:
            binding = layout.binding
            numerator = none if binding is None or binding.numerator is None else binding.numerator
            denominator = none if binding is None or binding.denominator is None else binding.denominator
            above.append(numerator.expand(layout.shape).reshape(-1))
            below.append(denominator.expand(layout.shape).reshape(-1))
        return _Ends(torch.cat(above), torch.cat(below))
