"""Models that a server crafts to read samples out of a sum of gradients, and how it reads them.

- bins (Robbing the Fed, Fowl et al. 2022): all units of the first layer look along one direction, each from another
  threshold on. What comes back to them is the same, so neighbouring gradients differ by the samples between their
  thresholds: with one sample there, that sample.
- class fishing (after Wen et al. 2022): what comes back through the head comes through one class's row alone, and that
  class is made so unlikely that nothing comes back but from samples of it. Then bins hold this class only.

A server that sends each client other weights needs neither: weights of zero give no gradient but the head's bias.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from bilateral.models.scale_graph import ScaleGraph

UNLIKELY: Final = 12.0
"""By which logits a fished class is behind."""
_LIVE: Final = 4.0
"""Biases of the layers behind: they pass everything on."""
_PASSED: Final = 0.25
_SMALLEST: Final = 1e-9


def linear_layers(network: nn.Module) -> list[tuple[str, nn.Linear]]:
    """All of them, by path."""
    return [(path, module) for path, module in network.named_modules() if isinstance(module, nn.Linear)]


def with_bins(network: nn.Module, public: Tensor, fished: int | None = None) -> nn.Module:
    """A copy with planted neurons. `public`: samples like the clients', by which thresholds are set."""
    crafted = copy.deepcopy(network)
    layers = [module for _, module in linear_layers(crafted)]
    first, *middle, head = layers
    flat = public.flatten(1).to(first.weight.dtype)
    direction = flat.std(0)
    direction = direction / direction.norm().clamp_min(_SMALLEST)
    places = torch.linspace(0.0, 1.0, first.out_features + 2, dtype=torch.float64)[1:-1]
    thresholds = (flat @ direction).double().quantile(places)
    with torch.no_grad():
        first.weight.copy_(direction.expand_as(first.weight))
        first.bias.copy_(-thresholds)
        for layer in middle:
            layer.weight.fill_(_PASSED / layer.in_features)
            layer.bias.fill_(_LIVE)
        if fished is not None:
            head.weight.zero_()
            head.weight[fished] = 1.0
            head.bias.zero_()
            head.bias[fished] = -UNLIKELY - _LIVE * head.in_features * (1 + _PASSED)
        else:  # what comes back must not cancel: one output alone passes it on
            head.weight.zero_()
            head.weight[0] = 1.0 / head.in_features
            head.bias.zero_()
    return crafted


def read_bins(graph: ScaleGraph, layer: str, gradient: Tensor) -> Tensor:
    """candidates x features: of every two neighbouring thresholds, and of the last unit, what lies beyond them."""
    values = graph.unflatten(gradient)
    rows, biases = values[f"{layer}.weight"].double(), values[f"{layer}.bias"].double()
    rows = torch.cat([rows - torch.cat([rows[1:], rows.new_zeros(1, rows.shape[1])])])
    biases = biases - torch.cat([biases[1:], biases.new_zeros(1)])
    some = biases.abs() > _SMALLEST * biases.abs().max().clamp_min(_SMALLEST)
    return rows[some] / biases[some, None]


def nearest_errors(candidates: Tensor, samples: Sequence[Tensor]) -> list[float]:
    """Of each sample, the relative error of the candidate that is nearest: who looks through them all sees it."""
    found = []
    for sample in samples:
        flat = sample.flatten().double()
        if not len(candidates):
            found.append(1.0)
            continue
        errors = (candidates - flat).norm(dim=1) / flat.norm().clamp_min(_SMALLEST)
        found.append(float(torch.nan_to_num(errors, nan=torch.inf).min()))
    return found
