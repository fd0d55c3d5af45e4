"""The dealer's half of a circuit: correlated randomness for a batch, before any value of it is there.

It knows the masks of weights, of inputs and of comparisons, and nothing that they hide. Where comparisons are judged (a
setting, `gates/styles`) it also answers, later, which of some blinded numbers are positive (`Judging`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import ProtocolError
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.circuit.plaintext import linear_map
from bilateral.protocols.share.computing.first import Batch
from bilateral.protocols.share.gates import sealed, truncation
from bilateral.protocols.share.gates.expected import expect_count, expect_tensor
from bilateral.protocols.share.gates.judged import Judgement, judge, left_range
from bilateral.protocols.share.gates.styles import ComparisonStyle
from bilateral.protocols.share.ring.streams import Stream


@dataclass(frozen=True, repr=False)
class DealerSeeds:
    """What the dealer has in common with each computing party."""

    with_first: bytes
    with_second: bytes


@dataclass(frozen=True, repr=False)
class DealtLayers:
    """For the second party, for the linear layers of one batch: uniform to it.

    `products`: its shares of (mask of the weights) times (mask of the input), a tensor a layer. `carries`: of products
    of bits, for truncation (int32).
    """

    products: tuple[Tensor, ...]
    carries: tuple[Tensor, ...]


def widths(circuit: Circuit, style: ComparisonStyle, batch_size: int) -> list[sealed.Width]:
    """Of the comparisons that are dealt for, in the order of the circuit."""
    if style.is_judged:
        return []
    return [
        sealed.Width.of(batch_size * compared.size, circuit.value_bits, compared.fraction_bits)
        for compared in circuit.comparisons
    ]


def expect_layers(sender: str, dealt: DealtLayers, circuit: Circuit, batch_size: int) -> None:
    """Refuse what was not dealt for this circuit and batch, naming the sender."""
    expect_count(sender, "products", len(dealt.products), len(circuit.linear_steps))
    expect_count(sender, "carries", len(dealt.carries), len(circuit.linear_steps))
    for product, carries, value in zip(dealt.products, dealt.carries, circuit.linear_values, strict=True):
        expect_tensor(sender, "products", product, (batch_size, *value.shape), torch.int64)
        expect_tensor(sender, "carries", carries, (batch_size, *value.shape), torch.int32)


def expect_tables(
    sender: str, comparisons: Sequence[Tensor], circuit: Circuit, style: ComparisonStyle, batch_size: int
) -> None:
    """The same of what was dealt for comparisons: two tensors each (`sealed.Width.dealt_shapes`)."""
    shapes = [shape for width in widths(circuit, style, batch_size) for shape in width.dealt_shapes]
    expect_count(sender, "comparisons", len(comparisons), len(shapes))
    for part, shape in zip(comparisons, shapes, strict=True):
        expect_tensor(sender, "comparisons", part, shape, torch.int64)


class Dealer:
    """One circuit, many batches."""

    def __init__(
        self, circuit: Circuit, style: ComparisonStyle, seeds: DealerSeeds, device: torch.device | None = None
    ) -> None:
        self._circuit, self._style, self._seeds, self._device = circuit, style, seeds, device
        masks = Stream.of(seeds.with_first, "weights", 0, 0, device)
        self._maps = [
            linear_map(step, masks.words(*step.weight_shape(circuit.values[step.sources[0]])))
            for step in circuit.linear_steps
        ]

    def deal_layers(self, batch: Batch) -> DealtLayers:
        """b for every linear layer's input, and the second party's part of what layers need."""
        named = batch.index, batch.size, self._device
        firsts = Stream.of(self._seeds.with_first, "linear", *named)
        seconds = Stream.of(self._seeds.with_second, "linear", *named)
        inputs: dict[int, Tensor] = {}
        products, carries = [], []
        for step, apply in zip(self._circuit.linear_steps, self._maps, strict=True):
            (source,) = step.sources
            if source not in inputs:
                inputs[source] = seconds.words(batch.size, *self._circuit.values[source].shape)
            product = apply(inputs[source])
            product -= firsts.words(*product.shape)
            alpha, share = firsts.packed_bits(product.numel()), firsts.half_words(*product.shape)
            beta = seconds.packed_bits(product.numel())
            products.append(product.cpu())
            carries.append(truncation.deal(alpha, beta, share).cpu())
        return DealtLayers(tuple(products), tuple(carries))

    def deal_comparisons(self, batch: Batch) -> tuple[Tensor, ...]:
        """The second party's part of what comparisons need; nothing where they are judged."""
        named = batch.index, batch.size, self._device
        firsts = Stream.of(self._seeds.with_first, "comparison", *named)
        seconds = Stream.of(self._seeds.with_second, "comparison", *named)
        found: list[Tensor] = []
        for width in widths(self._circuit, self._style, batch.size):
            found.extend(part.cpu() for part in sealed.deal(firsts, seconds, width))
        return tuple(found)

    def judging(self, batch: Batch) -> Judging:
        """What it does while the others compute, in a judged style."""
        return Judging(
            batch.size,
            Stream.of(self._seeds.with_first, "comparison", batch.index, batch.size, self._device),
            deque(compared.size for compared in self._circuit.comparisons) if self._style.is_judged else deque(),
        )


@dataclass(repr=False)
class Judging:
    """Which comparisons of a batch are still to be judged, and what the dealer saw of its range."""

    batch_size: int
    _stream: Stream
    _comparisons: deque[int]

    def __post_init__(self) -> None:
        self.left_range = torch.zeros(self.batch_size, dtype=torch.bool)
        """For which samples a number left the range of comparisons, as far as the dealer sees."""

    def judge(self, values: Tensor, sender: str) -> Judgement:
        """Which of these numbers are positive, as the second party's shares."""
        if not self._comparisons:
            raise ProtocolError(f"{sender} asked for more comparisons than are judged in this circuit.")
        shape = (self.batch_size, self._comparisons[0])
        expect_tensor(sender, "values", values, shape, torch.int64)
        self._comparisons.popleft()
        masked, mask = values.to(self._stream.device), self._stream.words(*shape)
        self.left_range |= left_range(masked, mask).cpu()
        return judge(masked, mask, self._stream.words(*shape), self._stream.words(*shape))
