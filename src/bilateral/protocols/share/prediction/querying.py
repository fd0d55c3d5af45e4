"""The querying party's half of a session: it has queries, deals correlations, and judges blinded comparisons.

It sees the circuit, for each comparison blinded numbers (`comparison`), and at the end the sum of all answering
parties' logits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import MalformedMessageError, NumericalRangeError, ProtocolError
from bilateral.protocols.share.circuit.description import FRACTION_BITS, Circuit
from bilateral.protocols.share.circuit.plaintext import linear_map
from bilateral.protocols.share.gates import truncation
from bilateral.protocols.share.gates.comparison import judge, left_range
from bilateral.protocols.share.prediction.messages import (
    BatchRequest,
    BlindedValues,
    Correlations,
    QueryRequest,
    QueryShare,
    SelectedValues,
    expect_tensor,
)
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
    """An open batch: which of the asked queries it has, and what is still to be judged."""

    queries: slice
    size: int
    judging: Stream
    comparisons: deque[int]
    left_range: Tensor
    """For which of its queries a number of the network left the range of comparisons, as far as this party sees."""
    is_shared: bool = False
    """Its queries were sent: the mask that hides them hides nothing else."""


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

    def __init__(self, seeds: QueryingSeeds, circuit: Circuit, sender: str, device: torch.device | None = None) -> None:
        self.circuit = circuit
        self._seeds, self._sender, self._device = seeds, sender, device
        masks = Stream(seeds.with_answerer, "weights", 0, 0, device)
        self._maps = [
            linear_map(step, masks.words(*step.weight_shape(circuit.values[step.sources[0]])))
            for step in circuit.linear_steps
        ]
        self._last_batch = -1
        self._next_query = 0
        self._open: dict[int, _QueryingBatch] = {}

    def restart(self) -> None:
        """New queries were asked: batches begin with the first of them."""
        self._next_query = 0
        self._open.clear()  # a batch that failed must not go on with other queries

    def deal(self, message: BatchRequest, queries: Tensor) -> Correlations:
        """Offline: b for every linear layer's input, and the server's share of (mask of the weights) times b."""
        index, size = message.batch_index, message.batch_size
        if index <= self._last_batch:
            raise ProtocolError(
                f"{self._sender} asked for batch {index} of a session after batch {self._last_batch}.",
                remedy="Masks are used once: every batch needs a new index.",
            )
        if size < 1 or self._next_query + size > len(queries):
            raise ProtocolError(f"{self._sender} began a batch of {size}, but not so many queries are left to ask.")
        check_takes(self.circuit, queries, self._sender)
        self._check_range(queries)
        own = Stream(self._seeds.with_answerer, "linear", index, size, self._device)
        servers = Stream(self._seeds.with_server, "linear", index, size, self._device)
        self._last_batch = index
        self._open[index] = _QueryingBatch(
            slice(self._next_query, self._next_query + size),
            size,
            Stream(self._seeds.with_answerer, "comparison", index, size, self._device),
            deque(self.circuit.comparison_sizes),
            torch.zeros(size, dtype=torch.bool),
        )
        self._next_query += size
        inputs: dict[int, Tensor] = {}
        products, carries = [], []
        for step, apply in zip(self.circuit.linear_steps, self._maps, strict=True):
            (source,) = step.sources
            if source not in inputs:
                inputs[source] = servers.words(size, *self.circuit.values[source].shape)
            product = apply(inputs[source])
            product -= own.words(*product.shape)
            alpha, share = own.packed_bits(product.numel()), own.half_words(*product.shape)
            beta = servers.packed_bits(product.numel())
            products.append(product.cpu())
            carries.append(truncation.deal(alpha, beta, share).cpu())
        return Correlations(self._seeds.session_id, index, tuple(products), tuple(carries))

    def _check_range(self, queries: Tensor) -> None:
        """Far beyond what a network was checked on, its numbers are likely to leave the range of comparisons."""
        largest, allowed = float(queries.abs().max()), QUERY_HEADROOM * self.circuit.largest_input
        if not largest <= allowed:
            raise NumericalRangeError(
                f"Expected queries up to {allowed} in size (the answering network saw up to "
                f"{self.circuit.largest_input}), got {largest:.3g}.",
                remedy="Normalise them as the answering networks' training data were.",
            )

    def share_queries(self, message: QueryRequest, queries: Tensor) -> QueryShare:
        """Online: the server's share of the batch's queries; the answering party's comes from the seed."""
        batch = self._batch(message.batch_index)
        if batch.is_shared:
            raise ProtocolError(f"{self._sender} asked twice for the queries of batch {message.batch_index}.")
        mask = Stream(self._seeds.with_answerer, "input", message.batch_index, batch.size, self._device)
        encoded = ring.encode(queries[batch.queries], FRACTION_BITS).to(mask.device)
        share = encoded - mask.words(*encoded.shape)
        batch.is_shared = True
        return QueryShare(self._seeds.session_id, message.batch_index, share.cpu())

    def judge(self, message: BlindedValues) -> SelectedValues:
        """Online: which of these numbers are positive, as shares."""
        batch = self._batch(message.batch_index)
        if not batch.comparisons:
            raise ProtocolError(f"{self._sender} asked for more comparisons than the circuit has.")
        shape, stream = (batch.size, batch.comparisons[0]), batch.judging
        expect_tensor(self._sender, "values", message.values, shape, torch.int64)
        batch.comparisons.popleft()
        masked = message.values.to(stream.device)
        mask = stream.words(*shape)
        batch.left_range |= left_range(masked, mask).cpu()
        found = judge(masked, mask, stream.words(*shape), stream.words(*shape))
        return SelectedValues(self._seeds.session_id, message.batch_index, found.product.cpu(), found.bit.cpu())

    def finish(self, batch_index: int) -> tuple[slice, Tensor, Tensor]:
        """Which queries a batch had, what the answering party's outputs for them are masked with, and which of them
        left the range."""
        batch = self._batch(batch_index)
        del self._open[batch_index]
        mask = Stream(self._seeds.with_answerer, "output", batch_index, batch.size, self._device)
        return batch.queries, mask.words(batch.size, *self.circuit.output.shape), batch.left_range

    def _batch(self, batch_index: int) -> _QueryingBatch:
        if batch_index not in self._open:
            raise ProtocolError(f"{self._sender} went on with batch {batch_index} of a session, which is not open.")
        return self._open[batch_index]
