"""A training step, gate by gate: the same for the parties, the dealer, and whoever only wants to know its shape.

forward, with what the backward pass needs on a tape; the loss (`loss`); backward; gradients of what trains; and a look
at whether every number was within its range. Values are shares, batch first.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from bilateral.errors import NumericalRangeError
from bilateral.protocols.share.circuit.description import (
    FRACTION_BITS,
    VALUE_BITS,
    Add,
    AvgPool,
    ChannelDropout,
    Concat,
    Conv,
    Dense,
    Dropout,
    LeakyRelu,
    MaxPool,
    Pair,
    Relu,
    Reshape,
    Scale,
    Step,
)
from bilateral.protocols.share.circuit.walk import windows
from bilateral.protocols.share.training.loss import loss_delta
from bilateral.protocols.share.training.roles import Bit, Blinded, Dealing, Masked, Norm, Role
from bilateral.protocols.share.training.terms import ONE, GradientPart, StepShape, StepTerms

Walk = Generator[Any, Any, Any]
LARGEST: Final = 1 << (VALUE_BITS - 1)
"""Compared numbers are below this in size, so that differences of two of them can be compared."""
DELTA_BITS: Final = 24
"""Fraction bits of what goes back through a layer: it is smaller than what comes forward."""
SPREAD_BITS: Final = 26
"""At most so many of what an average sends back to each of its places: it is smaller still."""


@dataclass(frozen=True, repr=False)
class Delta:
    """The gradient of the loss with respect to a value."""

    share: Tensor
    fraction_bits: int


@dataclass(repr=False)
class _Tape:
    """What the forward pass leaves for the backward pass."""

    values: list[Tensor | None]
    masked: dict[int, Masked] = field(default_factory=dict)
    bits: dict[int, list[Bit]] = field(default_factory=dict)
    kept: dict[int, Tensor] = field(default_factory=dict)


def step(role: Role, inputs: Tensor | None, targets: Tensor | None) -> Walk:
    """The step. Returns this party's part of the gradient, flat (`StepTerms.decode`).

    `inputs`, `targets`: encoded, of the second party; None elsewhere.
    """
    terms = role.terms
    tape = _Tape([role.secret_of_second(inputs, (terms.batch_size, *terms.circuit.input_shape))])
    for index in range(len(terms.circuit.steps)):
        tape.values.append((yield from _forward(role, tape, index)))
        _forget(terms, tape, index)
    delta = yield from loss_delta(role, _value(tape, -1), targets)
    role.watch("loss", delta)
    deltas: dict[int, Delta] = {len(terms.circuit.steps): Delta(delta, FRACTION_BITS)}
    masked_deltas: dict[int, tuple[Masked, Delta]] = {}
    for index in reversed(range(len(terms.circuit.steps))):
        if index + 1 in deltas:
            yield from _backward(role, tape, index, deltas, masked_deltas)
    found = yield from _gradients(role, tape, masked_deltas)
    beyond = yield from role.settle()
    if beyond:
        raise NumericalRangeError(
            f"Numbers of this training step left their range: {beyond} of its random sums are beyond their limits.",
            remedy="Normalise the inputs, lower the learning rate, or use weight decay; the step was not used.",
        )
    return found


def _forget(terms: StepTerms, tape: _Tape, index: int) -> None:
    for source in terms.circuit.steps[index].sources:
        if terms.circuit.last_uses[source] == index:
            tape.values[source] = None


def _value(tape: _Tape, index: int) -> Tensor:
    value = tape.values[index]
    assert value is not None
    return value


def _forward(role: Role, tape: _Tape, index: int) -> Walk:
    circuit = role.terms.circuit
    made_by, source = circuit.steps[index], circuit.steps[index].sources[0]
    x, described = _value(tape, source), circuit.values[source]
    match made_by:
        case Dense() | Conv():
            if source not in tape.masked:
                tape.masked[source] = yield from role.mask("value mask", source, x)
            layer = role.terms.number_of_layer[index]
            y = yield from role.apply(layer, tape.masked[source], described.fraction_bits)
            role.watch(f"layer {layer}", y)
            return y
        case Relu():
            bit = yield from _compare(role, tape, index, x)
            return bit.positive_part()
        case LeakyRelu():
            bit = yield from _compare(role, tape, index, x)
            return (yield from _leaky(role, x, bit.positive_part(), made_by.slope))
        case MaxPool():
            return (yield from _max_pool(role, tape, index, x))
        case AvgPool():
            return _sum_windows(made_by, x)
        case Add():
            first, second = (_aligned(role, _value(tape, s), s, index) for s in made_by.sources)
            return first + second
        case Concat():
            return torch.cat([_aligned(role, _value(tape, s), s, index) for s in made_by.sources], dim=1)
        case Reshape():
            return x.reshape(len(x), *made_by.shape)
        case Scale():
            if made_by.factor == ONE:
                found = yield from role.truncate(x, described.fraction_bits - FRACTION_BITS)
            else:
                found = yield from role.truncate(x * made_by.factor, made_by.shift(described))
            role.watch(f"value {index + 1}", found)
            return found
        case Dropout() | ChannelDropout():
            shape = (*x.shape[:2], 1, 1) if isinstance(made_by, ChannelDropout) else tuple(x.shape)
            kept = tape.kept[index] = role.kept(index, shape, made_by.threshold)
            return (yield from role.truncate(x * kept * made_by.factor, FRACTION_BITS))
        case _:
            raise TypeError(f"no step: {made_by!r}")


def _compare(role: Role, tape: _Tape, index: int, x: Tensor) -> Walk:
    """The bit of a step's input."""
    circuit = role.terms.circuit
    source = circuit.steps[index].sources[0]
    _watch_what_is_compared(role, source, x)
    bit = yield from role.compare(x, VALUE_BITS + circuit.values[source].fraction_bits)
    tape.bits[index] = [bit]
    return bit


def _watch_what_is_compared(role: Role, source: int, x: Tensor) -> None:
    """Unless it was watched as it came, or is no larger than what was."""
    steps = role.terms.circuit.steps
    while source and isinstance(steps[source - 1], Relu | LeakyRelu | MaxPool | Reshape):
        (source,) = steps[source - 1].sources
    if source == 0 or not isinstance(steps[source - 1], Dense | Conv | Scale):
        role.watch(f"value {source}", x)


def _leaky(role: Role, x: Tensor, positive: Tensor, slope: int) -> Walk:
    """slope x + (1 - slope) max(x, 0)."""
    one = 1 << FRACTION_BITS
    return (yield from role.truncate(x * slope + positive * (one - slope), FRACTION_BITS))


def _aligned(role: Role, x: Tensor, source: int, index: int) -> Tensor:
    """With as many fraction bits as what the step gives."""
    values = role.terms.circuit.values
    return x << (values[index + 1].fraction_bits - values[source].fraction_bits)


def _sum_windows(made_by: AvgPool, x: Tensor) -> Tensor:
    parts = windows(x, made_by.kernel, made_by.stride, made_by.padding)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _max_pool(role: Role, tape: _Tape, index: int, x: Tensor) -> Walk:
    """By tree: max(a, b) = b + [a >= b] (a - b), half of the candidates a level."""
    circuit = role.terms.circuit
    made_by, source = circuit.steps[index], circuit.steps[index].sources[0]
    assert isinstance(made_by, MaxPool)
    _watch_what_is_compared(role, source, x)
    bits = VALUE_BITS + circuit.values[source].fraction_bits
    candidates = torch.stack(windows(x, made_by.kernel, made_by.stride, made_by.padding), dim=1)
    found: list[Bit] = []
    while candidates.shape[1] > 1:
        half = candidates.shape[1] // 2
        first, second, odd = candidates[:, :half], candidates[:, half : 2 * half], candidates[:, 2 * half :]
        bit = yield from role.compare(first - second, bits)
        found.append(bit)
        candidates = torch.cat([second + bit.positive_part(), odd], dim=1)
    tape.bits[index] = found
    return candidates[:, 0]


def _backward(
    role: Role, tape: _Tape, index: int, deltas: dict[int, Delta], masked_deltas: dict[int, tuple[Masked, Delta]]
) -> Walk:
    """From the delta of what a step gave to those of what it read, added to `deltas`."""
    terms, made_by = role.terms, role.terms.circuit.steps[index]
    delta = deltas.pop(index + 1)
    needed = [source for source in made_by.sources if terms.needs_gradient[source]]
    if isinstance(made_by, Dense | Conv):
        layer = terms.number_of_layer[index]
        role.delta_bits[layer] = delta.fraction_bits
        if needed or terms.trains[layer][0]:
            masked = yield from role.mask("delta mask", layer, delta.share)
        if any(terms.trains[layer]):
            masked_deltas[layer] = (masked if terms.trains[layer][0] else Masked(delta.share), delta)
        if needed:
            shift = delta.fraction_bits + FRACTION_BITS - DELTA_BITS
            back = yield from role.apply_transposed(layer, masked, shift)
            role.watch(f"delta {layer}", back)
            _add(deltas, needed[0], Delta(back, DELTA_BITS))
        return
    if not needed:
        return
    if isinstance(made_by, Add | Concat):
        _split(terms, made_by, delta, deltas)
        return
    _add(deltas, needed[0], (yield from _through(role, tape, index, delta)))


def _through(role: Role, tape: _Tape, index: int, delta: Delta) -> Walk:
    """Through a step with one input."""
    terms, made_by = role.terms, role.terms.circuit.steps[index]
    shape = terms.circuit.values[made_by.sources[0]].shape
    share, bits = delta.share, delta.fraction_bits
    match made_by:
        case Relu():
            return Delta((yield from tape.bits.pop(index)[0].times(share)), bits)
        case LeakyRelu():
            positive = yield from tape.bits.pop(index)[0].times(share)
            return Delta((yield from _leaky(role, share, positive, made_by.slope)), bits)
        case MaxPool():
            return Delta((yield from _max_pool_back(made_by, tape.bits.pop(index), share, shape)), bits)
        case AvgPool():
            count = math.prod(made_by.kernel)
            twos = (count & -count).bit_length() - 1
            spare = bits + twos - SPREAD_BITS
            if spare > 0:
                share, bits = (yield from role.truncate(share, spare)), bits - spare
            places = [share] * count
            return Delta(_scatter(places, made_by.kernel, made_by.stride, made_by.padding, shape), bits + twos)
        case Reshape():
            return Delta(share.reshape(len(share), *shape), bits)
        case Scale():
            if made_by.factor == ONE:
                return delta
            return Delta((yield from role.truncate(share * made_by.factor, FRACTION_BITS)), bits)
        case Dropout() | ChannelDropout():
            kept = tape.kept.pop(index)
            return Delta((yield from role.truncate(share * kept * made_by.factor, FRACTION_BITS)), bits)
        case _:
            raise TypeError(f"no step: {made_by!r}")


def _max_pool_back(made_by: MaxPool, bits: Sequence[Bit], share: Tensor, shape: tuple[int, ...]) -> Walk:
    """Down the tree: the winner of each comparison gets the delta, the loser none."""
    candidates = share[:, None]
    count = math.prod(made_by.kernel)
    sizes = []  # of the levels, from the windows to the winners
    while count > 1:
        sizes.append(count)
        count -= count // 2
    for size, bit in zip(reversed(sizes), reversed(bits), strict=True):
        half = size // 2
        won = candidates[:, :half]
        first = yield from bit.times(won)
        candidates = torch.cat([first, won - first, candidates[:, half:]], dim=1)
    places = list(candidates.unbind(1))
    return _scatter(places, made_by.kernel, made_by.stride, made_by.padding, shape)


def _scatter(places: Sequence[Tensor], kernel: Pair, stride: Pair, padding: Pair, shape: tuple[int, ...]) -> Tensor:
    """The adjoint of `windows`: what each place of each window has goes back to where it came from, and is added up."""
    (ph, pw), (height, width) = padding, shape[-2:]
    total = places[0].new_zeros(len(places[0]), *shape[:-2], height + 2 * ph, width + 2 * pw)
    for target, part in zip(windows(total, kernel, stride, (0, 0)), places, strict=True):
        target += part  # noqa: PLW2901 (a view of `total`)
    return total[..., ph : ph + height, pw : pw + width].contiguous()


def _split(terms: StepTerms, made_by: Step, delta: Delta, deltas: dict[int, Delta]) -> None:
    """Through sums and concatenations, to each source that needs it."""
    start = 0
    for source in made_by.sources:
        part = delta
        if isinstance(made_by, Concat):
            size = terms.circuit.values[source].shape[0]
            part = Delta(delta.share[:, start : start + size], delta.fraction_bits)
            start += size
        if terms.needs_gradient[source]:
            _add(deltas, source, part)


def _add(deltas: dict[int, Delta], value: int, delta: Delta) -> None:
    if value not in deltas:
        deltas[value] = delta
        return
    bits = max(delta.fraction_bits, deltas[value].fraction_bits)
    total = sum(part.share << (bits - part.fraction_bits) for part in (delta, deltas[value]))
    assert isinstance(total, Tensor)
    deltas[value] = Delta(total, bits)


def _gradients(role: Role, tape: _Tape, masked_deltas: dict[int, tuple[Masked, Delta]]) -> Walk:
    terms, found = role.terms, []
    values: dict[int, Blinded] = {}
    for layer in sorted(masked_deltas):
        masked, delta = masked_deltas[layer]
        weight, bias = terms.trains[layer]
        source = terms.source_values[layer]
        if weight:
            if source not in values:
                norm = Norm(f"norm of value {source}", terms.circuit.values[source].fraction_bits)
                values[source] = yield from role.blind("value blind", source, tape.masked[source], norm)
            norm = Norm(f"norm of delta {layer}", delta.fraction_bits)
            blinded = yield from role.blind("delta blind", layer, masked, norm)
            found.append((yield from role.gradient(layer, values[source], blinded)).reshape(-1))
        if bias:
            found.append(delta.share.sum(dim=[0, *range(2, delta.share.dim())]))
    return torch.cat(found)


def shape_of(terms: StepTerms) -> StepShape:
    """By walking the step with shapes alone."""
    dealer = Dealing(terms, None)
    run(step(dealer, None, None))
    parts = []
    for layer, (weight, bias) in enumerate(terms.trains):
        delta_bits = dealer.delta_bits.get(layer, FRACTION_BITS)
        source = terms.linear_sources[layer]
        if weight:
            shape = terms.linear_steps[layer].weight_shape(source)
            parts.append(GradientPart(layer, False, shape, delta_bits + source.fraction_bits))
        if bias:
            parts.append(GradientPart(layer, True, (terms.linear_values[layer].shape[0],), delta_bits))
    return StepShape(tuple(parts), tuple(dealer.dealt_shapes), tuple(dealer.watched_shapes), tuple(dealer.norm_shifts))


def run(walk: Walk) -> Any:
    """To its end, a walk that never waits."""
    try:
        next(walk)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a walk of the dealer waits for nobody")
