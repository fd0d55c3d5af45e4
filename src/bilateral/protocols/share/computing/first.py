"""The first party's half of a circuit: it has the weights in the clear, and sees the other's values under masks.

It sees, for each linear layer's input x, the value x - b with b uniform and unknown to it, bits under uniform masks,
and what comparisons open (`gates/sealed`: uniform too).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import ProtocolError
from bilateral.protocols.share.circuit.description import Circuit, Linear
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.circuit.walk import Walk, walk
from bilateral.protocols.share.gates import sealed, truncation
from bilateral.protocols.share.gates.judged import Blinding
from bilateral.protocols.share.gates.styles import ComparisonStyle
from bilateral.protocols.share.gates.talk import Hear, Tell, Work
from bilateral.protocols.share.ring.packing import from_words, num_words, to_words
from bilateral.protocols.share.ring.streams import Stream


@dataclass(frozen=True, repr=False)
class FirstSeeds:
    """What the first party has in common with each of the others."""

    with_dealer: bytes
    with_second: bytes


@dataclass(frozen=True)
class Batch:
    """Masks of a batch are used once: whoever holds the seeds never begins one index twice."""

    index: int
    size: int


def expect_batch(sender: str, circuit: Circuit, size: int) -> None:
    """Refuse a batch that one would be out of memory with, naming who began it."""
    if not 1 <= size <= circuit.largest_batch:
        raise ProtocolError(
            f"{sender} began a batch of {size} queries, but 1 to {circuit.largest_batch} of this circuit fit.",
            remedy="Both sides must run the same version of the protocol.",
        )


def masked_weights(model: FixedPointModel, seeds: FirstSeeds, device: torch.device | None = None) -> tuple[Tensor, ...]:
    """For the second party, once a session: the weights under masks that the dealer knows."""
    masks = Stream.of(seeds.with_dealer, "weights", 0, 0, device)
    return tuple((layer.weight + masks.words(*layer.weight.shape)).cpu() for layer in model.layers)


class FirstParty:
    """One batch: the first party's `Arithmetic`. It tells and hears the second party in the order of the circuit."""

    def __init__(
        self,
        model: FixedPointModel,
        style: ComparisonStyle,
        seeds: FirstSeeds,
        batch: Batch,
        device: torch.device | None = None,
    ) -> None:
        self._model, self._style, self._batch = model, style, batch
        named = batch.index, batch.size, device
        self._linear = Stream.of(seeds.with_dealer, "linear", *named)
        self._comparison = Stream.of(seeds.with_dealer, "comparison", *named)
        self._rounding = Stream.of(seeds.with_second, "rounding", *named)
        self._blindings = Stream.of(seeds.with_second, "comparison", *named)
        self._masked: dict[int, Tensor] = {}
        self._wraps: Iterator[Tensor] = iter(())
        self._drawn: deque[sealed.Correlation] = deque()

    def draw(self) -> None:
        """Its part of all comparisons, before there are values; what is not drawn here is drawn when it is needed."""
        if self._style.is_judged:
            return
        circuit = self._model.circuit
        for compared in circuit.comparisons:
            width = sealed.Width.of(self._batch.size * compared.size, circuit.value_bits, compared.fraction_bits)
            self._drawn.append(sealed.drawn_part(self._comparison, width))

    def evaluate(self, x: Tensor) -> Work[Tensor]:
        """The circuit on its share `x` of the input: a share of the output. It first hears bits of all truncations."""
        wraps: list[Tensor] = []
        for value in self._model.circuit.linear_values:
            heard = yield Hear("bits of a truncation", (num_words(self._batch.size * value.size),))
            wraps.append(heard)
        self._wraps = iter(wraps)
        return (yield from walk(self._model.circuit, x, self))

    def linear(self, index: int, step: Linear, source: int, x: Tensor) -> Walk:
        del step
        if source not in self._masked:
            self._masked[source] = x + (yield Hear("value", tuple(x.shape)))
        y, stream = self._model.maps[index](self._masked[source]), self._linear
        mask, alpha, product = stream.words(*y.shape), stream.packed_bits(y.numel()), stream.half_words(*y.shape)
        mask -= self._rounding.words(*y.shape)
        epsilon = from_words(next(self._wraps), y.numel())
        bias, shift = self._model.layers[index].bias, self._model.circuit.values[source].fraction_bits
        share, delta = truncation.finish_first(y, mask, bias, shift, alpha, product, epsilon)
        yield Tell(to_words(delta))
        return share

    def positive_part(self, x: Tensor, fraction_bits: int) -> Walk:
        if self._style.is_judged:
            return (yield from self._judged(x, fraction_bits))
        width = sealed.Width.of(x.numel(), self._model.circuit.value_bits, fraction_bits)
        part = self._drawn.popleft() if self._drawn else sealed.drawn_part(self._comparison, width)
        return (yield from sealed.positive_part(x, part, width, is_first=True))

    def _judged(self, x: Tensor, fraction_bits: int) -> Walk:
        flat = x.reshape(len(x), -1)
        blinding = Blinding.draw(self._blindings, (flat.shape[0], flat.shape[1]), fraction_bits, self._style)
        yield Tell(blinding.blind_first(flat, self._comparison.words(*flat.shape)))
        product, bit = self._comparison.words(*flat.shape), self._comparison.words(*flat.shape)
        return blinding.select(flat, product, bit).reshape(x.shape)
