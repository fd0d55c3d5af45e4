"""A site of a heterogeneous run in one term: its own data and network, and one message of the server's after the other.

Formal guarantees (tests/runs/hetero/test_desk.py):
- packets are taken in order, each once; another is refused and changes nothing;
- only the clients whom the plan names ask and answer this site, and it takes a sum of all of them only;
- its data, queries, network and sums stay here, and errors about them stay in its log.

It has kept its state before the server hears that a stage is done, so that a later term goes on from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bilateral.engine.remote.edge import SiteEdge, log
from bilateral.errors import AuthenticationError, PlanError, ProtocolError
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.prediction.messages import SessionNotice, SessionRequest, SummedLogits
from bilateral.protocols.share.prediction.parties import PredictionClient
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode, encode
from bilateral.runs.hetero.keys import SimulatedKeys
from bilateral.runs.hetero.messages import (
    REPLY_OF,
    Done,
    GetReady,
    HeteroBriefing,
    HeteroCard,
    Introduce,
    KeepAnswers,
    Measured,
    QueriesReady,
    Retrain,
    TrainAlone,
)
from bilateral.runs.hetero.parties import answerers_of, check_secure, deal, make_client
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.staged_client import Measure, StagedClient
from bilateral.runs.hetero.state import ClientState, SiteStore
from bilateral.runs.hetero.steps import num_stages


class HeteroSiteDesk(SiteEdge):
    """One site, one term, of a simulation: data are dealt and keys are drawn by the plan's seed.

    `store`: the site's own directory. Called from the transport's threads, one packet at a time.
    """

    def __init__(self, name: str, plan: HeteroPlan, store: Path, *, version: str, data_dir: Path | None = None) -> None:
        check_secure(plan)
        if name not in plan.clients.names:
            raise PlanError(f"{name!r} is no client of this run; they are {', '.join(plan.clients.names)}.")
        super().__init__(name)
        self._plan, self._version, self._data_dir = plan, version, data_dir
        self._store = SiteStore(store, plan)
        self._member: StagedClient | None = None
        self._samples = torch.empty(0)
        self._keys: KeyRing | None = None
        self._protocol: _CheckedProtocol | None = None
        self._num_packets = 0

    def deliver(self, lane: object, number: object, packet: object) -> dict[str, Any]:  # noqa: ARG002
        """The replies to a packet of messages, or a refusal. `number` counts packets from 1; there is one lane."""
        return self.answer(lambda: self._deliver(number, packet))

    def _deliver(self, number: object, packet: object) -> list[bytes]:
        self.check_in_term()
        if not isinstance(packet, list | tuple) or not packet or not all(isinstance(data, bytes) for data in packet):
            raise ProtocolError("The packet is malformed.")
        if type(number) is not int or number != self._num_packets + 1:
            raise ProtocolError(f"{self.name} expected packet {self._num_packets + 1}, got another.")
        messages = [decode(data, REPLY_OF, SERVER) for data in packet]
        self._num_packets = number
        return [encode(self._handle(message)) for message in messages]

    def _handle(self, message: Message) -> Message:
        reply: Message
        match message:
            case Introduce():
                reply = self._introduce()
            case HeteroBriefing():
                reply = self._take_briefing(message)
            case Roster():
                reply = self._accept(message)
            case TrainAlone():
                reply = _measured(self._opened().train())
            case GetReady():
                reply = self._get_ready(message.iteration)
            case KeepAnswers():
                reply = self._keep_answers(message.iteration)
            case Retrain():
                reply = _measured(self._opened().retrain(message.iteration))
            case _:
                reply = self._checked().handle(message)
        return reply

    def _introduce(self) -> HeteroCard:
        """Open the site's own share of the data, and its state."""
        if self._member is None:
            shares = deal(self._plan, self._data_dir)
            own = shares.clients[self.name]
            client = make_client(self._plan, self.name, own, shares.num_classes)
            member, state = StagedClient(self._plan, client, shares.test, self._keep), self._store.load()
            if state.stage:
                member.load(state)
            self._member, self._samples = member, own.inputs
            log.info("%s opened its data: %d samples; %d stages done", self.name, len(own), state.stage)
        state = self._member.state
        accuracies = torch.tensor(list(state.accuracies), dtype=torch.float64)
        return HeteroCard(self._plan.digest(), self._version, state.stage, accuracies, tuple(state.num_queries))

    def _take_briefing(self, briefing: HeteroBriefing) -> Message:
        if briefing.plan_digest != self._plan.digest():
            raise ProtocolError(f"The server runs another plan than {self.name}.", remedy="Start the run anew.")
        if self._keys is not None or briefing.term < 0:
            raise ProtocolError(f"{self.name} takes one briefing a term, and terms count from 0.")
        keys = SimulatedKeys(self._plan, briefing.term)
        if briefing.run_id != keys.run_id:
            raise ProtocolError(f"The server named another run than {self.name} has keys for.")
        self._keys = keys.ring(self.name)
        return self._keys.announce()

    def _accept(self, roster: Roster) -> Message:
        if self._keys is None:
            raise ProtocolError(f"{self.name} was not briefed.")
        self._keys.accept(roster)
        if set(roster.clients) != {SERVER, *self._plan.clients.names}:
            raise AuthenticationError(f"{self.name}: the roster has other parties than the plan and the server.")
        if self._protocol is None:
            self._protocol = _CheckedProtocol(PredictionClient(self._keys, self._plan.comparisons), self._plan)
        return Done()

    def _get_ready(self, iteration: int) -> QueriesReady:
        """Offer the network as it is before this iteration, and make the queries unless they were asked already."""
        protocol, member = self._checked(), self._opened()
        has_asked = member.has_asked(iteration)
        protocol.begin(iteration)
        protocol.parties.offer(compile_model(member.client.answering_model(), self._samples))
        if has_asked:
            return QueriesReady(0)
        queries = member.make_queries(iteration)
        protocol.parties.ask(queries)
        return QueriesReady(len(queries))

    def _keep_answers(self, iteration: int) -> Done:
        member = self._opened()
        member.check_asks(iteration)
        member.keep_sums(iteration, self._checked().parties.take_answers().float())
        return Done()

    def _keep(self, state: ClientState) -> None:
        self._store.save(state)
        log.info("%s has done %d of %d stages", self.name, state.stage, num_stages(self._plan))

    def _opened(self) -> StagedClient:
        if self._member is None:
            raise ProtocolError(
                f"{self.name} was asked for more before its data were open: it has done 0 of its stages.",
                remedy="Resume the run: the server then learns how far every site is.",
            )
        return self._member

    def _checked(self) -> _CheckedProtocol:
        if self._protocol is None:
            raise ProtocolError(f"{self.name} has no keys of this term yet.")
        return self._protocol


def _measured(measure: Measure) -> Measured:
    return Measured(torch.tensor(measure.accuracy, dtype=torch.float64), measure.num_queries)


class _CheckedProtocol:
    """Both roles of secret-shared prediction, for those clients only whom the plan names in the iteration at hand."""

    def __init__(self, parties: PredictionClient, plan: HeteroPlan) -> None:
        self.parties = parties
        self._plan = plan
        self._iteration = 0
        self._asked_at: dict[bytes, str] = {}
        """Who answers in which session."""

    def begin(self, iteration: int) -> None:
        self._iteration = iteration
        self._asked_at.clear()

    def handle(self, message: Message) -> Message:
        """The reply to a message of the protocol, if it is one that the plan has."""
        name = self.parties.name
        if self._iteration == 0:
            raise ProtocolError(f"{name} was not told to get ready.")
        expected = answerers_of(self._plan, name, self._iteration)
        match message:
            case SessionRequest():
                known = message.querier in self._plan.clients.names
                if not known or name not in answerers_of(self._plan, message.querier, self._iteration):
                    raise ProtocolError(f"{name} does not answer {message.querier!r} in iteration {self._iteration}.")
            case SessionNotice():
                if message.answerer not in expected or message.answerer in self._asked_at.values():
                    raise ProtocolError(f"{name} does not ask {message.answerer!r} in iteration {self._iteration}.")
                self._asked_at[message.session_id] = message.answerer
            case SummedLogits():
                summed = [self._asked_at.get(session_id) for session_id in message.session_ids]
                if len(summed) != len(expected) or set(summed) != set(expected):
                    raise ProtocolError(f"{name} takes the sum of all answers only, not of {len(summed)}.")
            case _:
                pass
        return self.parties.handle(message)
