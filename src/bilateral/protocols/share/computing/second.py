"""The second party's half of a circuit: it holds the other share of every value, and the weights under masks.

What it needs of the dealer comes before the values do (`multiply`, `combine`, `take_tables`): its share of every linear
layer's output is (W + A) b - c, and does not depend on any value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.protocols.share.circuit.description import Circuit, Linear
from bilateral.protocols.share.circuit.walk import Walk, walk
from bilateral.protocols.share.computing.dealer import DealtLayers, expect_layers, expect_tables
from bilateral.protocols.share.computing.first import Batch
from bilateral.protocols.share.gates import sealed, truncation
from bilateral.protocols.share.gates.expected import expect_count, expect_tensor
from bilateral.protocols.share.gates.judged import Blinding
from bilateral.protocols.share.gates.styles import ComparisonStyle
from bilateral.protocols.share.gates.talk import Hear, Judge, Tell, Work
from bilateral.protocols.share.ring.arithmetic import LinearMap
from bilateral.protocols.share.ring.packing import from_words, num_words, to_words
from bilateral.protocols.share.ring.streams import Stream


@dataclass(frozen=True, repr=False)
class SecondSeeds:
    """What the second party has in common with each of the others."""

    with_dealer: bytes
    with_first: bytes


@dataclass(repr=False)
class _Layer:
    """What it knows of a linear layer's output before the values come; the last two are dealt to it."""

    share: Tensor
    beta: Tensor
    product: Tensor | None = None
    epsilon: Tensor | None = None


_SPENT = _Layer(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.uint8))
"""In place of a layer whose share was used: a batch frees its memory as it goes."""


@dataclass(frozen=True, repr=False)
class Prepared:
    """What `combine` and `take_tables` leave behind: with its seeds all that a batch needs until there are values.

    A tensor a linear layer: its share of the output (int64), beta and epsilon (64 bits to a word), the dealt carries
    (int32); and two a comparison.
    """

    shares: tuple[Tensor, ...]
    betas: tuple[Tensor, ...]
    epsilons: tuple[Tensor, ...]
    carries: tuple[Tensor, ...]
    comparisons: tuple[Tensor, ...]


class SecondParty:
    """One batch: the second party's `Arithmetic`. `dealer` is named in errors."""

    def __init__(
        self,
        circuit: Circuit,
        maps: Sequence[LinearMap],
        style: ComparisonStyle,
        seeds: SecondSeeds,
        batch: Batch,
        dealer: str,
        device: torch.device | None = None,
    ) -> None:
        self._circuit, self._maps, self._style, self._batch, self._dealer = circuit, maps, style, batch, dealer
        self._device = device
        named = batch.index, batch.size, device
        self._linear = Stream.of(seeds.with_dealer, "linear", *named)
        self._comparison = Stream.of(seeds.with_dealer, "comparison", *named)
        self._rounding = Stream.of(seeds.with_first, "rounding", *named)
        self._blindings = Stream.of(seeds.with_first, "comparison", *named)
        self._layers: list[_Layer] = []
        self._input_masks: dict[int, Tensor] = {}
        self._tables: list[tuple[Tensor, Tensor]] = []

    def multiply(self) -> None:
        """Masked weights times input masks: the longest work, done while the dealer does as much."""
        for step, apply in zip(self._circuit.linear_steps, self._maps, strict=True):
            (source,) = step.sources
            if source not in self._input_masks:
                self._input_masks[source] = self._linear.words(self._batch.size, *self._circuit.values[source].shape)
            product = apply(self._input_masks[source])
            self._layers.append(_Layer(product, self._linear.packed_bits(product.numel())))

    def combine(self, dealt: DealtLayers) -> tuple[Tensor, ...]:
        """After `multiply`: its share of every linear layer's output. Returns what the first party hears first."""
        expect_layers(self._dealer, dealt, self._circuit, self._batch.size)
        told = []
        for layer, product, carries in zip(self._layers, dealt.products, dealt.carries, strict=True):
            shape, device = tuple(layer.share.shape), layer.share.device
            # Shared anew: else the dealer could tell from its own masks how this share was rounded.
            dealt_anew = self._rounding.words(*shape) + product.to(device)
            layer.share, layer.epsilon = truncation.start_second(layer.share, dealt_anew, layer.beta)
            layer.product = carries.to(device)
            told.append(to_words(layer.epsilon).cpu())
        return tuple(told)

    def take_tables(self, comparisons: Sequence[Tensor]) -> None:
        """What was dealt for comparisons, before `evaluate`."""
        expect_tables(self._dealer, comparisons, self._circuit, self._style, self._batch.size)
        self._keep_tables(comparisons)

    def prepared(self) -> Prepared:
        """After `combine` and `take_tables`, before `evaluate`."""
        layers = [(layer, layer.epsilon, layer.product) for layer in self._layers]
        return Prepared(
            tuple(layer.share.cpu() for layer, _, _ in layers),
            tuple(to_words(layer.beta).cpu() for layer, _, _ in layers),
            tuple(to_words(epsilon).cpu() for _, epsilon, _ in layers if epsilon is not None),
            tuple(product.cpu() for _, _, product in layers if product is not None),
            tuple(part.cpu() for pair in self._tables[::-1] for part in pair),
        )

    def load(self, kept: Prepared) -> None:
        """In place of `multiply`, `combine` and `take_tables`: what another object for the same batch left behind."""
        expect_layers("the store", DealtLayers(kept.shares, kept.carries), self._circuit, self._batch.size)
        expect_tables("the store", kept.comparisons, self._circuit, self._style, self._batch.size)
        for name, parts in (("betas", kept.betas), ("epsilons", kept.epsilons)):
            expect_count("the store", name, len(parts), len(kept.shares))
            for part, share in zip(parts, kept.shares, strict=True):
                expect_tensor("the store", name, part, (num_words(share.numel()),), torch.int64)
        self._draw_input_masks()
        for share, beta, epsilon, carries in zip(kept.shares, kept.betas, kept.epsilons, kept.carries, strict=True):
            bits = (from_words(words, share.numel()).to(self._device) for words in (beta, epsilon))
            own, told = bits
            self._layers.append(_Layer(share.to(self._device), own, carries.to(self._device), told))
        self._keep_tables(kept.comparisons)

    def _draw_input_masks(self) -> None:
        """As `multiply` does, without the products."""
        for step, value in zip(self._circuit.linear_steps, self._circuit.linear_values, strict=True):
            (source,) = step.sources
            if source not in self._input_masks:
                self._input_masks[source] = self._linear.words(self._batch.size, *self._circuit.values[source].shape)
            self._linear.packed_bits(self._batch.size * value.size)

    def _keep_tables(self, comparisons: Sequence[Tensor]) -> None:
        tables = [part.to(self._device) for part in comparisons]
        self._tables = list(zip(tables[::2], tables[1::2], strict=True))[::-1]

    def evaluate(self, x: Tensor) -> Work[Tensor]:
        """The circuit on its share `x` of the input: a share of the output."""
        return (yield from walk(self._circuit, x, self))

    def linear(self, index: int, step: Linear, source: int, x: Tensor) -> Walk:
        del step
        layer = self._layers[index]
        if source in self._input_masks:
            yield Tell(x - self._input_masks.pop(source))
        assert layer.product is not None and layer.epsilon is not None, "dealt before"
        count = layer.share.numel()
        delta = from_words((yield Hear("bits of a truncation", (num_words(count),))), count)
        shift = self._circuit.values[source].fraction_bits
        share = truncation.finish_second(layer.share, shift, layer.beta, layer.product, delta, layer.epsilon)
        self._layers[index] = _SPENT
        return share

    def positive_part(self, x: Tensor, fraction_bits: int) -> Walk:
        if self._style.is_judged:
            return (yield from self._judged(x, fraction_bits))
        width = sealed.Width.of(x.numel(), self._circuit.value_bits, fraction_bits)
        part = sealed.dealt_part(self._comparison, self._tables.pop(), width)
        return (yield from sealed.positive_part(x, part, width, is_first=False))

    def _judged(self, x: Tensor, fraction_bits: int) -> Walk:
        flat = x.reshape(len(x), -1)
        received = yield Hear("blinded numbers", tuple(flat.shape))
        blinding = Blinding.draw(self._blindings, (flat.shape[0], flat.shape[1]), fraction_bits, self._style)
        product, bit = yield Judge(blinding.blind_second(flat, received))
        return blinding.select(flat, product, bit).reshape(x.shape)
