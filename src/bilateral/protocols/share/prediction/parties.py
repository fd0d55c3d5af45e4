"""Secret-shared prediction, whole: the two clients' and the server's objects.

`PredictionClient` is a client in both of its roles, and answers the server's messages one by one. `PredictionServer`
drives: it opens sessions, prepares batches and sums the logits of several answering parties, over any
`Transport`.

The answering client is the first computing party, the server the second, and the querying client the dealer.

Guarantee, against parties that are curious, follow the protocol and do not collude: the server learns sizes and
circuits; an answering party learns that it was asked, and how often; the querying party learns the circuits and the
*sum* of the logits. With `hardened` comparisons it also learns blurred sizes of compared numbers, in random order, and
with `published` ones every sign (docs/leakage-ledger.md, line 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from bilateral.arguments import checked
from bilateral.errors import MalformedMessageError, NumericalRangeError, ProtocolError
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import VALUE_BITS, Circuit
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.gates.expected import expect_count, expect_tensor
from bilateral.protocols.share.gates.styles import DEFAULT_STYLE, ComparisonStyle
from bilateral.protocols.share.prediction.answering import AnsweringSeeds, AnsweringSession
from bilateral.protocols.share.prediction.conversation import run_together
from bilateral.protocols.share.prediction.helping import HelpingBatch, HelpingSecrets, HelpingSession, Program, Request
from bilateral.protocols.share.prediction.messages import (
    Acknowledged,
    BatchRequest,
    BlindedValues,
    Carries,
    QueryRequest,
    ServerTurn,
    SessionEnd,
    SessionNotice,
    SessionRequest,
    SummedLogits,
    TablesRequest,
)
from bilateral.protocols.share.prediction.querying import QueryingSeeds, QueryingSession, check_takes
from bilateral.protocols.share.prediction.store import CorrelationStore, Kept
from bilateral.protocols.share.prediction.stored import StoredAnswering, StoredHelping, StoredQuerying
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring.streams import SessionAgreement
from bilateral.protocols.transport import SERVER, Traffic, Transport
from bilateral.randomness import Randomness, SecureRandomness

SESSION_ID_BYTES: Final = 16
_VALUES_OF_A_BATCH: Final = 1 << 17
_VALUES_AT_ONCE: Final = 1 << 24
"""Of the queries that are prepared together. Their correlations are in memory, some 50 bytes a value, and those of the
next ones too."""
_S = TypeVar("_S")


class PredictionClient:
    """A client in both roles: it answers with its own network, and asks with its own queries.

    `keys` has accepted a roster with the server in it.
    """

    @checked
    def __init__(
        self,
        keys: KeyRing,
        style: ComparisonStyle = DEFAULT_STYLE,
        device: torch.device | None = None,
        *,
        store: CorrelationStore | None = None,
    ) -> None:
        """`store`: where sessions and batches that are dealt ahead outlive this process."""
        self.name = keys.name
        keys.claim("secret-shared prediction")
        self._keys, self._style, self._device, self._store = keys, style, device, store
        self._model: FixedPointModel | None = None
        self._queries: Tensor | None = None
        self._expected = 0
        self._answers: dict[int, Tensor] = {}
        self._left_range: dict[int, Tensor] = {}
        self._seen: set[bytes] = set()
        self._answering: dict[bytes, AnsweringSession] = {}
        self._querying: dict[bytes, QueryingSession] = {}
        if store is not None:
            self._restore_querying(store)

    def offer(self, model: FixedPointModel) -> None:
        """Answer with this network from now on. Open sessions end: masks of weights are for one model.

        Those in the store that are about this very network go on.
        """
        self._model = model.to(self._device)
        self._answering.clear()
        if self._store is not None:
            self._restore_answering(self._store, self._model)

    def ask(self, queries: Tensor) -> None:
        """The queries (floats, batch first) to be asked next."""
        self._queries = queries
        self._answers.clear()
        self._left_range.clear()
        for session in self._querying.values():
            session.restart()

    def expect(self, num_queries: int) -> None:
        """So many queries will be asked: deal for them when the server asks, before they are there."""
        self._expected = num_queries

    def take_answers(self) -> Tensor:
        """The sums of the logits (float64) for all queries that were asked.

        `NumericalRangeError` if numbers in a network left the range in which comparisons are right, as far as this
        party sees it (`judged.left_range`); `out_of_range` says for which queries.
        """
        answered = sum(len(part) for part in self._answers.values())
        if self._queries is None or answered != len(self._queries):
            raise ProtocolError(f"{self.name} has answers to {answered} of its queries.")
        left = self.out_of_range()
        if len(left):
            raise NumericalRangeError(
                f"{self.name}: {len(left)} of {answered} queries took numbers of an answering network to "
                f"{2**VALUE_BITS} or beyond, where comparisons are not right (the first is query {int(left[0])}).",
                remedy="Leave these queries out (`out_of_range`), or bring them nearer to the network's own data.",
            )
        self._queries = None
        for session in self._querying.values():
            session.restart()  # so that the next can be dealt for, before they are asked
        return torch.cat([self._answers.pop(start) for start in sorted(self._answers)])

    def out_of_range(self) -> Tensor:
        """Indices of those queries whose answers are known to be worthless. Nobody else is told."""
        parts = [self._left_range[start] for start in sorted(self._left_range)]
        return torch.cat(parts).nonzero().reshape(-1) if parts else torch.zeros(0, dtype=torch.int64)

    def handle(self, message: Message) -> Message:
        """The reply to a message of the server."""
        reply: Message
        match message:
            case SessionRequest():
                reply = self._open_answering(message)
            case SessionNotice():
                reply = self._open_querying(message)
            case Carries():
                reply = _of(self._answering, message.session_id).begin(message)
            case ServerTurn():
                reply = _of(self._answering, message.session_id).proceed(message)
            case BatchRequest():
                querying = _of(self._querying, message.session_id)
                if self._queries is not None:
                    check_takes(querying.circuit, self._queries, SERVER)
                reply = querying.deal(message, self._num_dealt_for())
            case TablesRequest():
                reply = _of(self._querying, message.session_id).deal_tables(message)
            case QueryRequest():
                reply = _of(self._querying, message.session_id).share_queries(message, self._asked())
            case BlindedValues():
                reply = _of(self._querying, message.session_id).judge(message)
            case SummedLogits():
                reply = self._receive(message)
            case SessionEnd():
                reply = self._close(message)
            case _:
                raise MalformedMessageError(f"{SERVER} sent {type(message).__name__}, which is not for clients.")
        return reply

    def _open_answering(self, message: SessionRequest) -> Message:
        if self._model is None:
            raise ProtocolError(f"{self.name} has no network to answer with.", remedy="Train before others ask.")
        self._claim(message.session_id, message.querier)
        circuit = self._model.circuit.to_json()
        terms = SessionAgreement(message.session_id, message.querier, self.name, circuit, self._style.name)
        seeds = AnsweringSeeds(
            message.session_id,
            terms.seed(self._keys.pair_secret(message.querier)),
            terms.seed(self._keys.pair_secret(SERVER)),
        )
        if self._store is not None:
            secrets = seeds.with_querier, seeds.with_server
            stored = StoredAnswering(
                message.querier, self.name, circuit, self._style.name, secrets, self._model.digest()
            )
            self._store.keep_session(message.session_id, stored)
        session = self._answering_session(seeds, self._model, terms)
        self._answering[message.session_id] = session
        return session.masked_model()

    def _answering_session(
        self, seeds: AnsweringSeeds, model: FixedPointModel, terms: SessionAgreement
    ) -> AnsweringSession:
        return AnsweringSession(seeds, model, self._style, SERVER, self._device, self._kept(terms))

    def _querying_session(self, seeds: QueryingSeeds, circuit: Circuit, terms: SessionAgreement) -> QueryingSession:
        return QueryingSession(seeds, circuit, self._style, SERVER, self._device, self._kept(terms))

    def _kept(self, terms: SessionAgreement) -> Kept | None:
        return Kept(self._store, terms.session_id, terms.digest) if self._store is not None else None

    def _restore_answering(self, store: CorrelationStore, model: FixedPointModel) -> None:
        """Sessions about other networks, or in another style, are over."""
        for session_id in store.open_sessions(StoredAnswering):
            stored = store.session(session_id, StoredAnswering)
            if stored.model != model.digest() or stored.style != self._style.name:
                store.close(session_id)
                continue
            terms = SessionAgreement(session_id, stored.querier, self.name, stored.circuit, stored.style)
            seeds = AnsweringSeeds(session_id, *stored.seeds)
            self._answering[session_id] = self._answering_session(seeds, model, terms)

    def _restore_querying(self, store: CorrelationStore) -> None:
        for session_id in store.open_sessions(StoredQuerying):
            stored = store.session(session_id, StoredQuerying)
            if stored.style != self._style.name:
                store.close(session_id)
                continue
            terms = SessionAgreement(session_id, self.name, stored.answerer, stored.circuit, stored.style)
            circuit = Circuit.from_json(stored.circuit, "the store")
            session = self._querying_session(QueryingSeeds(session_id, *stored.seeds), circuit, terms)
            self._querying[session_id] = session
            self._expected = max(self._expected, session.num_dealt_ahead)

    def _open_querying(self, message: SessionNotice) -> Message:
        circuit = Circuit.from_json(message.circuit, message.answerer)
        if self._queries is not None:
            check_takes(circuit, self._queries, SERVER)
        self._claim(message.session_id, message.answerer)
        terms = SessionAgreement(message.session_id, self.name, message.answerer, message.circuit, self._style.name)
        seeds = QueryingSeeds(
            message.session_id,
            terms.seed(self._keys.pair_secret(message.answerer)),
            terms.seed(self._keys.pair_secret(SERVER)),
        )
        if self._store is not None:
            secrets = seeds.with_answerer, seeds.with_server
            stored = StoredQuerying(self.name, message.answerer, message.circuit, self._style.name, secrets)
            self._store.keep_session(message.session_id, stored)
        self._querying[message.session_id] = self._querying_session(seeds, circuit, terms)
        return Acknowledged(message.session_id)

    def _claim(self, session_id: bytes, other: str) -> None:
        """A second session of the same name would use the same masks, and the server would know its own."""
        if other == SERVER:
            raise ProtocolError(f"{SERVER} opened a session with itself as the other client.")
        was_there = session_id in self._seen or (self._store is not None and self._store.is_known(session_id))
        if len(session_id) != SESSION_ID_BYTES or was_there:
            raise ProtocolError(f"{SERVER} opened a session whose name is not a new one.")
        self._seen.add(session_id)

    def _num_dealt_for(self) -> int:
        """How many queries the server may ask correlations for."""
        if self._queries is None and not self._expected:
            raise ProtocolError(f"{SERVER} began a batch, but {self.name} asked nothing.")
        return self._expected + (0 if self._queries is None else len(self._queries))

    def _asked(self) -> Tensor:
        if self._queries is None:
            raise ProtocolError(f"{SERVER} began a batch, but {self.name} asked nothing.")
        return self._queries

    def _receive(self, message: SummedLogits) -> Message:
        sessions = [_of(self._querying, session_id) for session_id in message.session_ids]
        expect_count(SERVER, "batch_indices", len(message.batch_indices), len(sessions))
        if message.fraction_bits != max((s.circuit.output.fraction_bits for s in sessions), default=-1):
            raise MalformedMessageError(f"{SERVER} sent logits of no session, or with other fraction bits than theirs.")
        total, covered = message.logits.to(self._device), set()
        left: list[Tensor] = []
        for session, batch_index in zip(sessions, message.batch_indices, strict=True):
            queries, mask, left_range = session.finish(batch_index)
            left.append(left_range[: queries.stop - queries.start])
            covered.add((queries.start, queries.stop))
            expect_tensor(SERVER, "logits", message.logits, tuple(mask.shape), torch.int64)
            total = total - (mask << (message.fraction_bits - session.circuit.output.fraction_bits))
        if len(covered) != 1:
            raise MalformedMessageError(f"{SERVER} summed the answers to different queries.")
        divisor = sessions[0].circuit.output.divisor
        start, stop = covered.pop()
        if any(first < stop and start < first + len(part) for first, part in self._answers.items()):
            raise ProtocolError(f"{SERVER} answered queries twice.", remedy="Ask all of them again.")
        self._left_range[start] = torch.stack(left).any(0)
        self._answers[start] = ring.decode(total[: stop - start].cpu(), message.fraction_bits) / divisor
        return Acknowledged(message.session_ids[0])

    def _close(self, message: SessionEnd) -> Message:
        """Forget a session; its name stays taken."""
        if self._answering.pop(message.session_id, None) is None:
            _of(self._querying, message.session_id)
            del self._querying[message.session_id]
        if self._store is not None:
            self._store.close(message.session_id)
        return Acknowledged(message.session_id)


def _of(sessions: dict[bytes, _S], session_id: bytes) -> _S:
    if session_id not in sessions:
        raise ProtocolError(f"{SERVER} spoke of a session that is not open.", remedy="Open it first.")
    return sessions[session_id]


class PredictionServer:
    """Helps one querying party at a time; many answering parties side by side."""

    @checked
    def __init__(
        self,
        keys: KeyRing,
        transport: Transport,
        *,
        style: ComparisonStyle = DEFAULT_STYLE,
        randomness: Randomness | None = None,
        device: torch.device | None = None,
        on_answered: Callable[[int], None] = lambda _: None,
        store: CorrelationStore | None = None,
    ) -> None:
        """`on_answered` is told how many queries were answered, part by part: secret sharing takes its time.

        `store`: where sessions and batches that are dealt ahead outlive this process.
        """
        self._store = store
        self.traffic = Traffic()
        self._on_answered = on_answered
        self._keys, self._transport, self._style, self._device = keys, transport, style, device
        self._randomness = randomness or SecureRandomness()
        self._num_sessions = 0

    def open_sessions(self, querier: str, answerers: Sequence[str]) -> list[HelpingSession]:
        """A session with each answering party: masked weights are sent once, and serve many batches."""
        sessions = [self._session(querier, answerer) for answerer in answerers]
        circuits = run_together([session.open() for session in sessions], self._transport, self.traffic)
        outputs = {(circuit.output.shape, circuit.output.divisor) for circuit in circuits}
        if len(outputs) != 1:
            raise ProtocolError(
                f"The networks that answer {querier} have outputs of different shapes or divisors: {sorted(outputs)}.",
                remedy="All must end in a layer with one output a class.",
            )
        return sessions

    def _session(self, querier: str, answerer: str) -> HelpingSession:
        self._num_sessions += 1
        session_id = self._randomness.child("session", self._num_sessions).random_bytes(SESSION_ID_BYTES)
        secrets = HelpingSecrets(self._keys.pair_secret(querier), self._keys.pair_secret(answerer))
        return HelpingSession(secrets, session_id, querier, answerer, self._style, self._device, self._store)

    def stored_sessions(self, querier: str, answerers: Sequence[str]) -> list[HelpingSession]:
        """The sessions of these clients that were kept in the store, in the order of `answerers`."""
        store = self._the_store()
        found: dict[str, HelpingSession] = {}
        for session_id in store.open_sessions(StoredHelping):
            stored = store.session(session_id, StoredHelping)
            if stored.querier == querier and stored.answerer in answerers and stored.answerer not in found:
                found[stored.answerer] = HelpingSession.restored(store, session_id, self._style, self._device)
        if missing := [name for name in answerers if name not in found]:
            raise ProtocolError(
                f"The store has no session of {querier} with {', '.join(missing)}.", remedy="Open sessions, and deal."
            )
        return [found[name] for name in answerers]

    def deal_ahead(self, sessions: Sequence[HelpingSession], num_queries: int) -> None:
        """Offline, to the store: for so many queries, which nobody needs to have yet (`PredictionClient.expect`)."""
        self._the_store()
        for size in _parts(num_queries, batch_size([session.circuit for session in sessions])):
            batches = [session.begin(size, is_kept=True) for session in sessions]
            run_together(_programs(batches), self._transport, self.traffic)
            for session, batch in zip(sessions, batches, strict=True):
                session.keep(batch)

    def answer_ahead(self, sessions: Sequence[HelpingSession], num_queries: int) -> None:
        """Online only: so many queries, from what the store has. Each batch is used up when it is taken.

        As many batches as fit in memory are answered together, so that they share their rounds.
        """
        left, at_once = num_queries, _queries_at_once(sessions)
        while left > 0:
            bundles, missing = self._take(sessions, left, at_once)
            if bundles:
                self.answer(bundles)
                self._on_answered(min(left, _num_queries(bundles)))
                left -= _num_queries(bundles)
            if missing is not None:
                raise missing

    def _take(
        self, sessions: Sequence[HelpingSession], num_queries: int, at_once: int
    ) -> tuple[list[list[HelpingBatch]], ProtocolError | None]:
        """Batches from the store for so many queries, or for as many as are computed at once; why there are no more, if
        there should be."""
        bundles: list[list[HelpingBatch]] = []
        while _num_queries(bundles) < min(num_queries, at_once):
            try:
                bundles.append(self._take_one(sessions, num_queries - _num_queries(bundles)))
            except ProtocolError as error:  # what was taken before is used up: it is answered first
                return bundles, error
        return bundles, None

    def _take_one(self, sessions: Sequence[HelpingSession], left: int) -> list[HelpingBatch]:
        waiting = [session.waiting for session in sessions]
        if not all(waiting):
            raise ProtocolError(
                f"The store has nothing more that was dealt for these sessions, and {left} queries are left.",
                remedy="Deal ahead for more queries, or ask fewer.",
            )
        bundle = [session.take(indices[0]) for session, indices in zip(sessions, waiting, strict=True)]
        if len({batch.size for batch in bundle}) != 1:
            raise ProtocolError(
                f"What waits for these sessions was dealt for {sorted({batch.size for batch in bundle})} queries.",
                remedy="Deal for all sessions that answer together at once.",
            )
        return bundle

    def _the_store(self) -> CorrelationStore:
        if self._store is None:
            raise ProtocolError("This server keeps nothing.", remedy="Give PredictionServer a `store`.")
        return self._store

    def predict(self, sessions: Sequence[HelpingSession], num_queries: int) -> None:
        """The querying party's next queries: it gets the sum of all answering parties' logits for each of them."""
        self.answer_all(self.asking(sessions, num_queries))

    def asking(self, sessions: Sequence[HelpingSession], num_queries: int) -> Asking:
        """So many queries that one client has, or will have. Nothing is dealt for them yet."""
        return Asking(tuple(sessions), deque(_parts(num_queries, _queries_at_once(sessions))))

    def answer_all(self, asking: Asking, following: Asking | None = None) -> None:
        """Answer all these queries. While a part of them is computed, the next part is dealt for, or the first of
        those that follow: whoever asks them has nothing else to do."""
        if asking.dealt is None and asking.waiting:
            run_together(asking.programs(), self._transport, self.traffic)
            asking.deal()
        while asking.dealt is not None:
            part, asking.dealt = asking.dealt, None
            ahead = asking if asking.waiting else following
            dealing = ahead.programs() if ahead and ahead.dealt is None and ahead.waiting else []
            online: list[Program[Any]] = [batch.answer() for bundle in part for batch in bundle]
            done: list[Any] = run_together([*online, *dealing], self._transport, self.traffic)
            if ahead and dealing:
                ahead.deal()
            self._deliver(part, done[: len(online)])
            self._on_answered(_num_queries(part))

    def close(self, sessions: Sequence[HelpingSession]) -> None:
        """Let both clients forget these sessions."""
        run_together([session.close() for session in sessions], self._transport, self.traffic)

    def prepare(self, sessions: Sequence[HelpingSession], num_queries: int) -> list[list[HelpingBatch]]:
        """Offline, for so many queries: batches, each with a part for every session."""
        sizes = _parts(num_queries, batch_size([session.circuit for session in sessions]))
        batches = [session.begin(size) for size in sizes for session in sessions]
        run_together(_programs(batches), self._transport, self.traffic)
        return in_bundles(batches, len(sessions))

    def answer(self, batches: Sequence[Sequence[HelpingBatch]]) -> None:
        """Online: answer the prepared batches, and tell the querying party the sums."""
        for batch in batches:
            if len({part.size for part in batch}) != 1:
                raise ProtocolError(
                    f"Batches for {sorted({part.size for part in batch})} queries cannot be answered together.",
                    remedy="Prepare for all sessions that answer together at once.",
                )
        programs = [part.answer() for batch in batches for part in batch]
        self._deliver(batches, run_together(programs, self._transport, self.traffic))

    def _deliver(self, batches: Sequence[Sequence[HelpingBatch]], shares: Sequence[Tensor]) -> None:
        left = iter(shares)
        sums = [_deliver(batch, [next(left) for _ in batch]) for batch in batches]
        run_together(sums, self._transport, self.traffic)


@dataclass(repr=False)
class Asking:
    """What one client asks of all who answer it, in parts."""

    sessions: tuple[HelpingSession, ...]
    waiting: deque[int]
    """Sizes of the parts that are not dealt for."""
    dealt: list[list[HelpingBatch]] | None = None
    """The part that comes next: batches, each with one for every session."""

    _begun: list[HelpingBatch] = field(default_factory=list)

    def programs(self) -> list[Program[None]]:
        """The dealing for the first waiting part."""
        sizes = _parts(self.waiting[0], batch_size([session.circuit for session in self.sessions]))
        self._begun = [session.begin(size) for size in sizes for session in self.sessions]
        return _programs(self._begun)

    def deal(self) -> None:
        """These programs have ended."""
        self.waiting.popleft()
        self.dealt, self._begun = in_bundles(self._begun, len(self.sessions)), []


def _programs(batches: Sequence[HelpingBatch]) -> list[Program[None]]:
    """What prepares these batches: of all of them the first parts first."""
    of_each = [batch.prepare() for batch in batches]
    return [program for parts in zip_longest(*of_each) for program in parts if program is not None]


def in_bundles(batches: Sequence[HelpingBatch], num_sessions: int) -> list[list[HelpingBatch]]:
    """One batch of every session goes together: the same queries."""
    return [list(batches[start : start + num_sessions]) for start in range(0, len(batches), num_sessions)]


def _deliver(batch: Sequence[HelpingBatch], shares: Sequence[Tensor]) -> Program[None]:
    sessions = [part.session for part in batch]
    finest = max(session.circuit.output.fraction_bits for session in sessions)
    total = torch.zeros_like(shares[0])
    for share, session in zip(shares, sessions, strict=True):
        total += share << (finest - session.circuit.output.fraction_bits)
    names, indices = tuple(session.session_id for session in sessions), tuple(part.index for part in batch)
    yield Request(sessions[0].querier, SummedLogits(names, indices, finest, total.cpu()))


def _queries_at_once(sessions: Sequence[HelpingSession]) -> int:
    size = sum(sum(value.size for value in session.circuit.values) for session in sessions)
    return max(1, _VALUES_AT_ONCE // size)


def _num_queries(bundles: Sequence[Sequence[HelpingBatch]]) -> int:
    return sum(bundle[0].size for bundle in bundles)


def batch_size(circuits: Sequence[Circuit]) -> int:
    """Samples that are computed together: so few that a layer stays in the cache and parties work side by side."""
    largest = max(value.size for circuit in circuits for value in circuit.values)
    return max(1, min(_VALUES_OF_A_BATCH // largest, *(circuit.largest_batch for circuit in circuits)))


def _parts(total: int, at_most: int) -> list[int]:
    """`total` in as few parts as possible, of nearly equal size."""
    count = -(-total // at_most)
    return [total * (i + 1) // count - total * i // count for i in range(count)]
