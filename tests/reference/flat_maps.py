"""The maps of bilateral.models.flat_maps, parameter by parameter and place by place."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from bilateral.models.scale_graph import ScaleGraph, positions


def slow_ratio(graph: ScaleGraph, scale_factors: Tensor) -> Tensor:
    """perturbed / plain, one element after the other."""
    result = []
    for p in graph.parameters:
        for index in itertools.product(*[range(n) for n in p.shape]):
            ratio = 1.0
            if p.binding is not None and p.binding.numerator is not None:
                ratio *= float(scale_factors[p.binding.numerator.expand(p.shape)[index]])
            if p.binding is not None and p.binding.denominator is not None:
                ratio /= float(scale_factors[p.binding.denominator.expand(p.shape)[index]])
            result.append(ratio)
    return torch.tensor(result, dtype=torch.float64)


def slow_source(graph: ScaleGraph, exchange: Tensor) -> Tensor:
    """For each perturbed element, the flat index of the plain element, one element after the other."""
    result = []
    for p in graph.parameters:
        binding = p.binding
        flat = torch.arange(p.numel).reshape(p.shape)
        if binding is None or binding.outputs is None:
            result += [p.offset + i for i in range(p.numel)]
            continue
        out = positions(binding.outputs, exchange).tolist()
        if binding.inputs is None:
            result += [p.offset + place for place in out]
            continue
        into = positions(binding.inputs, exchange).tolist()
        rows, columns = (into, out) if binding.transposed else (out, into)
        rows_per_group, columns_per_group = len(rows) // binding.groups, len(columns) // binding.groups
        for row in range(len(rows)):
            group = row // rows_per_group
            for column in range(columns_per_group):
                plain_column = columns[group * columns_per_group + column] % columns_per_group
                plain = flat[rows[row], plain_column].reshape(-1).tolist()
                result += [p.offset + index for index in plain]
    return torch.tensor(result)


def slow_unscale(graph: ScaleGraph, statistics: Tensor, scale_factors: Tensor, exchange: Tensor) -> Tensor:
    """Means over s and variances over s^2, back at their plain places."""
    plain = torch.empty_like(statistics)
    offset = 0
    for layout in graph.statistics:
        if not layout.tracked:
            continue
        order = positions(layout.axis, exchange).tolist()
        for power in (1, 2):
            for place, channel in enumerate(order):
                scale = float(scale_factors[layout.scale_classes[channel]])
                plain[offset + channel] = statistics[offset + place] / scale**power
            offset += len(order)
    return plain
