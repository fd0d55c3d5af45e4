"""Which distribution each scale factor has, and what a client must add to it: P2's Eqs. (13) and (14) for any network.

Theorem 3 splits a normal number into uniform noise and DN*(1), or two DN*(2): count DN*(1) as two *halves*, DN*(2) as
one. A parameter's ratio is `r * s`: `r` is the scale class above the line (its layer's output), `1 / s` the one below
(its layer's input). After `expand` no class is on both sides, and

    r   two halves if no parameter has it together with an s (first layer, normalisation), else one
    s   two halves if no parameter has it together with an r (the head), else one

    weights: two halves         biases behind a hidden layer: one         the head's bias, PReLU: none (ratio 1)

P2 has weights only. So that the theorem also holds for the others, the client multiplies its own noise for such an
element by the missing halves (`missing_halves`, public knowledge).

Formal guarantee (tests/protocols/noise/test_published_factors.py): for every trained element of an expanded network,
ratio times client's noise is normal with standard deviation sigma over the random draw of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bilateral.errors import ModelError
from bilateral.models.scale_graph import ParameterLayout, ScaleGraph
from bilateral.models.transitional import is_transitional
from bilateral.protocols.noise.distributions import scale_factors
from bilateral.protocols.perturb.secrets import log_uniform_factors
from bilateral.randomness import Randomness

WHOLE = 2
"""Halves of a factor that make uniform noise normal."""


@dataclass(frozen=True)
class FactorPlan:
    """For each scale class how many halves its factor has, and on which side it stands; holds no secrets."""

    halves: Tensor
    """Per class: 2 for DN*(1), 1 for DN*(2), 0 if the class is in no trained parameter's ratio."""
    below: Tensor
    """Classes below the line: their factor is 1 / s."""

    @staticmethod
    def of(graph: ScaleGraph) -> FactorPlan:
        """Read the plan off an expanded network's graph."""
        numerators, denominators = _distinct_pairs(graph)
        above = torch.unique(numerators[numerators != 0])
        below = torch.unique(denominators[denominators != 0])
        both = above[torch.isin(above, below)]
        if len(both):
            raise ModelError(
                f"{_name_of(graph, int(both[0]))} makes a factor that also divides another layer's weights.",
                remedy="Put transitional layers into the model first (`expand`).",
            )
        paired = (numerators != 0) & (denominators != 0)
        halves = torch.zeros(graph.num_scale_classes, dtype=torch.int64)
        for classes, side in ((above, numerators), (below, denominators)):
            halves[classes] = torch.where(torch.isin(classes, side[paired]), 1, WHOLE)
        return FactorPlan(halves, below)

    def draw(self, graph: ScaleGraph, scale_range: tuple[float, float], randomness: Randomness) -> Tensor:
        """Scale factors of a round (P2 Eq. 13). A class that only enters normalisation layers is drawn as usual:
        no parameter's ratio has it, and at least 1 keeps their eps small."""
        factors = log_uniform_factors(graph, scale_range, randomness)
        for halves in (1, WHOLE):
            classes = torch.nonzero(self.halves == halves)[:, 0]
            factors[classes] = scale_factors(WHOLE // halves, len(classes), randomness)
        factors[self.below] = 1.0 / factors[self.below]
        return factors

    def missing_halves(self, graph: ScaleGraph) -> Tensor:
        """For every element of the flat vector, how many halves the client must supply (transitional layers: 0)."""
        parts = []
        for layout in graph.parameters:
            found = torch.zeros(layout.shape, dtype=torch.int8)
            if not is_transitional(layout.kind):
                above, below = _sides(layout)
                found = found + (WHOLE - self.halves[above] - self.halves[below]).to(torch.int8)
            parts.append(found.reshape(-1))
        return torch.cat(parts)


def _sides(layout: ParameterLayout) -> tuple[Tensor, Tensor]:
    """Classes above and below the line, in shapes that broadcast to the parameter's; 0 where there is none."""
    binding, none = layout.binding, torch.zeros((), dtype=torch.int64)
    if binding is None:
        return none, none
    return (
        none if binding.numerator is None else binding.numerator,
        none if binding.denominator is None else binding.denominator,
    )


def _named_sides(graph: ScaleGraph) -> Iterator[tuple[ParameterLayout, Tensor, Tensor]]:
    for layout in graph.parameters:
        if not is_transitional(layout.kind):
            above, below = _sides(layout)
            shape = np.broadcast_shapes(above.shape, below.shape)
            yield layout, above.expand(shape), below.expand(shape)


def _distinct_pairs(graph: ScaleGraph) -> tuple[Tensor, Tensor]:
    """All (class above, class below) of trained parameters, each pair once."""
    count = graph.num_scale_classes
    codes = [torch.unique(above * count + below) for _, above, below in _named_sides(graph)]
    joined = torch.unique(torch.cat(codes))
    return joined // count, joined % count


def _name_of(graph: ScaleGraph, scale_class: int) -> str:
    return next(f"`{layout.name}`" for layout, above, _ in _named_sides(graph) if bool((above == scale_class).any()))
