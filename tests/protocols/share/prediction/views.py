"""Each party's view of a prediction, and simulators that produce it from what that party may know alone.

A view is a list of (name of message and field, tensor). A simulator gets what the party owns and what it is
allowed to learn, never another party's secret; if its views cannot be told from real ones, the party learns no more.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from tests.protocols.share.harness import compared, uniform_words
from torch import Tensor

from bilateral.protocols.share.circuit.description import Conv, Dense, MaxPool, Relu
from bilateral.protocols.share.gates.sealed import Width
from bilateral.protocols.share.gates.styles import HARDENED


def parts_of(message):
    """The payload of a message, field by field; names and indices are public."""
    found = []
    for item in fields(message):
        value = getattr(message, item.name)
        values = value if isinstance(value, tuple) else (value,)
        found += [(f"{type(message).__name__}.{item.name}", part) for part in values if isinstance(part, Tensor)]
    return found


def view_of_client(group, party):
    """What a client received, in order."""
    return [part for exchange in group.log if exchange.party == party for part in parts_of(exchange.request)]


def view_of_server(group):
    """What the server received from all clients, in order."""
    return [part for exchange in group.log for part in parts_of(exchange.reply)]


def structure(view):
    """Names, shapes and types: what must agree exactly."""
    return [(name, tuple(part.shape), part.dtype) for name, part in view]


class Uniform:
    """Uniform tensors and bits from a seed of the simulator's own."""

    def __init__(self, seed):
        self._seed = 7_000_000 + 10_000 * seed

    def words(self, *shape):
        self._seed += 1
        return uniform_words(shape, self._seed)

    def bits(self, count):
        """Packed in words; the unused bits of the last one are zero, as in the protocol."""
        words = self.words((count + 63) // 64)
        if count % 64:
            words[-1] &= (1 << (count % 64)) - 1
        return words


def _comparisons_by_step(circuit):
    left = list(circuit.comparisons)
    for step, value in zip(circuit.steps, circuit.values[1:], strict=True):
        count, found = 0, []
        if isinstance(step, Relu):
            count = value.size
        elif isinstance(step, MaxPool):
            count = (step.kernel[0] * step.kernel[1] - 1) * value.size
        while count:
            found.append(left.pop(0))
            count -= found[-1].size
        yield step, found


def _told_of_comparison(circuit, compared, batch):
    """Shapes of what a party tells of a sealed comparison: words under masks, then planes of bits."""
    width = Width.of(batch * compared.size, circuit.value_bits, compared.fraction_bits)
    opened, groups = [], width.digits
    while groups > 1:
        opened.append((3 * (groups // 2) - 1, width.words))
        groups -= groups // 2
    return [(width.count,), *opened, (width.words,)]


def simulated_answerer(circuit, batch, style, seed):
    """The answering party's view, from its circuit and the number of queries: everything is uniform.

    Bits of truncations; then, in the order of the circuit, inputs of layers under masks and what sealed comparisons
    open (a judge's answers go to the server).
    """
    draw, done = Uniform(seed), set()
    view = [("Carries.bits", draw.bits(batch * value.size)) for value in circuit.linear_values]
    for step, comparisons in _comparisons_by_step(circuit):
        if isinstance(step, Dense | Conv) and step.sources[0] not in done:
            done.add(step.sources[0])
            view.append(("ServerTurn.parts", draw.words(batch, *circuit.values[step.sources[0]].shape)))
        for one in () if style.is_judged else comparisons:
            view += [("ServerTurn.parts", draw.words(*shape)) for shape in _told_of_comparison(circuit, one, batch)]
    return view


def simulated_server(circuit, batch, style, seed):
    """The server's view of one session, from the circuit and the number of queries: everything is uniform.

    A sequential circuit that begins with a linear layer.
    """
    draw = Uniform(seed)
    view = [
        ("MaskedModel.weights", draw.words(*step.weight_shape(circuit.values[step.sources[0]])))
        for step in circuit.linear_steps
    ]
    shapes = [(batch, *value.shape) for value in circuit.linear_values]
    view += [("Correlations.products", draw.words(*shape)) for shape in shapes]
    view += [("Correlations.carries", draw.words(*shape).to(torch.int32)) for shape in shapes]
    if not style.is_judged:
        for one in circuit.comparisons:
            width = Width.of(batch * one.size, circuit.value_bits, one.fraction_bits)
            view += [("Tables.comparisons", draw.words(*shape)) for shape in width.dealt_shapes]
    view.append(("QueryShare.share", draw.words(batch, *circuit.input_shape)))
    judged = []
    for step, value, (_, comparisons) in zip(
        circuit.steps, circuit.values[1:], _comparisons_by_step(circuit), strict=True
    ):
        if isinstance(step, Dense | Conv):
            view += judged  # what was told of comparisons comes in one turn with the bits; then they are judged
            judged = []
            view.append(("AnswererTurn.parts", draw.bits(batch * value.size)))
        for one in comparisons:
            if style.is_judged:
                shape = batch, one.size
                view.append(("AnswererTurn.parts", draw.words(*shape)))
                judged += [(f"SelectedValues.{name}", draw.words(*shape)) for name in ("products", "bits")]
            else:
                shapes = _told_of_comparison(circuit, one, batch)
                view += [("AnswererTurn.parts", draw.words(*shape)) for shape in shapes]
    return [*view, ("AnswererTurn.parts", draw.words(batch, *circuit.output.shape)), *judged]


def simulated_querier(logits):
    """The dealer's view of a sealed prediction, from the sum of the logits: that is all of it."""
    return [("SummedLogits.logits", logits)]


def simulated_judge(sizes, logits, masks, seed):
    """The querying party's view where it judges, from the sum of the logits, its own masks, and *sizes* of numbers.

    `sizes`: a tensor a comparison with |t| (or |t + 1| for negative ones), in any order: what is known to leak.
    """
    view = []
    for position, size in enumerate(sizes):
        u, _ = compared(size.sort(dim=1).values, 20, HARDENED, seed=90_000 + 100 * seed + position)
        view.append(("BlindedValues.values", u + masks[position]))
    return [*view, ("SummedLogits.logits", logits)]
