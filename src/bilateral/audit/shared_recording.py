"""Secret-shared predictions with everything that was said, and each party's view cut out of them.

| adversary       | messages                     | knows besides                                        |
|-----------------|------------------------------|------------------------------------------------------|
| querying party  | what it sent and received    | its queries, the sum, its seeds with both others     |
| answering party | what it sent and received    | its network, its seeds with both others              |
| curious server  | all that passes it           | its seeds with both clients of a session             |
| eavesdropper    | everything, if it is not TLS | nothing                                              |

Runs are real: `PredictionClient`, `PredictionServer` and the programs between them, over a transport that keeps what it
carries. A view has the seeds that its party needs to read its own messages, and no others
(test_a_view_has_the_seeds_of_its_own_pairs_and_no_others).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from bilateral.audit.shared_views import Session, SharedView
from bilateral.audit.views import AdversaryName
from bilateral.engine.transcript import Entry
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.gates.styles import DEFAULT_STYLE, ComparisonStyle
from bilateral.protocols.share.prediction.parties import PredictionClient, PredictionServer
from bilateral.protocols.share.ring.streams import SessionAgreement
from bilateral.protocols.transport import SERVER, LocalTransport
from bilateral.randomness import Randomness
from bilateral.runs.hetero.secure_answers import agreed_keys


@dataclass(frozen=True, repr=False)
class SharedRun:
    """Queries that were asked and answered, kept. Attacks never get one: they get a `SharedView` of it."""

    style: ComparisonStyle
    querier: str
    queries: Tensor
    models: Mapping[str, FixedPointModel]
    """What answered, by client."""
    answers: Tensor
    """The sum of the logits, as the querying party learned it."""
    sessions: tuple[Session, ...]
    entries: tuple[Entry, ...]
    rings: Mapping[str, KeyRing]

    def seed(self, session: Session, one: str, other: str) -> bytes:
        """What these two have in common in a session."""
        terms = SessionAgreement(
            session.session_id, session.querier, session.answerer, session.circuit.to_json(), self.style.name
        )
        return terms.seed(self.rings[one].pair_secret(other))


class _RecordingTransport:
    """Delivers in this process, and keeps every message with its ends."""

    def __init__(self, inner: LocalTransport) -> None:
        self._inner = inner
        self._parties: dict[int, str] = {}
        self.entries: list[Entry] = []

    def submit(self, ticket: int, party: str, message: Message) -> None:
        self._parties[ticket] = party
        self.entries.append(Entry(0, SERVER, party, message))
        self._inner.submit(ticket, party, message)

    def next_reply(self) -> tuple[int, Message]:
        ticket, reply = self._inner.next_reply()
        self.entries.append(Entry(0, self._parties.pop(ticket), SERVER, reply))
        return ticket, reply

    def forget(self) -> None:
        self._inner.forget()


class SharedParties:
    """A server and clients with agreed keys. Every `ask` opens sessions of its own, hence with masks of its own."""

    def __init__(self, names: Sequence[str], randomness: Randomness, style: ComparisonStyle = DEFAULT_STYLE) -> None:
        self.style = style
        self._rings = agreed_keys([SERVER, *names], randomness)
        self._clients = {name: PredictionClient(self._rings[name], style) for name in names}
        self._transport = _RecordingTransport(LocalTransport({n: c.handle for n, c in self._clients.items()}))
        self._server = PredictionServer(
            self._rings[SERVER], self._transport, style=style, randomness=randomness.child("sessions")
        )

    def ask(
        self, querier: str, queries: Tensor, models: Mapping[str, FixedPointModel], *, num_parts: int = 1
    ) -> SharedRun:
        """`querier` learns the sum of what `models` say to its queries, which come in so many parts: batches."""
        for name, model in models.items():
            self._clients[name].offer(model)
        self._transport.entries = []
        self._clients[querier].ask(queries)
        helping = self._server.open_sessions(querier, list(models))
        for part in queries.tensor_split(num_parts):
            self._server.predict(helping, len(part))
        self._server.close(helping)
        answers = self._clients[querier].take_answers()
        sessions = tuple(Session(s.session_id, querier, s.answerer, s.circuit) for s in helping)
        return SharedRun(
            self.style, querier, queries, dict(models), answers, sessions, tuple(self._transport.entries), self._rings
        )


def querying_view(run: SharedRun) -> SharedView:
    """Whoever asked."""
    return replace(_view(run, "querying party", run.querier, run.sessions), queries=run.queries, answers=run.answers)


def answering_view(run: SharedRun, answerer: str) -> SharedView:
    """One of those who answered."""
    own = tuple(session for session in run.sessions if session.answerer == answerer)
    return replace(_view(run, "answering party", answerer, own), model=run.models[answerer])


def helping_view(run: SharedRun) -> SharedView:
    """The server."""
    return _view(run, "curious server", SERVER, run.sessions)


def listening_view(run: SharedRun) -> SharedView:
    """Somebody on the wire where transport is not encrypted."""
    return SharedView("eavesdropper", "", run.style, run.sessions, run.entries)


def _view(run: SharedRun, adversary: AdversaryName, party: str, sessions: tuple[Session, ...]) -> SharedView:
    seeds = {
        (session.session_id, other): run.seed(session, party, other)
        for session in sessions
        for other in (SERVER, session.querier, session.answerer)
        if other != party
    }
    entries = tuple(entry for entry in run.entries if party in (entry.sender, entry.receiver))
    return SharedView(adversary, party, run.style, sessions, entries, seeds=seeds)
