"""Sizes of uploads from refusals (ledger line 11). A client says which power of two holds a row that did not fit.

A passive server reads what refusals come by themselves. An active one announces ranges that nothing fits, every round:
each client then refuses every row, and no rule of the protocol is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bilateral.learning.exchange import Exchange, Respond
from bilateral.learning.masked_aggregation import MaskedAggregation
from bilateral.protocols.mask.fixed_point import MIN_BOUND_BITS
from bilateral.protocols.mask.messages import RangeRefusal
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.messages import Message, UploadShape

TINY = 2.0**MIN_BOUND_BITS


def sizes_told(refusal: RangeRefusal) -> dict[int, float]:
    """The guessed largest |weight * value| of each refused row: the middle, in octaves, of what the refusal allows."""
    return {row: 2.0 ** (bits - 0.5) for row, bits in zip(refusal.rows, refusal.bound_bits, strict=True)}


class RangeProbe:
    """A server that follows the masking protocol up to the uploads, with ranges that nothing fits."""

    def __init__(
        self,
        run_id: bytes,
        names: Sequence[str],
        settings: MaskSettings,
        shape: UploadShape,
    ) -> None:
        server = MaskServer(run_id, names, settings, [TINY] * (shape.num_terms + 1))
        self._aggregation = MaskedAggregation(server, run_id, names, shape)

    def probe(
        self,
        round_index: int,
        participants: Sequence[str],
        start_round: Callable[[int], Message],
        exchange: Exchange,
        respond: Respond | None = None,
    ) -> dict[str, dict[int, float]]:
        """Every client's guessed sizes, by row. `respond` answers what clients ask while they train."""
        opened = self._aggregation.open(round_index, participants, exchange)
        model = start_round(round_index)
        packets = {name: (*before, model) for name, before in opened.items()}
        replies = exchange(round_index, packets, respond)
        return {name: sizes_told(reply) for name, reply in replies.items() if isinstance(reply, RangeRefusal)}
