"""What limits of what is watched say of all other numbers of a step: `bounds` has what for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from bilateral.protocols.share.circuit.description import (
    FRACTION_BITS,
    Add,
    AvgPool,
    ChannelDropout,
    Concat,
    Conv,
    Dense,
    Dropout,
    LeakyRelu,
    MaxPool,
    Relu,
    Reshape,
    Scale,
    Value,
)
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.roles import SUM_BITS
from bilateral.protocols.share.training.tape import DELTA_BITS, LARGEST, SPREAD_BITS
from bilateral.protocols.share.training.terms import (
    DELTA_NORM_BITS,
    INPUT_ROOT_MEAN_SQUARE,
    ONE,
    VALUE_NORM_BITS,
    Norm,
    StepTerms,
)
from bilateral.protocols.share.training.watching import GROUP

PRODUCT_BITS: Final = 62
"""Truncation is exact below this; the sum of all gradients has a bit more."""
COMPARED_BITS: Final = 60
"""Squared norms are below 2^this, and so are their limits."""
LARGEST_WATCHED: Final = LARGEST - 2.0**-10
"""What is compared stays below `LARGEST` by so much, for roundings on the way there."""


@dataclass(frozen=True)
class Limits:
    """As numbers, not yet in units of the last place. `deltas`: of all that goes back through a layer, and the loss;
    `values`: of what else is watched."""

    deltas: float
    norms: dict[str, float]
    values: float = LARGEST_WATCHED

    def of(self, label: str) -> float:
        """Of what is watched by this label."""
        return self.deltas if is_delta(label) else self.values

    def encode(self, terms: StepTerms) -> dict[str, int]:
        """By label, in the units of what they are compared with."""
        found = {}
        for label, _ in terms.shape_of_step.watched:
            found[label] = int(self.of(label) * 2.0 ** fraction_bits_of(label))
        for norm in terms.shape_of_step.norms:
            units = self.norms[norm.label] * 2.0**norm.kept_bits
            found[norm.label] = int(units * units) << norm.shift
        return found


def is_delta(label: str) -> bool:
    """Of what is watched: the loss, and what goes back through layers."""
    return label == "loss" or label.startswith("delta")


def fraction_bits_of(label: str) -> int:
    """Of what is watched by this label; going forward it is whole (`StepTerms`)."""
    return DELTA_BITS if label.startswith("delta") else FRACTION_BITS


def cut_error(kept_bits: int) -> float:
    """Of a number that is cut before it is squared."""
    return 2.0 * 2.0**-kept_bits


class TooLargeError(Exception):
    """A number that might leave its range."""


@dataclass(frozen=True)
class Bound:
    """On a value: its largest element, and the largest Euclidean norm of a channel over the whole batch."""

    largest: float
    norm: float

    def __add__(self, other: Bound) -> Bound:
        return Bound(self.largest + other.largest, self.norm + other.norm)

    def times(self, largest: float, norm: float | None = None) -> Bound:
        return Bound(self.largest * largest, self.norm * (largest if norm is None else norm))

    def within(self, other: Bound) -> Bound:
        return Bound(min(self.largest, other.largest), min(self.norm, other.norm))


class Follower:
    """One pass forward and one back, with bounds in place of values."""

    def __init__(self, terms: StepTerms, layers: Sequence[PrivateLayer], limits: Limits, num_clients: int) -> None:
        self._terms, self._layers, self._limits, self._num_clients = terms, layers, limits, num_clients
        self._watched_labels = {label for label, _ in terms.shape_of_step.watched}
        self._values: list[Bound] = []
        self._deltas: dict[int, tuple[Bound, int]] = {}
        """With their fraction bits."""

    def run(self) -> None:
        """Raises `TooLargeError`."""
        self._values = [self._as_watched(0, self._input())]
        num_steps = len(self._terms.circuit.steps)
        for index in range(num_steps):
            self._values.append(self._as_watched(index + 1, self._forward(index)))
        self._deltas[num_steps] = self._loss(), FRACTION_BITS
        for index in reversed(range(num_steps)):
            if index + 1 in self._deltas:
                self._backward(index, *self._deltas.pop(index + 1))

    def _input(self) -> Bound:
        value = self._terms.circuit.values[0]
        pixels = math.sqrt(self._elements(value))
        return self._rounded(
            Bound(float(self._terms.circuit.largest_input), INPUT_ROOT_MEAN_SQUARE * pixels), value, FRACTION_BITS
        )

    def _loss(self) -> Bound:
        """Of cross entropy before it is watched: a difference of probabilities."""
        terms, output = self._terms, self._values[-1]
        if terms.loss == "ce":
            self._expect_comparable(output, FRACTION_BITS, "an output")
        else:
            size = (output.largest + terms.circuit.largest_input) * 2.0**FRACTION_BITS
            self._expect(size * terms.factor, PRODUCT_BITS, "the loss times its factor")
            self._expect_summable(size, self._limits.deltas * 2.0**FRACTION_BITS, "the loss")
        return self._watched(self._limits.deltas, terms.circuit.output)

    # What is watched.

    def _watched(self, limit: float, value: Value) -> Bound:
        """A channel lies in so many groups (`in_groups`), each of a norm below twice the limit."""
        groups = -(-self._elements(value) // GROUP)
        return Bound(limit, 2 * limit * math.sqrt(groups))

    def _as_watched(self, value: int, bound: Bound) -> Bound:
        described = self._terms.circuit.values[value]
        size = self._in_units(bound, described)
        self._expect(size, PRODUCT_BITS, f"value {value}")
        if f"value {value}" not in self._watched_labels:
            return bound
        self._expect_summable(size, self._limits.values * 2.0**described.fraction_bits, f"value {value}")
        return bound.within(self._watched(self._limits.values, described))

    def _expect_summable(self, size: float, limit: float, what: str) -> None:
        """Random sums of it, and their distances from the limit, are what is compared at the end."""
        self._expect(size * GROUP + limit, SUM_BITS, f"a random sum of {what}")

    # Forward.

    def _forward(self, index: int) -> Bound:
        circuit = self._terms.circuit
        made_by, value = circuit.steps[index], circuit.values[index + 1]
        parts = [self._values[source] for source in made_by.sources]
        x = parts[0]
        match made_by:
            case Dense() | Conv():
                found = self._linear(index)
            case MaxPool():
                self._expect_comparable(x, value.fraction_bits, f"what is compared for value {index + 1}")
                found = x.times(1.0, math.sqrt(_overlap(made_by)))
            case AvgPool():
                found = x.times(1.0, math.sqrt(_overlap(made_by) / math.prod(made_by.kernel)))
            case Add():
                found = parts[0] + parts[1]
            case Concat():
                found = Bound(max(part.largest for part in parts), max(part.norm for part in parts))
            case Reshape():
                found = x.times(1.0, self._reshaped(made_by.sources[0], index + 1))
            case _:
                found = self._element_wise(index, x)
        return found

    def _linear(self, index: int) -> Bound:
        source, layer = self._terms.circuit.steps[index].sources[0], self._terms.number_of_layer[index]
        weights, read = self._layers[layer], self._terms.circuit.values[source]
        reach = _row_sums(weights.weight) * self._in_units(self._values[source], read) + _size(weights.bias)
        self._expect(reach, PRODUCT_BITS, f"the output of layer {layer}")
        return self._watched(self._limits.values, self._terms.circuit.values[index + 1])

    def _element_wise(self, index: int, x: Bound) -> Bound:
        circuit = self._terms.circuit
        made_by, value = circuit.steps[index], circuit.values[index + 1]
        read = circuit.values[made_by.sources[0]]
        if isinstance(made_by, Relu | LeakyRelu):
            self._expect_comparable(x, read.fraction_bits, f"what is compared for value {index + 1}")
        if isinstance(made_by, Relu):
            return x
        is_shift = isinstance(made_by, Scale) and made_by.factor == ONE
        reach = self._in_units(x, read) * (1 if is_shift else _factor(made_by))
        self._expect(reach, PRODUCT_BITS, f"value {index + 1} before its truncation")
        factor = _factor(made_by) / ONE
        if isinstance(made_by, Scale):
            factor *= read.divisor
        return self._rounded(x.times(factor), value, value.fraction_bits)

    def _reshaped(self, source: int, target: int) -> float:
        """How many times larger norms of channels can be: by the root of how many old ones a new one has parts of."""
        before, after = (self._terms.circuit.values[value].shape[0] for value in (source, target))
        if after % before == 0:
            return 1.0
        return math.sqrt(before // after if before % after == 0 else -(-before // after) + 1)

    # Backward.

    def _backward(self, index: int, delta: Bound, bits: int) -> None:
        terms, made_by = self._terms, self._terms.circuit.steps[index]
        if isinstance(made_by, Dense | Conv):
            self._through_layer(index, delta, bits)
            return
        for source in made_by.sources:
            if not terms.needs_gradient[source]:
                continue
            match made_by:
                case MaxPool():
                    self._add(source, delta.times(_overlap(made_by)), bits)
                case AvgPool():
                    self._through_average(index, delta, bits)
                case Reshape():
                    self._add(source, delta.times(1.0, self._reshaped(index + 1, source)), bits)
                case Add() | Concat() | Relu():
                    self._add(source, delta, bits)
                case _:
                    self._back_element_wise(index, delta, bits)

    def _through_average(self, index: int, delta: Bound, bits: int) -> None:
        """The odd part of its count is in the delta already (`Scale`, as in `backward`)."""
        made_by = self._terms.circuit.steps[index]
        assert isinstance(made_by, AvgPool)
        (source,) = made_by.sources
        count = math.prod(made_by.kernel)
        twos = (count & -count).bit_length() - 1
        spare = max(0, bits + twos - SPREAD_BITS)
        rounded = self._rounded(delta, self._terms.circuit.values[index + 1], bits - spare) if spare else delta
        found = rounded.times(_overlap(made_by) / 2.0**twos, _overlap(made_by) * math.sqrt(count) / 2.0**twos)
        self._add(source, found, bits - spare + twos)

    def _back_element_wise(self, index: int, delta: Bound, bits: int) -> None:
        made_by, (source,) = self._terms.circuit.steps[index], self._terms.circuit.steps[index].sources
        if isinstance(made_by, Scale) and made_by.factor == ONE:
            self._add(source, delta, bits)
            return
        factor = _factor(made_by)
        self._expect(delta.largest * 2.0**bits * factor, PRODUCT_BITS, f"the delta of value {index + 1}")
        self._add(source, self._rounded(delta.times(factor / ONE), self._terms.circuit.values[source], bits), bits)

    def _through_layer(self, index: int, delta: Bound, bits: int) -> None:
        terms, layer = self._terms, self._terms.number_of_layer[index]
        source = terms.source_values[layer]
        read, given = terms.circuit.values[source], terms.circuit.values[index + 1]
        weight_trains, bias_trains = terms.trains[layer]
        room = PRODUCT_BITS - math.log2(self._num_clients)
        if weight_trains:
            of_value = Norm(f"norm of value {source}", read.fraction_bits, VALUE_NORM_BITS)
            norm = self._norm(of_value, self._values[source], read)
            back = self._norm(Norm(f"norm of delta {layer}", bits, DELTA_NORM_BITS), delta, given)
            # Limits leave the last of the bits to what is cut off.
            self._expect(norm * back * 2.0 ** (bits + read.fraction_bits), room + 1, f"the gradient of layer {layer}")
        if bias_trains:
            size = delta.norm * math.sqrt(self._elements(given)) * 2.0**bits
            self._expect(size, room, f"the gradient of the bias of layer {layer}")
        if terms.needs_gradient[source]:
            reach = _column_sums(self._layers[layer].weight, terms.linear_steps[layer]) * delta.largest * 2.0**bits
            self._expect(reach, PRODUCT_BITS, f"what goes back through layer {layer}")
            self._add(source, self._watched(self._limits.deltas, read), DELTA_BITS)

    def _norm(self, norm: Norm, bound: Bound, value: Value) -> float:
        """What a channel's norm is at most, once its square was compared: which must not have wrapped around."""
        cut = math.sqrt(self._elements(value)) * cut_error(norm.kept_bits)
        bits = 2 * norm.kept_bits + norm.shift
        self._expect((bound.norm + cut) ** 2 * 2.0**bits, COMPARED_BITS, f"the {norm.label}")
        return min(bound.norm, self._limits.norms[norm.label] + cut)

    def _add(self, value: int, delta: Bound, bits: int) -> None:
        if value in self._deltas:
            other, other_bits = self._deltas[value]
            delta, bits = delta + other, max(bits, other_bits)
        self._expect(delta.largest * 2.0**bits, PRODUCT_BITS, f"the delta of value {value}")
        self._deltas[value] = delta, bits

    # What numbers are.

    def _in_units(self, bound: Bound, value: Value) -> float:
        return bound.largest * 2.0**value.fraction_bits * value.divisor

    def _elements(self, value: Value) -> int:
        """Of a channel, over the whole batch."""
        return self._terms.batch_size * math.prod(value.shape[1:])

    def _rounded(self, bound: Bound, value: Value, bits: int) -> Bound:
        unit = 2.0**-bits
        return Bound(bound.largest + unit, bound.norm + unit * math.sqrt(self._elements(value)))

    def _expect_comparable(self, bound: Bound, bits: int, what: str) -> None:
        if bound.largest * 2.0**bits >= LARGEST << bits:
            raise TooLargeError(f"{what} might reach {bound.largest:.6g}, and {LARGEST} is too large")

    def _expect(self, size: float, bits: float, what: str) -> None:
        if size >= 2.0**bits:
            raise TooLargeError(f"{what} might reach 2^{math.log2(size):.1f}, and 2^{bits:.1f} is too large")


def _factor(made_by: object) -> int:
    """What an element-wise step multiplies by before it truncates, in units of 2^-20."""
    assert isinstance(made_by, LeakyRelu | Scale | Dropout | ChannelDropout)
    return ONE if isinstance(made_by, LeakyRelu) else made_by.factor


def _overlap(made_by: MaxPool | AvgPool) -> float:
    """So many windows at most read one element."""
    return float(math.prod(-(-k // s) for k, s in zip(made_by.kernel, made_by.stride, strict=True)))


def _size(bias: Tensor) -> float:
    return float(bias.double().abs().max()) if bias.numel() else 0.0


def _row_sums(weight: Tensor) -> float:
    """The largest sum of sizes that an output adds up, in units of the last place."""
    return float(weight.double().abs().flatten(1).sum(1).max())


def _column_sums(weight: Tensor, step: Dense | Conv) -> float:
    """The same for what an input sends back: all outputs of its group, every place of the kernel."""
    groups = step.groups if isinstance(step, Conv) else 1
    sizes = weight.double().abs().reshape(groups, -1, *weight.shape[1:])
    return float(sizes.flatten(3).sum(3).sum(1).max()) if sizes.dim() > 3 else float(sizes.sum(1).max())
