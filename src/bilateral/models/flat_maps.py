"""The scale graph's maps over the flat parameter vector, prepared once so that a round costs the server little.

`ScaleGraph.ratio`, `source` and `unscale` mean what their docstrings say; how they mean it, parameter by parameter and
place by place, is spelled out in tests/reference/flat_maps.py, and compared with this file on random networks.
Here all axes are sorted in one go, all vectors (biases, normalisation weights) are moved in one go, and weights are
written straight into their slice of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.models.builder import Axis, Binding


@dataclass(frozen=True)
class _Weight:
    """A parameter with rows and columns: where it lies, where its axes lie among all axes, how it is scaled."""

    target: slice
    shape: torch.Size
    binding: Binding
    rows: slice
    columns: slice

    @property
    def columns_per_group(self) -> int:
        return int(self.columns.stop - self.columns.start) // self.binding.groups

    @property
    def rows_per_group(self) -> int:
        return int(self.rows.stop - self.rows.start) // self.binding.groups


class FlatMaps:
    """Maps of one architecture; `layouts` are (offset, shape, binding) of the parameters in their flat order."""

    def __init__(
        self,
        layouts: Sequence[tuple[int, torch.Size, Binding | None]],
        statistics: Sequence[tuple[Tensor, Axis]],
    ) -> None:
        self._axes = _AllAxes()
        self._num_elements = sum(shape.numel() for _, shape, _ in layouts)
        self._weights: list[_Weight] = []
        self._fixed: list[slice] = []
        places, targets, offsets = [], [], []
        scaled, classes = [], []
        self._unscaled: list[slice] = []
        for offset, shape, binding in layouts:
            target = slice(offset, offset + shape.numel())
            if binding is not None and binding.inputs is not None and binding.outputs is not None:
                sides = [self._axes.add(axis) for axis in (binding.outputs, binding.inputs)]
                rows, columns = reversed(sides) if binding.transposed else sides
                self._weights.append(_Weight(target, shape, binding, rows, columns))
                continue
            if binding is None or binding.outputs is None:
                self._fixed.append(target)
            else:
                section = self._axes.add(binding.outputs)
                places.append(torch.arange(section.start, section.stop))
                targets.append(torch.arange(target.start, target.stop))
                offsets.append(torch.full((shape.numel(),), offset))
            if binding is None or binding.numerator is None:
                self._unscaled.append(target)
            else:
                scaled.append(torch.arange(target.start, target.stop))
                classes.append(binding.numerator.expand(shape).reshape(-1))
        self._vector_places, self._vector_targets = _joined(places), _joined(targets)
        self._vector_offsets = _joined(offsets)
        self._scaled_targets, self._scaled_classes = _joined(scaled), _joined(classes)
        self._prepare_statistics(statistics)
        self._axes.seal()

    def _prepare_statistics(self, statistics: Sequence[tuple[Tensor, Axis]]) -> None:
        """Each normalised channel has a mean and, `count` places later, a variance."""
        places, bases, classes, powers = [], [], [], []
        offset = 0
        for scale_classes, axis in statistics:
            section = self._axes.add(axis)
            for power in (1, 2):
                places.append(torch.arange(section.start, section.stop))
                bases.append(torch.full((len(scale_classes),), offset))
                classes.append(scale_classes)
                powers.append(torch.full((len(scale_classes),), float(power), dtype=torch.float64))
                offset += len(scale_classes)
        self._statistics_places, self._statistics_bases = _joined(places), _joined(bases)
        self._statistics_classes = _joined(classes)
        self._statistics_powers = _joined(powers).double()

    @property
    def num_statistics(self) -> int:
        return len(self._statistics_places)

    def ratio(self, scale_factors: Tensor) -> Tensor:
        inverse = 1.0 / scale_factors
        result = torch.empty(self._num_elements, dtype=scale_factors.dtype)
        result.index_copy_(0, self._scaled_targets, scale_factors.index_select(0, self._scaled_classes))
        for target in self._unscaled:
            result[target] = 1.0
        for weight in self._weights:
            numerator, denominator = weight.binding.numerator, weight.binding.denominator
            assert numerator is not None
            assert denominator is not None
            # One product a row and column, spread over the kernel while it is copied.
            result[weight.target].view(weight.shape).copy_(scale_factors[numerator] * inverse[denominator])
        return result

    def source(self, exchange: Tensor) -> Tensor:
        places = self._axes.positions(exchange)
        result = torch.empty(self._num_elements, dtype=torch.int64)
        moved = places.index_select(0, self._vector_places) + self._vector_offsets
        result.index_copy_(0, self._vector_targets, moved)
        for target in self._fixed:
            result[target] = torch.arange(target.start, target.stop)
        for weight in self._weights:
            _write_weight_source(weight, places, result)
        return result

    def unscale(self, statistics: Tensor, scale_factors: Tensor, exchange: Tensor) -> Tensor:
        places = self._axes.positions(exchange).index_select(0, self._statistics_places)
        plain = torch.empty(len(statistics), dtype=torch.float64)
        plain.index_copy_(0, places + self._statistics_bases, statistics.double())
        return plain / scale_factors[self._statistics_classes] ** self._statistics_powers


def _write_weight_source(weight: _Weight, places: Tensor, result: Tensor) -> None:
    kernel = math.prod(weight.shape[2:])
    per_group, groups = weight.columns_per_group, weight.binding.groups
    rows, columns = places[weight.rows], places[weight.columns]
    base = rows * (per_group * kernel) + weight.target.start
    if groups == 1:
        matrix = base[:, None] + columns * kernel
    else:  # a row has only the columns of its own group
        own = (columns % per_group * kernel).view(groups, 1, per_group)
        matrix = (base.view(groups, weight.rows_per_group, 1) + own).view(len(rows), per_group)
    view = result[weight.target].view(len(rows), per_group, kernel)
    torch.add(matrix[:, :, None], torch.arange(kernel), out=view)


class _AllAxes:
    """All axes of a network, each content once, end to end, so that one sort finds every position."""

    def __init__(self) -> None:
        self._sections: dict[tuple[bytes, bytes], slice] = {}
        self._neurons: list[Tensor] = []
        self._roles: list[Tensor] = []
        self._length = 0

    def add(self, axis: Axis) -> slice:
        """Where the places of `axis` lie."""
        key = (axis.neuron.numpy().tobytes(), axis.role.numpy().tobytes())
        if key not in self._sections:
            self._sections[key] = slice(self._length, self._length + len(axis.neuron))
            self._length += len(axis.neuron)
            self._neurons.append(axis.neuron)
            self._roles.append(axis.role)
        return self._sections[key]

    def seal(self) -> None:
        self._neuron = _joined(self._neurons)
        roles = _joined(self._roles)
        lengths = torch.tensor([len(n) for n in self._neurons], dtype=torch.int64)
        number = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        self._start = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
        num_roles = int(roles.max()) + 1 if len(roles) else 1
        num_neurons = int(self._neuron.max()) + 1 if len(roles) else 1
        self._num_roles = num_roles
        self._rest = number * (num_neurons * num_roles) + roles
        self._plain_order = torch.argsort(self._neuron * num_roles + self._rest, stable=True)

    def positions(self, exchange: Tensor) -> Tensor:
        """For each place of every axis, the plain place (in that axis) of what `exchange` puts there."""
        moved = exchange.index_select(0, self._neuron) * self._num_roles + self._rest
        result = torch.empty_like(moved)
        result.index_copy_(0, torch.argsort(moved, stable=True), self._plain_order)
        return result - self._start


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0, dtype=torch.int64)
