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
from functools import cached_property

import torch
from torch import Tensor

from bilateral.models.builder import Axis, Binding


@dataclass(frozen=True)
class _Weight:
    """A parameter with rows and columns, and where its pieces lie in the vectors that are prepared for all weights."""

    target: slice
    shape: torch.Size
    groups: int
    rows: slice
    columns: slice
    numerators: slice
    numerator_shape: torch.Size
    denominators: slice
    denominator_shape: torch.Size


class _Weights:
    """All parameters with rows and columns, so that what they have in common is gathered once a round."""

    def __init__(self) -> None:
        self.each: list[_Weight] = []
        self._rows = _Pieces()
        self._row_steps = _Pieces()
        self._row_offsets = _Pieces()
        self._columns = _Pieces()
        self._column_counts = _Pieces()
        self._column_steps = _Pieces()
        self._numerators = _Pieces()
        self._denominators = _Pieces()

    def add(self, target: slice, shape: torch.Size, binding: Binding, rows: slice, columns: slice) -> None:
        assert binding.numerator is not None
        assert binding.denominator is not None
        kernel, per_group = math.prod(shape[2:]), int(columns.stop - columns.start) // binding.groups
        num_rows, num_columns = rows.stop - rows.start, columns.stop - columns.start
        self._row_steps.add(torch.full((num_rows,), per_group * kernel))
        self._row_offsets.add(torch.full((num_rows,), target.start))
        self._column_counts.add(torch.full((num_columns,), per_group))
        self._column_steps.add(torch.full((num_columns,), kernel))
        self.each.append(
            _Weight(
                target,
                shape,
                binding.groups,
                self._rows.add(torch.arange(rows.start, rows.stop)),
                self._columns.add(torch.arange(columns.start, columns.stop)),
                self._numerators.add(binding.numerator.reshape(-1)),
                binding.numerator.shape,
                self._denominators.add(binding.denominator.reshape(-1)),
                binding.denominator.shape,
            )
        )

    def write_ratio(self, scale_factors: Tensor, result: Tensor) -> None:
        numerators = scale_factors.index_select(0, self._numerators.joined)
        denominators = (1.0 / scale_factors).index_select(0, self._denominators.joined)
        for weight in self.each:
            above = numerators[weight.numerators].view(weight.numerator_shape)
            below = denominators[weight.denominators].view(weight.denominator_shape)
            # One product a row and column, spread over the kernel while it is copied.
            result[weight.target].view(weight.shape).copy_(above * below)

    def write_source(self, places: Tensor, result: Tensor) -> None:
        """source = (row * columns + column) * kernel + place in the kernel, from where the parameter starts."""
        rows = places.index_select(0, self._rows.joined) * self._row_steps.joined + self._row_offsets.joined
        columns = places.index_select(0, self._columns.joined) % self._column_counts.joined * self._column_steps.joined
        for weight in self.each:
            # A row has only the columns of its own group.
            matrix = rows[weight.rows].view(weight.groups, -1, 1) + columns[weight.columns].view(weight.groups, 1, -1)
            kernel = math.prod(weight.shape[2:])
            view = result[weight.target].view(*matrix.shape, kernel)
            torch.add(matrix[..., None], torch.arange(kernel), out=view)


class FlatMaps:
    """Maps of one architecture; `layouts` are (offset, shape, binding) of the parameters in their flat order."""

    def __init__(
        self,
        layouts: Sequence[tuple[int, torch.Size, Binding | None]],
        statistics: Sequence[tuple[Tensor, Axis]],
    ) -> None:
        self._axes = _AllAxes()
        self._num_elements = sum(shape.numel() for _, shape, _ in layouts)
        self._weights = _Weights()
        self._fixed: list[slice] = []
        places, targets, offsets = [], [], []
        scaled, classes = [], []
        self._unscaled: list[slice] = []
        for offset, shape, binding in layouts:
            target = slice(offset, offset + shape.numel())
            if binding is not None and binding.inputs is not None and binding.outputs is not None:
                sides = [self._axes.add(axis) for axis in (binding.outputs, binding.inputs)]
                rows, columns = reversed(sides) if binding.transposed else sides
                self._weights.add(target, shape, binding, rows, columns)
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
        result = torch.empty(self._num_elements, dtype=scale_factors.dtype)
        result.index_copy_(0, self._scaled_targets, scale_factors.index_select(0, self._scaled_classes))
        for target in self._unscaled:
            result[target] = 1.0
        self._weights.write_ratio(scale_factors, result)
        return result

    def source(self, exchange: Tensor) -> Tensor:
        places = self._axes.positions(exchange)
        result = torch.empty(self._num_elements, dtype=torch.int64)
        moved = places.index_select(0, self._vector_places) + self._vector_offsets
        result.index_copy_(0, self._vector_targets, moved)
        for target in self._fixed:
            result[target] = torch.arange(target.start, target.stop)
        self._weights.write_source(places, result)
        return result

    def unscale(self, statistics: Tensor, scale_factors: Tensor, exchange: Tensor) -> Tensor:
        places = self._axes.positions(exchange).index_select(0, self._statistics_places)
        plain = torch.empty(len(statistics), dtype=torch.float64)
        plain.index_copy_(0, places + self._statistics_bases, statistics.double())
        return plain / scale_factors[self._statistics_classes] ** self._statistics_powers


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


class _Pieces:
    """A vector that is put together piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self._length = 0

    def add(self, piece: Tensor) -> slice:
        """Where the piece lies."""
        self._pieces.append(piece)
        self._length += len(piece)
        return slice(self._length - len(piece), self._length)

    @cached_property
    def joined(self) -> Tensor:
        return _joined(self._pieces)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0, dtype=torch.int64)
