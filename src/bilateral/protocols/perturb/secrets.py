"""The server's secrets of one round, drawn afresh every round.

Never sent, except for the group secrets where clients compute the softmax themselves (`tells_noise`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.calibration import Calibration
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import Randomness

DrawFactors = Callable[[ScaleGraph, tuple[float, float], Randomness], Tensor]
"""Draws one positive number per scale class from (graph, scale range, randomness); class 0 must be 1."""


LARGEST_NOISE_ON_WEIGHTS = 2.0
"""Activation noise over the root mean square of the perturbed head's weights, at a noise ratio of 1."""


@dataclass(frozen=True, repr=False)
class RoundSecrets:
    """Scale factors, exchange of neurons and additive noise. `repr` is off so that no log shows them."""

    scale_factors: Tensor
    exchange: Tensor
    ratio: Tensor
    source: Tensor
    group_secrets: Tensor
    group_blinders: Tensor
    output_directions: Tensor
    partition: Tensor

    @property
    def output_noise(self) -> Tensor:
        """r = gamma[group] * r_a"""
        return self.group_secrets[self.partition] * self.output_directions


def log_uniform_factors(graph: ScaleGraph, scale_range: tuple[float, float], randomness: Randomness) -> Tensor:
    """Scale factors in `scale_range`, every octave equally likely; class 0 is 1.

    In a graph with `norm_inputs = "scaled"` they are at least 1 before a normalisation; in others class 0 is there.
    """
    low, high = scale_range
    factors = randomness.log_uniform(graph.num_scale_classes, low=low, high=high)
    # eps acts as eps / scale^2 on a normalised channel: a factor below 1 would enlarge it.
    factors[graph.normalised_classes] = factors[graph.normalised_classes] / low
    factors[0] = 1.0
    return factors


def draw_scaling(
    graph: ScaleGraph,
    scale_range: tuple[float, float],
    permute: bool,
    randomness: Randomness,
    *,
    exact_eps: bool = False,
    draw_factors: DrawFactors = log_uniform_factors,
) -> tuple[Tensor, Tensor]:
    """Scale factors (see `log_uniform_factors`) and an exchange of neurons.

    Factors of derived classes follow from the others, whatever was drawn for them.
    `exact_eps` gives factor 1 to what enters a GroupNorm or LayerNorm, so that their eps acts as in the true model.
    """
    factors = draw_factors(graph, scale_range, randomness)
    if exact_eps:
        factors[graph.per_sample_norm_classes] = 1.0
    factors = graph.derived.complete(factors)
    if not permute:
        return factors, torch.arange(graph.cells.num_neurons)
    return factors, graph.cells.draw(randomness)


def draw_secrets(
    graph: ScaleGraph,
    settings: PerturbationSettings,
    calibration: Calibration,
    randomness: Randomness,
    draw_factors: DrawFactors = log_uniform_factors,
) -> RoundSecrets:
    """All secrets of a round; the additive noise is sized by `calibration` (spec 1.5)."""
    factors, exchange = draw_scaling(
        graph, settings.scale_range, settings.permute, randomness, draw_factors=draw_factors
    )
    m, outputs = settings.num_partitions, graph.num_outputs
    # Directions and group secrets stay away from 0, so that no output goes without noise.
    directions = randomness.signs(outputs) * randomness.uniform(outputs, low=0.5, high=1.5)
    partition = torch.arange(outputs)[randomness.permutation(outputs)] % m
    spread = randomness.signs(m) * randomness.log_uniform(m, low=0.5, high=2.0)
    size = noise_size(settings, calibration, factors[graph.head_input_classes]) / _root_mean_square(directions)
    return RoundSecrets(
        scale_factors=factors,
        exchange=exchange,
        ratio=graph.ratio(factors),
        source=graph.source(exchange),
        group_secrets=size * spread,
        group_blinders=randomness.signs(m) * randomness.log_uniform(m, low=0.5, high=2.0),
        output_directions=directions,
        partition=partition,
    )


def noise_size(settings: PerturbationSettings, calibration: Calibration, scale: Tensor) -> float:
    """How large noise on the head is, as a root mean square: on the outputs `noise_ratio` times the logits' spread.

    Activation noise lies on the head's weights and is never much larger than they are: where the head's inputs are
    almost 0, or sum to almost 0, noise of the logits' size would dwarf what is passed back through those weights.
    `scale` holds the factors of the head's inputs.
    The group secrets themselves vary around the result by a factor of 2 either way: their size must not be a known
    number.
    """
    size = calibration.logit_spread
    if settings.noise == "activation":
        largest = LARGEST_NOISE_ON_WEIGHTS * _root_mean_square(calibration.head_weight_sizes / scale)
        carrier = _root_mean_square(calibration.head_inputs @ scale)
        size = min(size / carrier, largest) if carrier > 0.0 else largest
    return settings.noise_ratio * size


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
