"""The querying client's half of a session: it has queries, and deals to the two parties that compute. The dealer.

It deals before it has queries, if it is asked to. In a judged style it also judges comparisons. It sees the circuit,
then blinded numbers if it judges, and at the end the sum of all answering parties' logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import MalformedMessageError, NumericalRangeError, ProtocolError
from bilateral.protocols.share.circuit.description import FRACTION_BITS, Circuit
from bilateral.protocols.share.computing.dealer import Dealer, DealerSeeds, Judging
from bilateral.protocols.share.computing.first import Batch, expect_batch
from bilateral.protocols.share.gates.styles import ComparisonStyle
from bilateral.protocols.share.prediction.messages import (
    BatchRequest,
    BlindedValues,
    Correlations,
    QueryRequest,
    QueryShare,
    SelectedValues,
    Tables,
    TablesRequest,
)
from bilateral.protocols.share.prediction.store import Kept
from bilateral.protocols.share.prediction.stored import StoredDealt
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring.streams import Stream

QUERY_HEADROOM = 2
"""As far beyond a network's own samples as a query may go; its own numbers have four times of room."""


@dataclass(frozen=True, repr=False)
class QueryingSeeds:
    session_id: bytes
    with_answerer: bytes
    with_server: bytes


@dataclass(repr=False)
class _QueryingBatch:
    """An open batch, and which of the asked queries it has, once it was asked for them."""

    batch: Batch
    judging: Judging
    has_tables: bool
    """It was dealt for comparisons too, or is not to be."""
    queries: slice | None = None


def check_takes(circuit: Circuit, queries: Tensor, sender: str) -> None:
    """A circuit for other samples than the own ones answers nothing: it is refused before anything is made for it."""
    if circuit.input_shape != tuple(queries.shape[1:]):
        raise MalformedMessageError(
            f"{sender} sent a circuit for samples of shape {circuit.input_shape}, "
            f"but the queries have the shape {tuple(queries.shape[1:])}.",
            remedy="All clients of a federation need samples of one shape.",
        )


class QueryingSession:
    """One answering party's model, many batches of queries. `sender` is the server, for error messages."""

    def __init__(
        self,
        seeds: QueryingSeeds,
        circuit: Circuit,
        style: ComparisonStyle,
        sender: str,
        device: torch.device | None = None,
        kept: Kept | None = None,
    ) -> None:
        """`kept`: where batches wait that are dealt ahead; in memory, if there is no such place."""
        self.circuit = circuit
        self._kept, self._style = kept, style
        self._seeds, self._sender, self._device = seeds, sender, device
        self._dealer = Dealer(circuit, style, DealerSeeds(seeds.with_answerer, seeds.with_server), device)
        self._last_batch = kept.last_index if kept else -1
        self._next_query = 0
        self._open: dict[int, _QueryingBatch] = {}
        for index in kept.waiting if kept else ():
            batch = Batch(index, kept.look(index, StoredDealt).batch_size)  # type: ignore[union-attr]
            self._open[index] = _QueryingBatch(batch, self._dealer.judging(batch), has_tables=True)

    @property
    def num_dealt_ahead(self) -> int:
        """Queries that were dealt for and not asked yet."""
        return sum(opened.batch.size for opened in self._open.values() if opened.queries is None)

    def restart(self) -> None:
        """New queries were asked: batches begin with the first of them. Those that are dealt for wait on."""
        self._next_query = 0
        # A batch that failed must not go on with other queries: its masks hide its own.
        self._open = {index: opened for index, opened in self._open.items() if opened.queries is None}

    def deal(self, message: BatchRequest, at_most: int) -> Correlations:
        """Offline: what the server needs for one batch, of `at_most` so many queries with those that are dealt for.

        If that would be more, batches that wait the longest are forgotten: a run that failed has lost them, and what
        was dealt for them hid nothing yet.
        """
        index, size = message.batch_index, message.batch_size
        if index <= self._last_batch:
            raise ProtocolError(
                f"{self._sender} asked for batch {index} of a session after batch {self._last_batch}.",
                remedy="Masks are used once: every batch needs a new index.",
            )
        if size < 1 or self._next_query + size > at_most:
            raise ProtocolError(f"{self._sender} began a batch of {size}, but not so many queries are left to ask.")
        expect_batch(self._sender, self.circuit, size)
        self._make_room(at_most - self._next_query - size)
        batch = Batch(index, size)
        if self._kept:
            self._kept.put(index, StoredDealt(size))
        self._last_batch = index
        self._open[index] = _QueryingBatch(batch, self._dealer.judging(batch), has_tables=self._style.is_judged)
        dealt = self._dealer.deal_layers(batch)
        return Correlations(self._seeds.session_id, index, dealt.products, dealt.carries)

    def deal_tables(self, message: TablesRequest) -> Tables:
        """Offline: what the server needs for the comparisons of a batch that was dealt for, once."""
        opened = self._batch(message.batch_index)
        if opened.has_tables:
            raise ProtocolError(
                f"{self._sender} asked for tables of batch {message.batch_index}, which has all that it needs.",
                remedy="Masks are used once: every batch needs a new index.",
            )
        opened.has_tables = True
        found = self._dealer.deal_comparisons(opened.batch)
        return Tables(self._seeds.session_id, message.batch_index, found)

    def _make_room(self, at_most: int) -> None:
        waiting = [index for index, opened in self._open.items() if opened.queries is None]
        for index in waiting:  # in the order in which they were dealt
            if self.num_dealt_ahead > at_most:
                del self._open[index]
                if self._kept:
                    self._kept.use_up(index)

    def share_queries(self, message: QueryRequest, queries: Tensor) -> QueryShare:
        """Online: the server's share of the next queries; the answering party's comes from the seed."""
        opened = self._batch(message.batch_index)
        batch = opened.batch
        if opened.queries is not None:
            raise ProtocolError(f"{self._sender} asked twice for the queries of batch {batch.index}.")
        if self._next_query >= len(queries):
            raise ProtocolError(f"{self._sender} asked for the queries of a batch of {batch.size}, but none are left.")
        check_takes(self.circuit, queries, self._sender)
        chosen = slice(self._next_query, min(self._next_query + batch.size, len(queries)))
        self._check_range(queries[chosen])
        mask = Stream.of(self._seeds.with_answerer, "input", batch.index, batch.size, self._device)
        encoded = ring.encode(queries[chosen], FRACTION_BITS).to(mask.device)
        if missing := batch.size - len(encoded):  # dealt ahead for more than are asked: zeros, which nobody can tell
            encoded = torch.cat([encoded, encoded.new_zeros(missing, *encoded.shape[1:])])
        share = encoded - mask.words(*encoded.shape)
        if self._kept:
            self._kept.take(batch.index, StoredDealt)
        opened.queries, self._next_query = chosen, chosen.stop
        return QueryShare(self._seeds.session_id, batch.index, share.cpu())

    def _check_range(self, queries: Tensor) -> None:
        """Far beyond what a network was checked on, its numbers are likely to leave the range of comparisons."""
        largest, allowed = float(queries.abs().max()), QUERY_HEADROOM * self.circuit.largest_input
        if not largest <= allowed:
            raise NumericalRangeError(
                f"Expected queries up to {allowed} in size (the answering network saw up to "
                f"{self.circuit.largest_input}), got {largest:.3g}.",
                remedy="Normalise them as the answering networks' training data were.",
            )

    def judge(self, message: BlindedValues) -> SelectedValues:
        """Online, in a judged style: which of these numbers are positive, as shares."""
        found = self._batch(message.batch_index).judging.judge(message.values, self._sender)
        return SelectedValues(self._seeds.session_id, message.batch_index, found.product.cpu(), found.bit.cpu())

    def finish(self, batch_index: int) -> tuple[slice, Tensor, Tensor]:
        """Which queries a batch had, what the answering party's outputs for them are masked with, and which of them
        left the range, as far as a judge sees it."""
        opened = self._batch(batch_index)
        if opened.queries is None:
            raise ProtocolError(f"{self._sender} answered batch {batch_index}, which it has not asked the queries of.")
        del self._open[batch_index]
        batch = opened.batch
        mask = Stream.of(self._seeds.with_answerer, "output", batch.index, batch.size, self._device)
        return opened.queries, mask.words(batch.size, *self.circuit.output.shape), opened.judging.left_range

    def _batch(self, batch_index: int) -> _QueryingBatch:
        if batch_index not in self._open:
            raise ProtocolError(f"{self._sender} went on with batch {batch_index} of a session, which is not open.")
        return self._open[batch_index]
