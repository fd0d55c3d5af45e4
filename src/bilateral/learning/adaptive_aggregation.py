"""Adaptive clipping around a masked sum: the norm goes out with the model, the noisy count comes back in the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bilateral.learning.aggregation import Aggregation, Incident
from bilateral.learning.exchange import Exchange, Packet
from bilateral.learning.halves import OpenedRound
from bilateral.protocols.membership import ClipNorm
from bilateral.protocols.messages import Aggregate, Message
from bilateral.protocols.noise.adaptive import AdaptiveNorm


class AdaptiveAggregation:
    """Another aggregation whose uploads carry the count of adaptive clipping as their only statistic."""

    def __init__(self, inner: Aggregation, norm: AdaptiveNorm) -> None:
        self._inner = inner
        self._norm = norm

    @property
    def incidents(self) -> list[Incident]:
        return self._inner.incidents

    @property
    def opened(self) -> OpenedRound | None:
        return self._inner.opened

    def open(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> dict[str, Packet]:
        opened = self._inner.open(round_index, participants, exchange)
        return {name: (self._message(round_index), *packet) for name, packet in opened.items()}

    def take(self, round_index: int, sender: str, reply: Message) -> Packet:
        return self._inner.take(round_index, sender, reply)

    def close(self, round_index: int, replies: Mapping[str, Message], exchange: Exchange, sent: Packet) -> Aggregate:
        # The norm is still that of `open`: it changes only with the sum.
        total = self._inner.close(round_index, replies, exchange, (self._message(round_index), *sent))
        return self._norm.take(total)

    def _message(self, round_index: int) -> ClipNorm:
        return ClipNorm(round_index, torch.tensor(self._norm.clip.norm, dtype=torch.float64))

    def outsiders(self) -> frozenset[str]:
        return self._inner.outsiders()

    def state_tensors(self) -> dict[str, Tensor]:
        return {**self._inner.state_tensors(), **{f"clip/{n}": t for n, t in self._norm.state_tensors().items()}}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._norm.load_state_tensors(
            {name.removeprefix("clip/"): t for name, t in tensors.items() if name.startswith("clip/")}
        )
        self._inner.load_state_tensors({n: t for n, t in tensors.items() if not n.startswith("clip/")})
