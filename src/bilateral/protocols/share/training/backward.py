"""The backward pass, gate by gate: from the delta of what a step gave to those of what it read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
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
    Pair,
    Relu,
    Reshape,
    Scale,
    Step,
)
from bilateral.protocols.share.circuit.walk import windows
from bilateral.protocols.share.training.forward import leaky
from bilateral.protocols.share.training.roles import Bit, Masked, Role
from bilateral.protocols.share.training.tape import DELTA_BITS, SPREAD_BITS, Delta, Tape, Walk
from bilateral.protocols.share.training.terms import ONE, StepTerms


def backward(role: Role, tape: Tape, index: int) -> Walk:
    """Takes the delta of what the step `index` gave off the tape, and adds those of what it read."""
    terms, made_by = role.terms, role.terms.circuit.steps[index]
    delta = tape.deltas.pop(index + 1)
    needed = [source for source in made_by.sources if terms.needs_gradient[source]]
    if isinstance(made_by, Dense | Conv):
        yield from _through_layer(role, tape, index, delta)
    elif isinstance(made_by, Add | Concat):
        _split(terms, tape, made_by, delta)
    elif needed:
        through = _THROUGH[type(made_by)]
        tape.add_delta(needed[0], (yield from through(role, tape, index, delta)))


def _through_layer(role: Role, tape: Tape, index: int, delta: Delta) -> Walk:
    terms, layer = role.terms, role.terms.number_of_layer[index]
    source = terms.source_values[layer]
    weight_trains, bias_trains = terms.trains[layer]
    role.delta_bits[layer] = delta.fraction_bits
    masked = Masked(delta.share)
    if terms.needs_gradient[source] or weight_trains:
        masked = yield from role.mask("delta mask", layer, delta.share)
    if weight_trains or bias_trains:
        tape.masked_deltas[layer] = (masked, delta)
    if terms.needs_gradient[source]:
        shift = delta.fraction_bits + FRACTION_BITS - DELTA_BITS
        back = yield from role.apply_transposed(layer, masked, shift)
        role.watch(f"delta {layer}", back)
        tape.add_delta(source, Delta(back, DELTA_BITS))


def _split(terms: StepTerms, tape: Tape, made_by: Add | Concat, delta: Delta) -> None:
    """Through sums and concatenations, to each source that needs it."""
    start = 0
    for source in made_by.sources:
        part = delta
        if isinstance(made_by, Concat):
            size = terms.circuit.values[source].shape[0]
            part = Delta(delta.share[:, start : start + size], delta.fraction_bits)
            start += size
        if terms.needs_gradient[source]:
            tape.add_delta(source, part)


def _shape_of_read(role: Role, index: int) -> tuple[int, ...]:
    return role.terms.circuit.values[role.terms.circuit.steps[index].sources[0]].shape


def _through_relu(_role: Role, tape: Tape, index: int, delta: Delta) -> Walk:
    (bit,) = tape.bits.pop(index)
    return Delta((yield from bit.times(delta.share)), delta.fraction_bits)


def _through_leaky_relu(role: Role, tape: Tape, index: int, delta: Delta) -> Walk:
    made_by, (bit,) = role.terms.circuit.steps[index], tape.bits.pop(index)
    assert isinstance(made_by, LeakyRelu)
    positive = yield from bit.times(delta.share)
    return Delta((yield from leaky(role, delta.share, positive, made_by.slope)), delta.fraction_bits)


def _through_max_pool(role: Role, tape: Tape, index: int, delta: Delta) -> Walk:
    """Down the tree: the winner of each comparison gets the delta, the loser none."""
    made_by, bits = role.terms.circuit.steps[index], tape.bits.pop(index)
    assert isinstance(made_by, MaxPool)
    candidates = delta.share[:, None]
    for size, bit in zip(reversed(_level_sizes(made_by)), reversed(bits), strict=True):
        half = size // 2
        won = candidates[:, :half]
        first = yield from _times(bit, won)
        candidates = torch.cat([first, won - first, candidates[:, half:]], dim=1)
    shape = _shape_of_read(role, index)
    places = list(candidates.unbind(1))
    return Delta(_scatter(places, made_by.kernel, made_by.stride, made_by.padding, shape), delta.fraction_bits)


def _times(bit: Bit, value: Tensor) -> Walk:
    return (yield from bit.times(value))


def _level_sizes(made_by: MaxPool) -> list[int]:
    """How many candidates each level of the tree compares, from the windows to the winners."""
    count, sizes = math.prod(made_by.kernel), []
    while count > 1:
        sizes.append(count)
        count -= count // 2
    return sizes


def _through_average(role: Role, _tape: Tape, index: int, delta: Delta) -> Walk:
    """Of its division, the power of two; `_through_scale` had the rest."""
    made_by, (share, bits) = role.terms.circuit.steps[index], (delta.share, delta.fraction_bits)
    assert isinstance(made_by, AvgPool)
    count = math.prod(made_by.kernel)
    twos = (count & -count).bit_length() - 1
    spare = bits + twos - SPREAD_BITS
    if spare > 0:
        share, bits = (yield from role.truncate(share, spare)), bits - spare
    shape = _shape_of_read(role, index)
    return Delta(_scatter([share] * count, made_by.kernel, made_by.stride, made_by.padding, shape), bits + twos)


def _through_scale(role: Role, _tape: Tape, index: int, delta: Delta) -> Walk:
    made_by = role.terms.circuit.steps[index]
    assert isinstance(made_by, Scale)
    if made_by.factor == ONE:
        return delta
    return Delta((yield from role.truncate(delta.share * made_by.factor, FRACTION_BITS)), delta.fraction_bits)


def _through_reshape(role: Role, _tape: Tape, index: int, delta: Delta) -> Walk:
    return Delta(delta.share.reshape(len(delta.share), *_shape_of_read(role, index)), delta.fraction_bits)
    yield


def _through_dropout(role: Role, tape: Tape, index: int, delta: Delta) -> Walk:
    made_by, kept = role.terms.circuit.steps[index], tape.kept.pop(index)
    assert isinstance(made_by, Dropout | ChannelDropout)
    share = yield from role.truncate(delta.share * kept * made_by.factor, FRACTION_BITS)
    return Delta(share, delta.fraction_bits)


def _scatter(places: Sequence[Tensor], kernel: Pair, stride: Pair, padding: Pair, shape: tuple[int, ...]) -> Tensor:
    """The adjoint of `windows`: what each place of each window has goes back to where it came from, and is added up."""
    (ph, pw), (height, width) = padding, shape[-2:]
    total = places[0].new_zeros(len(places[0]), *shape[:-2], height + 2 * ph, width + 2 * pw)
    for target, part in zip(windows(total, kernel, stride, (0, 0)), places, strict=True):
        target.add_(part)
    return total[..., ph : ph + height, pw : pw + width].contiguous()


_THROUGH: Final[dict[type[Step], Callable[[Role, Tape, int, Delta], Walk]]] = {
    Relu: _through_relu,
    LeakyRelu: _through_leaky_relu,
    MaxPool: _through_max_pool,
    AvgPool: _through_average,
    Scale: _through_scale,
    Reshape: _through_reshape,
    Dropout: _through_dropout,
    ChannelDropout: _through_dropout,
}
