"""Each party's view of a prediction, and simulators that produce it from what that party may know alone.

A view is a list of (name of message and field, tensor or bytes). A simulator gets what the party owns and what it is
allowed to learn, never another party's secret; if its views cannot be told from real ones, the party learns no more.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from tests.protocols.share.harness import compared, uniform_words
from torch import Tensor

from bilateral.protocols.share.circuit.description import Conv, Dense, MaxPool, Relu
from bilateral.protocols.share.gates.styles import HARDENED


def parts_of(message):
    """The payload of a message, field by field; names and indices are public."""
    found = []
    for item in fields(message):
        value = getattr(message, item.name)
        values = value if isinstance(value, tuple) else (value,)
        found += [
            (f"{type(message).__name__}.{item.name}", part)
            for part in values
            if isinstance(part, Tensor) or (isinstance(part, bytes) and item.name == "bits")
        ]
    return found


def view_of_client(group, party):
    """What a client received, in order."""
    return [part for exchange in group.log if exchange.party == party for part in parts_of(exchange.request)]


def view_of_server(group):
    """What the server received from all clients, in order."""
    return [part for exchange in group.log for part in parts_of(exchange.reply)]


def structure(view):
    """Names, shapes and types: what must agree exactly."""
    return [
        (name, tuple(part.shape), part.dtype) if isinstance(part, Tensor) else (name, len(part)) for name, part in view
    ]


class Uniform:
    """Uniform tensors and bits from a seed of the simulator's own."""

    def __init__(self, seed):
        self._seed = 7_000_000 + 10_000 * seed

    def words(self, *shape):
        self._seed += 1
        return uniform_words(shape, self._seed)

    def bits(self, count):
        """Packed; the unused bits of the last byte are zero, as in the protocol."""
        packed = bytearray(self.words((count + 63) // 64).numpy().tobytes()[: (count + 7) // 8])
        if count % 8:
            packed[-1] &= (1 << (count % 8)) - 1
        return bytes(packed)


def _counts(step, value):
    """Sizes of the comparisons that one step makes."""
    if isinstance(step, Relu):
        return [value.size]
    sizes, candidates = [], step.kernel[0] * step.kernel[1] if isinstance(step, MaxPool) else 1
    while candidates > 1:
        sizes.append(candidates // 2 * value.size)
        candidates -= candidates // 2
    return sizes


def simulated_answerer(circuit, batch, seed):
    """The answering party's view, from its circuit and the number of queries: bits and masked inputs, all uniform."""
    draw, done = Uniform(seed), set()
    view = [("Carries.bits", draw.bits(batch * value.size)) for value in circuit.linear_values]
    for step in circuit.steps:
        if isinstance(step, Dense | Conv) and step.sources[0] not in done:
            done.add(step.sources[0])
            view.append(("MaskedValue.value", draw.words(batch, *circuit.values[step.sources[0]].shape)))
    return view


def simulated_server(circuit, batch, seed):
    """The server's view of one session, from the circuit and the number of queries: everything is uniform.

    A sequential circuit: every linear layer waits for a `MaskedValue` of its own.
    """
    draw = Uniform(seed)
    view = [
        ("MaskedModel.weights", draw.words(*step.weight_shape(circuit.values[step.sources[0]])))
        for step in circuit.linear_steps
    ]
    shapes = [(batch, *value.shape) for value in circuit.linear_values]
    view += [("Correlations.products", draw.words(*shape)) for shape in shapes]
    view += [("Correlations.carries", draw.words(*shape).to(torch.int32)) for shape in shapes]
    turns = _turns(circuit, batch)
    first, *others = [_simulated_turn(draw, turn, circuit, batch, turn is turns[-1]) for turn in turns]
    view += first
    view.append(("QueryShare.share", draw.words(batch, *circuit.input_shape)))
    judged = [_simulated_judgements(draw, turn, batch) for turn in turns]
    view += judged[0]
    for turn, replies in zip(others, judged[1:], strict=True):
        view += turn + replies
    return view


def _turns(circuit, batch):
    """What the answering party sends at a time: bits of a truncation and the comparisons until the next layer."""
    turns = [([], [])]
    for step, value in zip(circuit.steps, circuit.values[1:], strict=True):
        if isinstance(step, Dense | Conv):
            turns.append(([batch * value.size], []))
        else:
            turns[-1][1].extend(_counts(step, value))
    return turns


def _simulated_turn(draw, turn, circuit, batch, is_last):
    bits, sizes = turn
    view = [("AnswererTurn.bits", draw.bits(count)) for count in bits]
    view += [("AnswererTurn.blinded", draw.words(batch, size)) for size in sizes]
    shape = (batch, *circuit.output.shape) if is_last else (0,)
    return [*view, ("AnswererTurn.output", draw.words(*shape))]


def _simulated_judgements(draw, turn, batch):
    return [(f"SelectedValues.{name}", draw.words(batch, size)) for size in turn[1] for name in ("products", "bits")]


def simulated_querier(sizes, logits, masks, seed):
    """The querying party's view, from the sum of the logits, its own masks, and the *sizes* of compared numbers.

    `sizes`: a tensor a comparison with |t| (or |t + 1| for negative ones), in any order: what is known to leak.
    """
    view = []
    for position, size in enumerate(sizes):
        u, _ = compared(size.sort(dim=1).values, 20, HARDENED, seed=90_000 + 100 * seed + position)
        view.append(("BlindedValues.values", u + masks[position]))
    return [*view, ("SummedLogits.logits", logits)]
