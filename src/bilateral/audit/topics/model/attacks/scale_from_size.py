"""Undoing the scaling: what a client gets from knowing how networks are initialised, and how factors are drawn.

*From sizes, in one round* (`guess_scale`). A client knows that initial weights are drawn with a public variance `v` a
layer (He et al.), and that training changes sizes little. A received weight has variance `v (s_out / s_in)^2`; with
t = log s, all weights together have the likelihood

    sum over weights of   t_out - t_in  +  w^2 exp(-2 (t_out - t_in)) / (2 v)

which is convex in t, and has as many equations as a neuron has weights: wide layers pin their factors down. Sizes that
training has changed come in as one unknown factor a layer, since factors are drawn around 1 in a known range.
Where it is balanced the same sum knows what gradient flow conserves, `|w_in|^2 - |w_out|^2` of a neuron: weights into
and out of a neuron grow together, and pull its factor in opposite directions.

*From rounds* (`factors_from_rounds`). Factors are drawn afresh every round, in a public range, and parameters change
little from round to round. A client that follows a neuron (`parameter_symmetry.follow`) sees its size times a number
that is uniform in the logarithm: the middle of the largest and the smallest size it saw is the true size, to the range
divided by the number of rounds. This needs no knowledge of the initial weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.audit.topics.model.attacks.parameter_symmetry import canonical_factors, follow
from bilateral.models.scale_graph import ParameterLayout, ScaleGraph

_GROWTH = 0.25
"""How far (as a standard deviation of the logarithm) training may change the size of a layer's weights."""

_DRIFT = 0.02
"""How far training moves the size of a neuron over the rounds that are compared, as a guess."""


@dataclass(frozen=True)
class ScaleGuess:
    """Guessed factors of the places of a received network, and its parameters without them (in its own order)."""

    scale_factors: Tensor
    parameters: Tensor


@dataclass(frozen=True)
class FactorPrior:
    """Where the logarithms of the factors lie, and how far off they may be, one a scale class."""

    centre: Tensor
    spread: Tensor

    def factors(self) -> Tensor:
        """The factors in the middle; class 0 is 1."""
        return torch.cat([torch.ones(1, dtype=torch.float64), self.centre[1:].exp()])

    @staticmethod
    def of_range(graph: ScaleGraph, scale_range: tuple[float, float]) -> FactorPrior:
        """What everybody knows: factors are log-uniform in the plan's range, shifted before normalisation layers."""
        low, high = map(math.log, scale_range)
        centre = torch.full((graph.num_scale_classes,), (low + high) / 2, dtype=torch.float64)
        centre[graph.normalised_classes] -= low
        return FactorPrior(centre, torch.full_like(centre, (high - low) / math.sqrt(12.0)))


def factors_from_rounds(graph: ScaleGraph, received: Sequence[Tensor], scale_range: tuple[float, float]) -> FactorPrior:
    """The factors of the last of these models, by following its neurons through the others (all without head noise)."""
    last, public = received[-1].double(), FactorPrior.of_range(graph, scale_range)
    sizes = [canonical_factors(graph, last).log()]
    for earlier in received[:-1]:
        aligned = earlier.double()[graph.source(follow(graph, earlier, last))]
        sizes.append(canonical_factors(graph, aligned).log())
    seen = torch.stack(sizes)
    middle = 0.5 * (seen.max(0).values + seen.min(0).values)
    count, width = len(seen), math.log(scale_range[1] / scale_range[0])
    # The middle of n uniform numbers is that exact; what training moved in the meantime comes on top.
    spread = max(width / math.sqrt(2.0 * (count + 1) * (count + 2)), _DRIFT)
    return FactorPrior(sizes[0] - middle + public.centre, torch.full_like(middle, spread))


def guess_scale(graph: ScaleGraph, parameters: Tensor, prior: FactorPrior) -> ScaleGuess:
    """Factors by maximum likelihood from the sizes of weights. `parameters` are received ones, without head noise."""
    weights = [p for p in graph.parameters if _is_weight(p)]
    layers = [_Layer.of(graph, p, parameters) for p in weights]
    centre, spread = prior.centre, prior.spread
    t = centre.clone().requires_grad_()
    growth = torch.zeros(len(layers), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([t, growth], max_iter=200, line_search_fn="strong_wolfe", tolerance_change=1e-9)

    def loss() -> Tensor:
        optimiser.zero_grad()
        free = torch.cat([torch.zeros(1, dtype=torch.float64), t[1:]])
        total = 0.5 * ((free - centre) / spread)[1:].square().sum() + 0.5 * (growth / _GROWTH).square().sum()
        for number, layer in enumerate(layers):
            total = total + layer.surprise(free, growth[number])
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    factors = t.detach().exp()
    factors[0] = 1.0
    return ScaleGuess(factors, parameters.double() / graph.ratio(factors))


def initial_variance(graph: ScaleGraph, layout: ParameterLayout) -> float:
    """Of a weight of the zoo's networks: He for ReLU; torch's default for the head. Public knowledge."""
    fan_in = layout.shape[1:].numel()
    return 1.0 / (3.0 * fan_in) if layout.name == graph.head_weight.name else 2.0 / fan_in


@dataclass(frozen=True)
class _Layer:
    """Squares of a layer's weights in units of their initial variance, and the classes on both sides."""

    squares: Tensor
    above: Tensor
    below: Tensor

    @staticmethod
    def of(graph: ScaleGraph, layout: ParameterLayout, parameters: Tensor) -> _Layer:
        binding = layout.binding
        assert binding is not None
        none = torch.zeros((), dtype=torch.int64)
        above = none if binding.numerator is None else binding.numerator
        below = none if binding.denominator is None else binding.denominator
        values = parameters[layout.slice].double().square() / initial_variance(graph, layout)
        pairs = (above * graph.num_scale_classes + below).expand(layout.shape).reshape(-1)
        found, place = torch.unique(pairs, return_inverse=True)
        sums = torch.zeros(len(found), dtype=torch.float64).index_add_(0, place, values)
        counts = torch.bincount(place, minlength=len(found)).double()
        return _Layer(torch.stack([counts, sums]), found // graph.num_scale_classes, found % graph.num_scale_classes)

    def surprise(self, t: Tensor, growth: Tensor) -> Tensor:
        """Minus the log-likelihood of the layer's weights, up to a constant."""
        counts, sums = self.squares
        log_ratio = t[self.above] - t[self.below] + growth
        found: Tensor = (counts * log_ratio + 0.5 * sums * torch.exp(-2 * log_ratio)).sum()
        return found


def _is_weight(layout: ParameterLayout) -> bool:
    return layout.binding is not None and layout.binding.inputs is not None
