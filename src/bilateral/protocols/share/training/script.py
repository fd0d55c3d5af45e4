"""A training step, gate by gate: the same for the parties, the dealer, and whoever only wants to know its shape.

`forward`, with what the backward pass needs on a tape; the loss (`loss`); `backward`; gradients of what trains; and a
look at whether every number was within its range. Values are shares, batch first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bilateral.errors import NumericalRangeError
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.training.backward import backward
from bilateral.protocols.share.training.forward import forward, watch_what_is_compared
from bilateral.protocols.share.training.loss import loss_delta
from bilateral.protocols.share.training.planning import Planning
from bilateral.protocols.share.training.roles import Blinded, Role
from bilateral.protocols.share.training.tape import Delta, Tape, Walk
from bilateral.protocols.share.training.terms import (
    DELTA_NORM_BITS,
    VALUE_NORM_BITS,
    GradientPart,
    Norm,
    StepShape,
    StepTerms,
)


def step(role: Role, inputs: Tensor | None, targets: Tensor | None) -> Walk:
    """The step. Returns this party's part of the gradient, flat (`StepTerms.decode`).

    `inputs`, `targets`: encoded, of the second party; None elsewhere.
    """
    terms, num_steps = role.terms, len(role.terms.circuit.steps)
    tape = Tape([role.secret_of_second(inputs, (terms.batch_size, *terms.circuit.input_shape))])
    for index in range(num_steps):
        tape.values.append((yield from forward(role, tape, index)))
        tape.forget(terms, index)
    if terms.loss == "ce":
        watch_what_is_compared(role, tape, num_steps, tape.value(-1))
    delta = yield from loss_delta(role, tape.value(-1), targets)
    role.watch("loss", delta)
    tape.deltas[num_steps] = Delta(delta, FRACTION_BITS)
    for index in reversed(range(num_steps)):
        if index + 1 in tape.deltas:
            yield from backward(role, tape, index)
    blinded = yield from _blinded(role, tape)
    beyond = yield from role.settle()
    if beyond:
        raise NumericalRangeError(
            f"Numbers of this training step left their range: {beyond} of its random sums are beyond their limits.",
            remedy="Normalise the inputs, lower the learning rate, or use weight decay; the step was not used.",
        )
    return (yield from _gradients(role, tape, blinded))


def _blinded(role: Role, tape: Tape) -> Walk:
    """What gradients of weights are products of, by layer: a value and a delta."""
    terms = role.terms
    values: dict[int, Blinded] = {}
    found: dict[int, tuple[Blinded, Blinded]] = {}
    for layer, (weight_trains, _) in enumerate(terms.trains):
        source = terms.source_values[layer]
        if weight_trains and layer in tape.masked_deltas:
            masked, delta = tape.masked_deltas[layer]
            if source not in values:
                bits = terms.circuit.values[source].fraction_bits
                norm = Norm(f"norm of value {source}", bits, VALUE_NORM_BITS)
                values[source] = yield from role.blind("value blind", source, tape.masked[source], norm)
            norm = Norm(f"norm of delta {layer}", delta.fraction_bits, DELTA_NORM_BITS)
            found[layer] = values[source], (yield from role.blind("delta blind", layer, masked, norm))
            yield from role.expect_gradient(layer, *found[layer])
    return found


def _gradients(role: Role, tape: Tape, blinded: dict[int, tuple[Blinded, Blinded]]) -> Walk:
    terms, found = role.terms, []
    for layer, (_, bias_trains) in enumerate(terms.trains):
        if layer not in tape.masked_deltas:
            found.append(tape.value(-1).new_zeros(terms.size_of_parts(layer)))
            continue
        if layer in blinded:
            found.append((yield from role.gradient(layer, *blinded[layer])).reshape(-1))
        if bias_trains:
            _, delta = tape.masked_deltas[layer]
            found.append(delta.share.sum(dim=[0, *range(2, delta.share.dim())]))
    return torch.cat(found)


def shape_of(terms: StepTerms) -> StepShape:
    """By walking the step with shapes alone. A layer that leads nowhere has gradients of zero."""
    dealer = Planning(terms)
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
    watched, norms = tuple(dealer.watched_shapes), tuple(dealer.norms_dealt)
    return StepShape(tuple(parts), tuple(dealer.dealt_shapes), watched, norms, dealer.orders)


def run(walk: Walk) -> Any:
    """To its end, a walk that never waits."""
    try:
        next(walk)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a walk of the dealer waits for nobody")
