"""The answering client's half of a session: it has a network, and must not see the query. The first computing party."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import ProtocolError
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.computing.first import (
    Batch,
    FirstParty,
    FirstSeeds,
    expect_batch,
    masked_weights,
)
from bilateral.protocols.share.gates.expected import expect_count, expect_tensor
from bilateral.protocols.share.gates.styles import ComparisonStyle
from bilateral.protocols.share.gates.talk import Speaker, Tell, Work
from bilateral.protocols.share.prediction.messages import AnswererTurn, Carries, MaskedModel, ServerTurn
from bilateral.protocols.share.prediction.store import Kept
from bilateral.protocols.share.prediction.stored import StoredOpening
from bilateral.protocols.share.ring.packing import num_words
from bilateral.protocols.share.ring.streams import Stream


@dataclass(frozen=True, repr=False)
class AnsweringSeeds:
    session_id: bytes
    with_querier: bytes
    with_server: bytes


class AnsweringSession:
    """One model (on `device`), one querying party, many batches, several at a time. `sender` is named in errors."""

    def __init__(
        self,
        seeds: AnsweringSeeds,
        model: FixedPointModel,
        style: ComparisonStyle,
        sender: str,
        device: torch.device | None = None,
        kept: Kept | None = None,
    ) -> None:
        """`kept`: where batches wait that are dealt ahead; in memory, if there is no such place."""
        self._kept = kept
        self._session_id, self._model, self._style, self._sender = seeds.session_id, model, style, sender
        self._seeds = FirstSeeds(with_dealer=seeds.with_querier, with_second=seeds.with_server)
        self._device = device
        self._last_batch = kept.last_index if kept else -1
        self._open: dict[int, _Open] = {}

    def masked_model(self) -> MaskedModel:
        """Session: the weights under masks that the querying party knows and the server does not."""
        weights = masked_weights(self._model, self._seeds, self._device)
        return MaskedModel(self._session_id, self._model.circuit.to_json(), weights)

    def begin(self, message: Carries) -> AnswererTurn:
        """Offline: the server's bits of all truncations. Masks are used once, so the batch's index must be new."""
        if message.batch_index <= self._last_batch:
            raise ProtocolError(
                f"{self._sender} began batch {message.batch_index} of a session after batch {self._last_batch}.",
                remedy="Masks are used once: every batch needs a new index.",
            )
        circuit = self._model.circuit
        expect_batch(self._sender, circuit, message.batch_size)
        expect_count(self._sender, "bits", len(message.bits), len(circuit.linear_steps))
        for bits, value in zip(message.bits, circuit.linear_values, strict=True):  # before anything is made for them
            expect_tensor(self._sender, "bits", bits, (num_words(message.batch_size * value.size),), torch.int64)
        self._last_batch = message.batch_index
        batch = Batch(message.batch_index, message.batch_size)
        opened = self._opened(batch, message.bits, draws=not self._open)
        if self._kept:
            self._kept.put(batch.index, StoredOpening(batch.size, message.bits))
        return self._turn(batch.index, opened)

    def _opened(self, batch: Batch, bits: tuple[Tensor, ...], *, draws: bool = False) -> _Open:
        """`draws`: its part of what comparisons use up, now and not when they come. Of one batch: that is much memory,
        and time only while the dealer deals."""
        opened = _Open(Speaker(self._work(batch, draws=draws), self._sender, self._device))
        opened.speaker.hear(bits, must_lead=False)
        return opened

    def _work(self, batch: Batch, *, draws: bool) -> Work[None]:
        """From its share of the query, which it expands, to its share of the logits, under a mask of the querier's."""
        named = batch.index, batch.size, self._device
        inputs = Stream.of(self._seeds.with_dealer, "input", *named).words(batch.size, *self._model.circuit.input_shape)
        party = FirstParty(self._model, self._style, self._seeds, batch, self._device)
        if draws:
            party.draw()
        share = yield from party.evaluate(inputs)
        # The server can add this up, but not read it.
        yield Tell(share + Stream.of(self._seeds.with_dealer, "output", *named).words(*share.shape))

    def proceed(self, message: ServerTurn) -> AnswererTurn:
        """Online: as far as the server's turn leads."""
        opened = self._open.pop(message.batch_index, None)  # a batch that fails is over
        if self._kept and (opened is None or opened.number == 0):
            opened = self._taken(message.batch_index, opened)
        if opened is None:
            raise ProtocolError(f"{self._sender} sent a value of batch {message.batch_index}, which is not open.")
        if message.number != opened.number:
            raise ProtocolError(
                f"{self._sender} sent turn {message.number} of batch {message.batch_index}, expected {opened.number}.",
                remedy="Turns come once, in order. The batch is over; begin another.",
            )
        opened.number += 1
        opened.speaker.hear(message.parts)
        return self._turn(message.batch_index, opened)

    def _taken(self, index: int, opened: _Open | None) -> _Open | None:
        """From now on the batch is used, whatever happens. One that another process began is begun again."""
        assert self._kept is not None
        if index not in self._kept.waiting:
            return None
        kept = self._kept.take(index, StoredOpening)
        if opened is None:
            opened = self._opened(Batch(index, kept.batch_size), kept.bits)
            opened.speaker.take_told()  # it was said before
        return opened

    def _turn(self, index: int, opened: _Open) -> AnswererTurn:
        if not opened.speaker.is_done:
            self._open[index] = opened
        return AnswererTurn(self._session_id, index, opened.number, opened.speaker.take_told())


@dataclass(repr=False)
class _Open:
    """A batch that is being computed, and the number of the server's next turn."""

    speaker: Speaker[None]
    number: int = 0
