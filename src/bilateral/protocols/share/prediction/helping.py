"""The server's half of a session: it carries all messages, holds one share of every value, and learns nothing.

The second computing party. It sees everything under masks that it does not know. A session here is a set of
*programs*: generators that yield a request (which party, what message) and are sent its reply, so that sessions with
several answering parties go on side by side (`conversation.run_together`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from bilateral.errors import MalformedMessageError, ProtocolError
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.circuit.plaintext import linear_map
from bilateral.protocols.share.computing.dealer import DealtLayers
from bilateral.protocols.share.computing.first import Batch
from bilateral.protocols.share.computing.second import Prepared, SecondParty, SecondSeeds
from bilateral.protocols.share.gates.expected import expect_count, expect_tensor
from bilateral.protocols.share.gates.styles import ComparisonStyle
from bilateral.protocols.share.gates.talk import Hear, Speaker, Work
from bilateral.protocols.share.prediction.messages import (
    Acknowledged,
    AnswererTurn,
    BatchRequest,
    BlindedValues,
    Carries,
    Correlations,
    MaskedModel,
    QueryRequest,
    QueryShare,
    SelectedValues,
    ServerTurn,
    SessionEnd,
    SessionNotice,
    SessionRequest,
    Tables,
    TablesRequest,
)
from bilateral.protocols.share.prediction.store import CorrelationStore, Kept
from bilateral.protocols.share.prediction.stored import StoredHelping, StoredPart
from bilateral.protocols.share.ring.arithmetic import LinearMap
from bilateral.protocols.share.ring.streams import SessionAgreement

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)


class Request(NamedTuple):
    """A message to a party. `meanwhile` is work to do after it is sent and before its reply is looked at."""

    party: str
    message: Message
    meanwhile: Callable[[], None] | None = None


Program = Generator[Request, Message, _T]
"""Yields requests, is sent their replies, and returns its result."""


@dataclass(frozen=True, repr=False)
class HelpingSecrets:
    """What the server has in common with each client: pair secrets, or the seeds of a session made of them."""

    with_querier: bytes
    with_answerer: bytes


class HelpingSession:
    """Between one querying and one answering party."""

    def __init__(
        self,
        secrets: HelpingSecrets,
        session_id: bytes,
        querier: str,
        answerer: str,
        style: ComparisonStyle,
        device: torch.device | None = None,
        store: CorrelationStore | None = None,
    ) -> None:
        self.querier, self.answerer = querier, answerer
        self._store = store
        self.session_id = session_id
        self.style, self.device = style, device
        self._secrets = secrets
        self._kept: Kept | None = None
        self._circuit: Circuit | None = None
        self._seeds: HelpingSecrets | None = None
        self._weights: tuple[Tensor, ...] = ()
        self.maps: list[LinearMap] = []
        self._num_batches = 0

    @property
    def circuit(self) -> Circuit:
        assert self._circuit is not None, "the session is not open"
        return self._circuit

    @property
    def seeds(self) -> HelpingSecrets:
        assert self._seeds is not None, "the session is not open"
        return self._seeds

    def open(self) -> Program[Circuit]:
        """Session: fetch the masked weights, tell the querying party the circuit."""
        reply = expect(MaskedModel, (yield Request(self.answerer, SessionRequest(self.session_id, self.querier))), self)
        circuit = Circuit.from_json(reply.circuit, self.answerer)
        expect_count(self.answerer, "weights", len(reply.weights), len(circuit.linear_steps))
        for step, weight in zip(circuit.linear_steps, reply.weights, strict=True):
            shape = step.weight_shape(circuit.values[step.sources[0]])
            expect_tensor(self.answerer, "weights", weight, shape, torch.int64)
        self._circuit, self._weights = circuit, reply.weights
        terms = SessionAgreement(self.session_id, self.querier, self.answerer, reply.circuit, self.style.name)
        self._seeds = HelpingSecrets(terms.seed(self._secrets.with_querier), terms.seed(self._secrets.with_answerer))
        notice = SessionNotice(self.session_id, self.answerer, reply.circuit)
        if self._store is not None:
            seeds = (self._seeds.with_querier, self._seeds.with_answerer)
            stored = StoredHelping(self.querier, self.answerer, reply.circuit, self.style.name, seeds, self._weights)
            self._store.keep_session(self.session_id, stored)
            self._kept = Kept(self._store, self.session_id, terms.digest)
        expect(Acknowledged, (yield Request(self.querier, notice, self._prepare_maps)), self)
        return circuit

    @classmethod
    def restored(
        cls, store: CorrelationStore, session_id: bytes, style: ComparisonStyle, device: torch.device | None = None
    ) -> HelpingSession:
        """A session that this process, or one before it, kept in the store."""
        stored = store.session(session_id, StoredHelping)
        if stored.style != style.name:
            raise ProtocolError(
                f"The stored session of {stored.querier} with {stored.answerer} compares in the style {stored.style}, "
                f"not {style.name}.",
                remedy="Ask for that style, or open another session.",
            )
        secrets = HelpingSecrets(*stored.seeds)
        found = cls(secrets, session_id, stored.querier, stored.answerer, style, device, store)
        terms = SessionAgreement(session_id, stored.querier, stored.answerer, stored.circuit, stored.style)
        found._circuit = Circuit.from_json(stored.circuit, "the store")
        found._seeds, found._weights = secrets, stored.weights
        found._kept = Kept(store, session_id, terms.digest)
        found._num_batches = found._kept.last_index + 1
        found._prepare_maps()
        return found

    def _prepare_maps(self) -> None:
        steps = zip(self.circuit.linear_steps, self._weights, strict=True)
        self.maps = [linear_map(step, weight.to(self.device)) for step, weight in steps]
        self._weights = ()

    def close(self) -> Program[None]:
        """Session: both clients may forget it."""
        if self._store is not None:
            self._store.close(self.session_id)
        for party in (self.answerer, self.querier):
            expect(Acknowledged, (yield Request(party, SessionEnd(self.session_id))), self)

    def begin(self, batch_size: int, *, is_kept: bool = False) -> HelpingBatch:
        """The next batch, to be prepared. `is_kept`: it goes to the store then (`keep`)."""
        index = self._num_batches
        self._num_batches += 1
        if self._kept is not None and not is_kept:
            self._kept.use_up(index)  # no process after this one begins it again
        return HelpingBatch(self, index, batch_size)

    @property
    def waiting(self) -> list[int]:
        """Batches of it in the store that are dealt and not used."""
        return self._kept.waiting if self._kept else []

    def keep(self, batch: HelpingBatch) -> None:
        """To the store, for later."""
        assert self._kept is not None, "the session has no store"
        self._kept.put(batch.index, batch.stored())

    def take(self, index: int) -> HelpingBatch:
        """From the store, once."""
        assert self._kept is not None, "the session has no store"
        return HelpingBatch.restored(self, index, self._kept.take(index, StoredPart))


def expect(kind: type[_M], reply: Message, session: HelpingSession, index: int | None = None) -> _M:
    """The reply, if it is of this kind and of this session."""
    if (
        not isinstance(reply, kind)
        or getattr(reply, "session_id", b"") != session.session_id
        or getattr(reply, "batch_index", index) != index
    ):
        raise MalformedMessageError(
            f"Expected {kind.__name__} in the session of {session.querier} with {session.answerer}, got "
            f"{type(reply).__name__}.",
            remedy="Both sides must run the same version of the protocol.",
        )
    return reply


class HelpingBatch:
    """One batch: it carries the turns of the second party, which the server is, to the first, and back."""

    def __init__(self, session: HelpingSession, index: int, size: int) -> None:
        self.session, self.index, self.size = session, index, size
        seeds = SecondSeeds(with_dealer=session.seeds.with_querier, with_first=session.seeds.with_answerer)
        self.party = SecondParty(
            session.circuit, session.maps, session.style, seeds, Batch(index, size), session.querier, session.device
        )
        self._first_turn: tuple[Tensor, ...] = ()
        self._number = 0

    def prepare(self) -> list[Program[None]]:
        """Offline: everything that does not depend on the queries. To be run side by side, in this order: the dealer is
        asked for tables while it deals for linear layers, and deals them while the others use what came first."""
        return [self._prepare_layers()] if self.session.style.is_judged else [self._prepare_layers(), self._fetch()]

    def _prepare_layers(self) -> Program[None]:
        session, index = self.session, self.index
        request = BatchRequest(session.session_id, index, self.size)
        reply = expect(Correlations, (yield Request(session.querier, request, self.party.multiply)), session, index)
        bits = self.party.combine(DealtLayers(reply.products, reply.carries))
        carries = Carries(session.session_id, index, self.size, bits)
        turn = expect(AnswererTurn, (yield Request(session.answerer, carries)), session, index)
        self._check(turn)
        self._first_turn = turn.parts

    def _fetch(self) -> Program[None]:
        session, index = self.session, self.index
        request = TablesRequest(session.session_id, index)
        reply = expect(Tables, (yield Request(session.querier, request)), session, index)
        self.party.take_tables(reply.comparisons)

    def stored(self) -> StoredPart:
        """After `prepare`: all that is needed to answer later."""
        kept = self.party.prepared()
        return StoredPart(
            self.size, kept.shares, kept.betas, kept.epsilons, kept.carries, kept.comparisons, self._first_turn
        )

    @classmethod
    def restored(cls, session: HelpingSession, index: int, stored: StoredPart) -> HelpingBatch:
        batch = cls(session, index, stored.batch_size)
        batch.party.load(Prepared(stored.shares, stored.betas, stored.epsilons, stored.carries, stored.comparisons))
        batch._first_turn = stored.first_turn
        return batch

    def answer(self) -> Program[Tensor]:
        """Online: the answering party's masked output plus the server's share of it."""
        session = self.session
        request = QueryRequest(session.session_id, self.index)
        reply = expect(QueryShare, (yield Request(session.querier, request)), session, self.index)
        shape = (self.size, *session.circuit.input_shape)
        expect_tensor(session.querier, "share", reply.share, shape, torch.int64)
        share = reply.share.to(session.device) if session.device else reply.share
        speaker = Speaker(self._work(share), session.answerer, session.device)
        speaker.hear(self._first_turn)
        while not speaker.is_done:
            if speaker.judge is not None:
                values = speaker.judge.values
                judged = yield Request(session.querier, BlindedValues(session.session_id, self.index, values.cpu()))
                speaker.told_by_judge(*self._selected(judged, values))
                continue
            message = ServerTurn(session.session_id, self.index, self._number, speaker.take_told())
            turn = expect(AnswererTurn, (yield Request(session.answerer, message)), session, self.index)
            self._number += 1
            self._check(turn)
            speaker.hear(turn.parts)
        speaker.expect_end()
        if speaker.take_told():
            raise MalformedMessageError(f"{session.answerer} gave the output before the server had said all.")
        return speaker.result

    def _work(self, share: Tensor) -> Work[Tensor]:
        own = yield from self.party.evaluate(share)
        output: Tensor = yield Hear("output", tuple(own.shape))
        return own + output

    def _check(self, turn: AnswererTurn) -> None:
        if turn.number != self._number:
            raise MalformedMessageError(
                f"{self.session.answerer} answered turn {turn.number} of a batch, expected {self._number}.",
                remedy="Both sides must run the same version of the protocol.",
            )

    def _selected(self, reply: Message, values: Tensor) -> tuple[Tensor, Tensor]:
        session = self.session
        judged = expect(SelectedValues, reply, session, self.index)
        for name in ("products", "bits"):
            expect_tensor(session.querier, name, getattr(judged, name), tuple(values.shape), torch.int64)
        return judged.products.to(values.device), judged.bits.to(values.device)
