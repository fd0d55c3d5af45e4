"""Exact inversion of a first linear layer: its weight's gradient is (error of each unit) x (input), the bias's is the
error, so every row over its bias is the input. With several samples behind the gradient, a row is a mixture of the
samples that switch its unit on; a unit that one sample alone switches on still shows that sample.

Formal guarantee (test_analytic.py): for a batch of one the input is found up to rounding, with and
without a bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bilateral.audit.topics.inversion.attacks.gradient_matching import GradientModel
from bilateral.models.scale_graph import ScaleGraph

NUM_LENGTHS = 41
NUM_REFINEMENTS = 5
"""Each is a grid around the best of the one before, 20 times finer."""


def first_linear(network: nn.Module, input_shape: tuple[int, ...]) -> str | None:
    """The path of a Linear that is given the network's input as it is (flattened at most), or None."""
    probe = torch.arange(1, 1 + torch.Size(input_shape).numel(), dtype=next(network.parameters()).dtype)
    found: list[str] = []
    handles = [
        module.register_forward_hook(_note(path, probe, found))
        for path, module in network.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            network(probe.view(1, *input_shape))
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _note(path: str, probe: Tensor, found: list[str]) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        if inputs[0].numel() == probe.numel() and torch.equal(inputs[0].flatten(), probe):
            found.append(path)

    return hook


def row_candidates(graph: ScaleGraph, layer: str, gradient: Tensor) -> Tensor:
    """units x features: every unit's row over its bias, units with the largest errors first. Needs a bias."""
    values = graph.unflatten(gradient)
    rows, biases = values[f"{layer}.weight"].double(), values[f"{layer}.bias"].double()
    order = biases.abs().argsort(descending=True)
    order = order[biases[order] != 0]
    return rows[order] / biases[order, None]


def has_bias(graph: ScaleGraph, layer: str) -> bool:
    return any(parameter.name == f"{layer}.bias" for parameter in graph.parameters)


def invert_row(graph: ScaleGraph, layer: str, gradient: Tensor) -> Tensor:
    """The input of a batch of one, from the unit with the largest error; zeros if no unit has any."""
    candidates = row_candidates(graph, layer, gradient)
    if len(candidates):
        return candidates[0]
    return torch.zeros(graph.layout(f"{layer}.weight").shape[1], dtype=torch.float64)


def input_direction(graph: ScaleGraph, layer: str, gradient: Tensor) -> Tensor:
    """The input of a batch of one up to its length and sign: the gradient has one row in many multiples."""
    rows = graph.unflatten(gradient)[f"{layer}.weight"].double()
    direction: Tensor = torch.linalg.svd(rows, full_matrices=False).Vh[0]
    return direction


def invert_without_bias(
    model: GradientModel,
    layer: str,
    parameters: Tensor,
    gradient: Tensor,
    target: Tensor,
    lengths: tuple[float, float],
    input_shape: tuple[int, ...],
) -> Tensor:
    """The input of a batch of one, flat: its direction, with the length and sign whose gradient fits best.

    `lengths`: the shortest and the longest that public samples have. `target`: as read (`labels`).
    """
    direction = input_direction(model.graph, layer, gradient).to(gradient.dtype)
    low, high = lengths
    signs: tuple[float, ...] = (1.0, -1.0)
    for _ in range(NUM_REFINEMENTS):
        grid = torch.logspace(math.log10(low), math.log10(high), NUM_LENGTHS, dtype=gradient.dtype)
        guesses = torch.cat([sign * grid for sign in signs])[:, None] * direction
        with torch.no_grad():
            found = model.gradients(
                parameters.expand(len(guesses), -1),
                guesses.view(len(guesses), 1, *input_shape),
                target.expand(len(guesses), 1, -1),
            )
        best = guesses[int((found - gradient).norm(dim=1).argmin())]
        length, step = float(best.norm()), (high / low) ** (1 / (NUM_LENGTHS - 1))
        low, high = length / step, length * step
        signs = (math.copysign(1.0, float(best @ direction)),)
    return best
