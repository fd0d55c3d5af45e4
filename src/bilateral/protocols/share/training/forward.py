"""The forward pass, gate by gate: what each kind of step gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from bilateral.protocols.share.circuit.description import (
    FACTOR_BITS,
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
    Step,
)
from bilateral.protocols.share.circuit.walk import windows
from bilateral.protocols.share.training.roles import Bit, Role
from bilateral.protocols.share.training.tape import VALUE_BITS, Tape, Walk
from bilateral.protocols.share.training.terms import ONE

ZERO_UNITS: Final = 2
"""In the last place: what is no larger counts as zero."""


def forward(role: Role, tape: Tape, index: int) -> Walk:
    """What the step `index` of the circuit gives."""
    made_by = role.terms.circuit.steps[index]
    return (yield from _FORWARD[type(made_by)](role, tape, index))


def masked_value(role: Role, tape: Tape, source: int) -> Walk:
    """A value as linear layers read it: it is masked once, for all of them."""
    if source not in tape.masked:
        tape.masked[source] = yield from role.mask("value mask", source, tape.value(source))
    return tape.masked[source]


def leaky(role: Role, x: Tensor, positive: Tensor, slope: int) -> Walk:
    """slope x + (1 - slope) max(x, 0).

    Too large by up to a unit on average, where the slope has few bits (see `dropped`).
    """
    one = 1 << FRACTION_BITS
    return (yield from role.truncate(x * slope + positive * (one - slope), FRACTION_BITS))


def watch_what_is_compared(role: Role, tape: Tape, source: int, x: Tensor) -> None:
    """Once, and not what was watched as it came, nor what a comparison gave of something that was watched."""
    terms = role.terms
    steps = terms.circuit.steps
    while source and isinstance(steps[source - 1], Reshape):
        (source,) = steps[source - 1].sources
    is_known = source > 0 and isinstance(steps[source - 1], Dense | Conv | Scale | Relu | LeakyRelu | MaxPool)
    if not is_known and source not in tape.watched:
        tape.watched.add(source)
        role.watch(f"value {source}", x.reshape(len(x), *terms.circuit.values[source].shape))


def dropped(role: Role, x: Tensor, kept: Tensor, factor: int) -> Walk:
    """What is kept (a share of ones and zeros), times `factor` 2^-20, and exact zeros.

    A truncation is right on average only where what it cuts off is uniform in each share, and the last bits of x times
    an even number are not: those are left out of the product, so that dropping a half has no truncation at all.
    """
    twos = min((factor & -factor).bit_length() - 1, FACTOR_BITS)
    found = x * (factor >> twos)
    if twos < FACTOR_BITS:
        found = yield from role.truncate(found, FACTOR_BITS - twos)
    return (yield from role.multiply(found, kept))


def _read(role: Role, tape: Tape, index: int) -> Tensor:
    return tape.value(role.terms.circuit.steps[index].sources[0])


def _linear(role: Role, tape: Tape, index: int) -> Walk:
    source = role.terms.circuit.steps[index].sources[0]
    masked = yield from masked_value(role, tape, source)
    layer = role.terms.number_of_layer[index]
    y = yield from role.apply(layer, masked, role.terms.circuit.values[source].fraction_bits)
    role.watch(f"layer {layer}", y)
    return y


def _relu(role: Role, tape: Tape, index: int) -> Walk:
    bit: Bit = yield from _compare(role, tape, index)
    return bit.positive_part()


def _leaky_relu(role: Role, tape: Tape, index: int) -> Walk:
    made_by = role.terms.circuit.steps[index]
    assert isinstance(made_by, LeakyRelu)
    bit: Bit = yield from _compare(role, tape, index)
    return (yield from leaky(role, _read(role, tape, index), bit.positive_part(), made_by.slope))


def _compare(role: Role, tape: Tape, index: int) -> Walk:
    """The bit of a step's input: whether it is above zero, and by more than truncation may add to a zero.

    At zero, which samples without any active unit reach exactly, the derivative is 0, as torch has it.
    """
    source, x = role.terms.circuit.steps[index].sources[0], _read(role, tape, index)
    watch_what_is_compared(role, tape, source, x)
    above = role.constant(x, -ZERO_UNITS)
    bit = yield from role.compare(above, VALUE_BITS + role.terms.circuit.values[source].fraction_bits)
    tape.bits[index] = [bit]
    return bit


def _max_pool(role: Role, tape: Tape, index: int) -> Walk:
    """By tree: max(a, b) = b + [a >= b] (a - b), half of the candidates a level."""
    made_by, x = role.terms.circuit.steps[index], _read(role, tape, index)
    assert isinstance(made_by, MaxPool)
    (source,) = made_by.sources
    watch_what_is_compared(role, tape, source, x)
    bits = VALUE_BITS + role.terms.circuit.values[source].fraction_bits
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


def _average(role: Role, tape: Tape, index: int) -> Walk:
    """Its sums."""
    made_by = role.terms.circuit.steps[index]
    assert isinstance(made_by, AvgPool)
    parts = windows(_read(role, tape, index), made_by.kernel, made_by.stride, made_by.padding)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
    yield


def _scale(role: Role, tape: Tape, index: int) -> Walk:
    made_by, x = role.terms.circuit.steps[index], _read(role, tape, index)
    assert isinstance(made_by, Scale)
    read = role.terms.circuit.values[made_by.sources[0]]
    if made_by.factor == ONE:
        spare = read.fraction_bits - FRACTION_BITS
        found = (yield from role.truncate(x, spare)) if spare else x
    else:
        found = yield from role.truncate(x * made_by.factor, made_by.shift(read))
    role.watch(f"value {index + 1}", found)
    return found


def _add(role: Role, tape: Tape, index: int) -> Walk:
    first, second = _aligned(role, tape, index)
    return first + second
    yield


def _concat(role: Role, tape: Tape, index: int) -> Walk:
    return torch.cat(_aligned(role, tape, index), dim=1)
    yield


def _aligned(role: Role, tape: Tape, index: int) -> list[Tensor]:
    """What the step reads, with as many fraction bits as what it gives."""
    values, sources = role.terms.circuit.values, role.terms.circuit.steps[index].sources
    bits = values[index + 1].fraction_bits
    return [tape.value(source) << (bits - values[source].fraction_bits) for source in sources]


def _reshape(role: Role, tape: Tape, index: int) -> Walk:
    x = _read(role, tape, index)
    return x.reshape(len(x), *role.terms.circuit.values[index + 1].shape)
    yield


def _dropout(role: Role, tape: Tape, index: int) -> Walk:
    made_by, x = role.terms.circuit.steps[index], _read(role, tape, index)
    assert isinstance(made_by, Dropout | ChannelDropout)
    shape = (*x.shape[:2], 1, 1) if isinstance(made_by, ChannelDropout) else tuple(x.shape)
    kept = tape.kept[index] = role.kept(index, shape, made_by.threshold).expand(x.shape).contiguous()
    return (yield from dropped(role, x, kept, made_by.factor))


_FORWARD: Final[dict[type[Step], Callable[[Role, Tape, int], Walk]]] = {
    Dense: _linear,
    Conv: _linear,
    Relu: _relu,
    LeakyRelu: _leaky_relu,
    MaxPool: _max_pool,
    AvgPool: _average,
    Scale: _scale,
    Add: _add,
    Concat: _concat,
    Reshape: _reshape,
    Dropout: _dropout,
    ChannelDropout: _dropout,
}
