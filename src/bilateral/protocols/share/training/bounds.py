"""How far numbers may go, and how the first party's limits make sure that none goes farther without a word.

*Random sums.* What a linear layer gives, forward or back, is watched (`Role.watch`): it is cut into groups, and every
group is added up `NUM_SUMS` times with random signs, drawn after the numbers were determined. Each sum is compared
with a limit T, in size. For a group x of whole numbers:

- if |x_i| > T for some i, each sum is beyond T with probability 1/2 or more (flip that sign: one of the two is);
- if its Euclidean norm is 2T or more, each sum is beyond T with probability 3/16 or more (Paley and Zygmund, with the
  fourth moment of a sum of signs, at most 3 |x|^4).

So with 64 sums a number above T is missed with probability 2^-64, a group of norm 2T with 2^-19.

*Norms.* Of what makes a gradient, the squared norm of every channel is worked out and compared with a limit: a weight's
gradient is at most the product of two of them (Cauchy and Schwarz). Numbers are cut to `NORM_BITS` fraction bits first,
each off by less than two units then.

`follow` takes both for granted and goes through the network with them: products that are truncated stay below 2^62,
compared numbers below what comparisons take, squared norms and the sum of all clients' gradients within their rings.
Limits that do not lead there are refused. Limits are the first party's secret: it adds them to its shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from bilateral.errors import NumericalRangeError
from bilateral.protocols.share.circuit.description import (
    FRACTION_BITS,
    Add,
    AvgPool,
    ChannelDropout,
    Concat,
    Conv,
    Dense,
    Dropout,
    MaxPool,
    Reshape,
    Step,
    Value,
)
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.roles import GROUP, NORM_BITS
from bilateral.protocols.share.training.tape import DELTA_BITS, LARGEST, SPREAD_BITS
from bilateral.protocols.share.training.terms import INPUT_ROOT_MEAN_SQUARE, ONE, StepTerms

PRODUCT_BITS: Final = 62
"""Truncation is exact below this; the sum of all gradients has a bit more."""
LEAST_MARGIN: Final = 4.0
"""Norms of clients' batches may be at least this many times those of the first party's own examples."""
_COMPARED_BITS: Final = 60
_CUT_ERROR: Final = 2.0 * 2.0**-NORM_BITS
_DELTA_LIMIT_BITS: Final = (11, 10, 9, 8, 7, 6)


@dataclass(frozen=True)
class Limits:
    """As numbers, not yet in units of the last place. `deltas`: of all that goes back through a layer, and the loss."""

    deltas: float
    norms: dict[str, float]

    def encode(self, terms: StepTerms) -> dict[str, int]:
        """By label, in the units of what they are compared with."""
        found = {}
        for label, _ in terms.shape_of_step.watched:
            limit, bits = (self.deltas, DELTA_BITS) if label.startswith("delta") else (float(LARGEST), FRACTION_BITS)
            if label.startswith("value"):
                bits = terms.circuit.values[int(label.split()[1])].fraction_bits
            if label == "loss":
                limit = self.deltas
            found[label] = int(limit * 2.0**bits)
        for label, shift in terms.shape_of_step.norms:
            units = self.norms[label] * 2.0**NORM_BITS
            found[label] = int(units * units) << shift
        return found


def limits_for(
    terms: StepTerms, layers: Sequence[PrivateLayer], expected: dict[str, float], num_clients: int
) -> Limits:
    """Limits that `follow` accepts, with as much room above the `expected` norms as the ring has.

    `num_clients`: whose gradients are added up.
    """
    norms = _norm_limits(terms, expected, num_clients)
    why = ""
    for bits in _DELTA_LIMIT_BITS:
        limits = Limits(2.0**bits, norms)
        why = follow(terms, layers, limits, num_clients) or ""
        if not why:
            return limits
    raise NumericalRangeError(f"Sealed training has no room for this network: {why}.", remedy=_REMEDY)


_REMEDY: Final = "Normalise the inputs, use smaller batches, weight decay or a smaller learning rate."


def _norm_limits(terms: StepTerms, expected: dict[str, float], num_clients: int) -> dict[str, float]:
    """For the two norms of each layer, so that their product is what its gradient has room for."""
    room: dict[int, float] = {}
    margins: dict[int, float] = {}
    for part in terms.shape_of_step.parts:
        if part.is_bias:
            continue
        source = terms.source_values[part.layer]
        room[part.layer] = 2.0 ** (PRODUCT_BITS - part.fraction_bits) / num_clients
        product = _at_least(expected[f"norm of value {source}"]) * _at_least(expected[f"norm of delta {part.layer}"])
        margin = math.sqrt(room[part.layer] / product)
        if margin < LEAST_MARGIN:
            raise NumericalRangeError(
                f"The gradient of layer {part.layer} comes too near the limit of sealed training: on the server's own "
                f"examples there is room for batches {margin:.1f} times as large, and {LEAST_MARGIN:.0f} are wanted.",
                remedy=_REMEDY,
            )
        margins[source] = min(margin, margins.get(source, math.inf))
    found = {
        f"norm of value {source}": _at_least(expected[f"norm of value {source}"]) * m for source, m in margins.items()
    }
    for layer, most in room.items():
        found[f"norm of delta {layer}"] = most / found[f"norm of value {terms.source_values[layer]}"]
    largest = 2.0 ** (_COMPARED_BITS / 2 - NORM_BITS - 1)
    shifts = dict(terms.shape_of_step.norms)
    return {label: min(limit, largest * 2.0 ** (-shifts[label] / 2)) for label, limit in found.items()}


def _at_least(norm: float) -> float:
    return max(norm, 2.0**-NORM_BITS)


def follow(terms: StepTerms, layers: Sequence[PrivateLayer], limits: Limits, num_clients: int) -> str | None:
    """None if numbers within these limits never leave their range; else which might, and how far."""
    try:
        _Follower(terms, layers, limits, num_clients).run()
    except _TooLargeError as error:
        return str(error)
    return None


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


class _TooLargeError(Exception):
    """A number that might leave its range."""


class _Follower:
    """One pass forward and one back, with bounds in place of values."""

    def __init__(self, terms: StepTerms, layers: Sequence[PrivateLayer], limits: Limits, num_clients: int) -> None:
        self._terms, self._layers, self._limits, self._num_clients = terms, layers, limits, num_clients
        self._watched_labels = {label for label, _ in terms.shape_of_step.watched}
        self._deltas: dict[int, tuple[Bound, int]] = {}

    def run(self) -> None:
        terms = self._terms
        values = [self._as_watched(0, self._input())]
        for index in range(len(terms.circuit.steps)):
            values.append(self._as_watched(index + 1, self._forward(index, values)))
        last = len(terms.circuit.steps)
        self._deltas[last] = self._watched(self._limits.deltas, terms.circuit.output), FRACTION_BITS
        for index in reversed(range(last)):
            if index + 1 in self._deltas:
                self._backward(index, values, *self._deltas.pop(index + 1))

    def _input(self) -> Bound:
        value = self._terms.circuit.values[0]
        root = math.sqrt(self._terms.batch_size * _pixels(value))
        return Bound(float(self._terms.circuit.largest_input), INPUT_ROOT_MEAN_SQUARE * root)

    def _watched(self, limit: float, value: Value) -> Bound:
        """A channel lies in so many groups (`in_groups`), each of a norm below twice the limit."""
        groups = -(-self._terms.batch_size * _pixels(value) // GROUP)
        return Bound(limit, 2 * limit * math.sqrt(groups))

    def _as_watched(self, value: int, bound: Bound) -> Bound:
        if f"value {value}" not in self._watched_labels:
            return bound
        return bound.within(self._watched(float(LARGEST), self._terms.circuit.values[value]))

    def _forward(self, index: int, values: list[Bound]) -> Bound:
        terms = self._terms
        made_by, value = terms.circuit.steps[index], terms.circuit.values[index + 1]
        source = made_by.sources[0]
        x, read = values[source], terms.circuit.values[source]
        if not isinstance(made_by, Dense | Conv):
            return _passed_on(made_by, [values[s] for s in made_by.sources], read, value)
        layer = terms.number_of_layer[index]
        weights = self._layers[layer]
        reach = _row_sums(weights.weight) * x.largest * 2.0**read.fraction_bits + _size(weights.bias)
        self._expect(reach, PRODUCT_BITS, f"the output of layer {layer}")
        return self._watched(float(LARGEST), value)

    def _backward(self, index: int, values: list[Bound], delta: Bound, bits: int) -> None:
        terms, made_by = self._terms, self._terms.circuit.steps[index]
        if isinstance(made_by, Dense | Conv):
            self._through_layer(index, values, delta, bits)
            return
        given = terms.circuit.values[index + 1]
        for source in made_by.sources:
            if terms.needs_gradient[source]:
                self._add(source, *_sent_back(made_by, delta, bits, terms.circuit.values[source], given))

    def _through_layer(self, index: int, values: list[Bound], delta: Bound, bits: int) -> None:
        terms = self._terms
        layer, source = terms.number_of_layer[index], terms.circuit.steps[index].sources[0]
        read, given = terms.circuit.values[source], terms.circuit.values[index + 1]
        weight, bias = terms.trains[layer]
        room = PRODUCT_BITS - math.log2(self._num_clients)
        if weight:
            norm = self._norm(f"norm of value {source}", values[source], read, read.fraction_bits)
            back = self._norm(f"norm of delta {layer}", delta, given, bits)
            # Limits leave the last of the bits to what is cut off.
            self._expect(norm * back * 2.0 ** (bits + read.fraction_bits), room + 1, f"the gradient of layer {layer}")
        if bias:
            root = math.sqrt(terms.batch_size * _pixels(given))
            self._expect(delta.norm * root * 2.0**bits, room, f"the gradient of the bias of layer {layer}")
        if terms.needs_gradient[source]:
            reach = _column_sums(self._layers[layer].weight, terms.linear_steps[layer]) * delta.largest * 2.0**bits
            self._expect(reach, PRODUCT_BITS, f"what goes back through layer {layer}")
            self._add(source, self._watched(self._limits.deltas, read), DELTA_BITS)

    def _norm(self, label: str, bound: Bound, value: Value, bits: int) -> float:
        """What a channel's norm is at most, once its square was compared: which must not have wrapped around."""
        cut = math.sqrt(self._terms.batch_size * _pixels(value)) * _CUT_ERROR
        squared = (bound.norm + cut) ** 2 * 2.0 ** (2 * NORM_BITS + bits - NORM_BITS)
        self._expect(squared, _COMPARED_BITS, f"the {label}")
        return min(bound.norm, self._limits.norms[label] + cut)

    def _add(self, value: int, delta: Bound, bits: int) -> None:
        if value in self._deltas:
            other, other_bits = self._deltas[value]
            delta, bits = delta + other, max(bits, other_bits)
        self._deltas[value] = delta, bits

    def _expect(self, size: float, bits: float, what: str) -> None:
        if size >= 2.0**bits:
            raise _TooLargeError(f"{what} might reach 2^{math.log2(size):.1f}, and 2^{bits:.1f} is too large")


def _passed_on(made_by: Step, inputs: list[Bound], read: Value, value: Value) -> Bound:  # noqa: PLR0911
    """By a step that is no linear layer. (ReLU and LeakyReLU, and what finishes an average, make nothing larger.)"""
    x = inputs[0]
    match made_by:
        case MaxPool():
            return x.times(1.0, math.sqrt(_overlap(made_by)))
        case AvgPool():
            return x.times(1.0, math.sqrt(_overlap(made_by) / math.prod(made_by.kernel)))
        case Add():
            return x + inputs[1]
        case Concat():
            return Bound(max(part.largest for part in inputs), max(part.norm for part in inputs))
        case Reshape():
            return x.times(1.0, math.sqrt(max(1.0, read.shape[0] / value.shape[0])))
        case Dropout() | ChannelDropout():
            return x.times(made_by.factor / ONE)
        case _:
            return x


def _sent_back(made_by: Step, delta: Bound, bits: int, read: Value, given: Value) -> tuple[Bound, int]:
    """By a step that is no linear layer, to one of the values that it read; and with how many fraction bits."""
    match made_by:
        case MaxPool():
            return delta.times(_overlap(made_by)), bits
        case AvgPool():
            count = math.prod(made_by.kernel)
            spread = delta.times(_overlap(made_by) / count, _overlap(made_by) / math.sqrt(count))
            return spread, max(bits, min(SPREAD_BITS, bits + (count & -count).bit_length() - 1))
        case Reshape():
            return delta.times(1.0, math.sqrt(max(1.0, given.shape[0] / read.shape[0]))), bits
        case Dropout() | ChannelDropout():
            return delta.times(made_by.factor / ONE), bits
        case _:
            return delta, bits


def _pixels(value: Value) -> int:
    return math.prod(value.shape[1:])


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
    sizes = weight.double().abs().reshape(groups, -1, *weight.shape[1:]).sum(1)
    return float(sizes.flatten(2).sum(2).max()) if sizes.dim() > 2 else float(sizes.max())
