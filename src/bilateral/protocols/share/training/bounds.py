"""How far numbers may go, and how the first party's limits make sure that none goes farther without a word.

What is watched (`Role.watch`) is cut into groups, and every group is added up `NUM_SUMS` times with random signs that were
drawn after the numbers were determined. Each sum is compared with a limit T, in size. For a group x:

- if |x_i| > T for some i, each sum is beyond T with probability 1/2 or more (flip that sign: one of the two is);
- if its Euclidean norm is 2T or more, each sum is beyond T with probability 3/16 or more (Paley and Zygmund, with the
  fourth moment of a sum of signs, at most 3 |x|^4).

So with 64 sums a number above T is missed with probability 2^-64, a group of norm 2T with 2^-19. `check` takes both for
granted and follows them through the network, forward and backward: every product that is truncated stays below 2^62,
every compared number below what comparisons take, every client's gradient below its part of 2^62. It refuses limits
that do not lead there. Nothing here is told to anybody: limits are added to the first party's shares.
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
    Scale,
    Value,
)
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.roles import GROUP
from bilateral.protocols.share.training.script import DELTA_BITS, LARGEST, SPREAD_BITS
from bilateral.protocols.share.training.terms import INPUT_ROOT_MEAN_SQUARE, ONE, StepTerms

PRODUCT_BITS: Final = 62
"""Truncation is exact below this."""
LEAST_MARGIN: Final = 6.0
"""Limits are at least this many times the norms that the first party's own examples show: random sums go up to five."""
_MOST_MARGIN: Final = 2.0**24


@dataclass(frozen=True)
class Bound:
    """On a value: its largest element, and the largest Euclidean norm of a channel over the whole batch."""

    largest: float
    norm: float

    def __add__(self, other: Bound) -> Bound:
        return Bound(self.largest + other.largest, self.norm + other.norm)

    def times(self, largest: float, norm: float | None = None) -> Bound:
        return Bound(self.largest * largest, self.norm * (largest if norm is None else norm))


def limits_for(
    terms: StepTerms, layers: Sequence[PrivateLayer], group_norms: dict[str, float], num_clients: int
) -> dict[str, int]:
    """Limits in units of the last place, as far above `group_norms` as the network allows, all by one factor.

    `group_norms`: what the first party expects of a batch of this size (`sizing`). `num_clients`: whose gradients are
    added up in the ring.
    """
    if not _holds(terms, layers, group_norms, LEAST_MARGIN, num_clients):
        raise NumericalRangeError(
            "Numbers of this network come too near the limits of sealed training: on the server's own examples there is "
            f"no room for {LEAST_MARGIN:.0f} times their size.",
            remedy="Normalise the inputs, use smaller batches, weight decay or a smaller learning rate.",
        )
    low, high = math.log2(LEAST_MARGIN), math.log2(_MOST_MARGIN)
    for _ in range(24):
        middle = (low + high) / 2
        if _holds(terms, layers, group_norms, 2.0**middle, num_clients):
            low = middle
        else:
            high = middle
    return _limits(terms, group_norms, 2.0**low)


def _limits(terms: StepTerms, group_norms: dict[str, float], margin: float) -> dict[str, int]:
    """Never below a few units, never beyond what comparisons take."""
    found = {}
    for label, _ in terms.shape_of_step.watched:
        limit = max(group_norms[label] * margin, 1 << 10)
        if label.startswith(("layer", "value")):
            bits = FRACTION_BITS
            if label.startswith("value"):
                bits = terms.circuit.values[int(label.split()[1])].fraction_bits
            limit = min(limit, LARGEST << bits)
        found[label] = int(limit)
    return found


def _holds(
    terms: StepTerms, layers: Sequence[PrivateLayer], group_norms: dict[str, float], margin: float, num_clients: int
) -> bool:
    return follow(terms, layers, _limits(terms, group_norms, margin), num_clients) is None


def follow(terms: StepTerms, layers: Sequence[PrivateLayer], limits: dict[str, int], num_clients: int) -> str | None:
    """None if numbers within these limits never leave their range; else which might, and where."""
    try:
        _Follower(terms, layers, limits, num_clients).run()
    except _TooLargeError as error:
        return str(error)
    return None


class _TooLargeError(Exception):
    """A number that might leave its range."""


class _Follower:
    """One pass forward and one back, with bounds in place of values."""

    def __init__(
        self, terms: StepTerms, layers: Sequence[PrivateLayer], limits: dict[str, int], num_clients: int
    ) -> None:
        self._terms, self._layers, self._limits, self._num_clients = terms, layers, limits, num_clients
        self._deltas: dict[int, Bound] = {}
        self._delta_bits: dict[int, int] = {}

    def run(self) -> None:
        values = [self._as_watched(0, self._input())]
        for index in range(len(self._terms.circuit.steps)):
            values.append(self._as_watched(index + 1, self._forward(index, values)))
        if not any(self._terms.needs_gradient):
            return  # a question (`serving`), where nothing goes back
        last = len(self._terms.circuit.steps)
        self._deltas[last] = self._watched("loss", self._terms.circuit.output, FRACTION_BITS)
        self._delta_bits[last] = FRACTION_BITS
        for index in reversed(range(last)):
            if index + 1 in self._deltas:
                self._backward(index, values)

    def _input(self) -> Bound:
        value = self._terms.circuit.values[0]
        pixels = math.sqrt(self._terms.batch_size * _pixels(value))
        return Bound(float(self._terms.circuit.largest_input), INPUT_ROOT_MEAN_SQUARE * pixels)

    def _watched(self, label: str, value: Value, bits: int) -> Bound:
        """A channel lies in so many groups (`in_groups`), each of a norm below twice the limit."""
        limit = self._limits[label] / 2.0**bits
        groups = -(-self._terms.batch_size * _pixels(value) // GROUP)
        return Bound(limit, 2 * limit * math.sqrt(groups))

    def _as_watched(self, value: int, bound: Bound) -> Bound:
        described = self._terms.circuit.values[value]
        if (label := f"value {value}") not in self._limits:
            return bound
        seen = self._watched(label, described, described.fraction_bits)
        return Bound(min(bound.largest, seen.largest), min(bound.norm, seen.norm))

    def _forward(self, index: int, values: list[Bound]) -> Bound:
        terms = self._terms
        made_by, value = terms.circuit.steps[index], terms.circuit.values[index + 1]
        source = made_by.sources[0]
        x, read = values[source], terms.circuit.values[source]
        match made_by:
            case Dense() | Conv():
                layer = terms.number_of_layer[index]
                weights = self._layers[layer]
                reach = _row_sums(weights.weight) * x.largest * 2.0**read.fraction_bits + _size(weights.bias)
                self._expect(reach, PRODUCT_BITS, f"the output of layer {layer}")
                if (label := f"layer {layer}") not in self._limits:
                    return Bound(math.inf, math.inf)  # the answer to a question, which is not used any more
                return self._watched(label, value, FRACTION_BITS)
            case MaxPool():
                return x.times(1.0, math.sqrt(_overlap(made_by)))
            case AvgPool():
                return x.times(1.0, math.sqrt(_overlap(made_by) / math.prod(made_by.kernel)))
            case Add():
                return x + values[made_by.sources[1]]
            case Concat():
                parts = [values[s] for s in made_by.sources]
                return Bound(max(p.largest for p in parts), max(p.norm for p in parts))
            case Reshape():
                return x.times(1.0, math.sqrt(max(1.0, read.shape[0] / value.shape[0])))
            case Scale():
                return x.times(1.0)  # the average that it finishes was bounded as one
            case Dropout() | ChannelDropout():
                return x.times(made_by.factor / ONE)
            case _:  # ReLU and LeakyReLU
                return x

    def _backward(self, index: int, values: list[Bound]) -> None:
        terms, made_by = self._terms, self._terms.circuit.steps[index]
        delta, bits = self._deltas.pop(index + 1), self._delta_bits.pop(index + 1)
        if isinstance(made_by, Dense | Conv):
            self._through_layer(index, delta, bits, values)
            return
        for source in made_by.sources:
            if not terms.needs_gradient[source]:
                continue
            read = terms.circuit.values[source]
            match made_by:
                case MaxPool():
                    self._add(source, delta.times(_overlap(made_by)), bits)
                case AvgPool():
                    count = math.prod(made_by.kernel)
                    shrunk = delta.times(_overlap(made_by) / count, _overlap(made_by) / math.sqrt(count))
                    self._add(source, shrunk, max(bits, min(SPREAD_BITS, bits + (count & -count).bit_length() - 1)))
                case Reshape():
                    given = terms.circuit.values[index + 1]
                    self._add(source, delta.times(1.0, math.sqrt(max(1.0, given.shape[0] / read.shape[0]))), bits)
                case Dropout() | ChannelDropout():
                    self._add(source, delta.times(made_by.factor / ONE), bits)
                case _:
                    self._add(source, delta, bits)

    def _through_layer(self, index: int, delta: Bound, bits: int, values: list[Bound]) -> None:
        terms = self._terms
        layer, source = terms.number_of_layer[index], terms.circuit.steps[index].sources[0]
        read, given = terms.circuit.values[source], terms.circuit.values[index + 1]
        weight, bias = terms.trains[layer]
        room = PRODUCT_BITS - math.log2(self._num_clients)
        if weight:
            product = delta.norm * values[source].norm * 2.0 ** (bits + read.fraction_bits)
            self._expect(product, room, f"the gradient of layer {layer}")
        if bias:
            elements = math.sqrt(terms.batch_size * _pixels(given))
            self._expect(delta.norm * elements * 2.0**bits, room, f"the gradient of the bias of layer {layer}")
        if terms.needs_gradient[source]:
            reach = _column_sums(self._layers[layer].weight, terms.linear_steps[layer]) * delta.largest * 2.0**bits
            self._expect(reach, PRODUCT_BITS, f"what goes back through layer {layer}")
            self._add(source, self._watched(f"delta {layer}", read, DELTA_BITS), DELTA_BITS)

    def _add(self, value: int, delta: Bound, bits: int) -> None:
        if value in self._deltas:
            delta, bits = delta + self._deltas[value], max(bits, self._delta_bits[value])
        self._deltas[value], self._delta_bits[value] = delta, bits

    def _expect(self, size: float, bits: float, what: str) -> None:
        if size >= 2.0**bits:
            raise _TooLargeError(f"{what} might reach 2^{math.log2(size):.1f}, and 2^{bits:.1f} is too large")


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
    sizes = weight.double().abs().reshape(groups, -1, *weight.shape[1:])
    return float(sizes.flatten(3).sum(3).sum(1).max()) if sizes.dim() > 3 else float(sizes.sum(1).max())
