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

from bilateral.data import Split
from bilateral.engine.remote.edge import SiteEdge, log
from bilateral.errors import AuthenticationError, PlanError, ProtocolError
from bilateral.learning.hetero.client import AnsweredQueries, HeteroClient
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.prediction.conversation import SERVER
from bilateral.protocols.share.prediction.messages import SessionNotice, SessionRequest, SummedLogits
from bilateral.protocols.share.prediction.parties import PredictionClient
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
from bilateral.runs.hetero.parties import answerers_of, deal, make_client
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.state import SiteState, SiteStore, asking_stage, num_stages


class HeteroSiteDesk(SiteEdge):
    """One site, one term, of a simulation: data are dealt and keys are drawn by the plan's seed.

    `store`: the site's own directory. Called from the transport's threads, one packet at a time.
    """

    def __init__(self, name: str, plan: HeteroPlan, store: Path, *, version: str, data_dir: Path | None = None) -> None:
        if plan.answers != "secure":
            raise PlanError(
                f"answers = {plan.answers!r} would show every query to the server.",
                remedy="Use secure answers, or the in-process engine.",
            )
        if name not in plan.clients.names:
            raise PlanError(f"{name!r} is no client of this run; they are {', '.join(plan.clients.names)}.")
        super().__init__(name)
        self._plan, self._version, self._data_dir = plan, version, data_dir
        self._store = SiteStore(store, plan)
        self._state = SiteState()
        self._client: HeteroClient | None = None
        self._samples = torch.empty(0)
        self._test: Split | None = None
        self._keys: KeyRing | None = None
        self._protocol: _CheckedProtocol | None = None
        self._num_packets = 0

    def deliver(self, number: object, packet: object) -> dict[str, Any]:
        """The replies to a packet of messages, or a refusal. `number` counts packets from 1."""
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
                reply = self._train()
            case GetReady():
                reply = self._get_ready(message.iteration)
            case KeepAnswers():
                reply = self._keep_answers(message.iteration)
            case Retrain():
                reply = self._retrain(message.iteration)
            case _:
                reply = self._checked().handle(message)
        return reply

    def _introduce(self) -> HeteroCard:
        """Open the site's own share of the data, and its state."""
        if self._client is None:
            shares = deal(self._plan, self._data_dir)
            own = shares.clients[self.name]
            client = make_client(self._plan, self.name, own, shares.num_classes)
            state = self._store.load()
            if state.stage:
                client.load_state_tensors(state.model)
            self._client, self._state = client, state
            self._samples, self._test = own.inputs, shares.test
            log.info("%s opened its data: %d samples; %d stages done", self.name, len(own), state.stage)
        accuracies = torch.tensor(list(self._state.accuracies), dtype=torch.float64)
        return HeteroCard(
            self._plan.digest(), self._version, self._state.stage, accuracies, tuple(self._state.num_queries)
        )

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
        self._protocol = self._protocol or _CheckedProtocol(PredictionClient(self._keys), self._plan)
        return Done()

    def _train(self) -> Measured:
        client = self._expect_stage(0, "train alone")
        client.local_train()
        return self._measure(client, 0)

    def _get_ready(self, iteration: int) -> QueriesReady:
        """Offer the network as it is before this iteration, and make the queries unless they were asked already."""
        protocol = self._checked()
        has_asked = self._state.stage == self._asking(iteration) + 1
        client = self._expect_stage(self._asking(iteration) + has_asked, f"get ready for iteration {iteration}")
        protocol.begin(iteration)
        protocol.parties.offer(compile_model(client.answering_model(), self._samples))
        if has_asked:
            return QueriesReady(0)
        queries = client.make_queries(iteration)
        protocol.parties.ask(queries)
        return QueriesReady(len(queries))

    def _keep_answers(self, iteration: int) -> Done:
        client = self._expect_stage(self._asking(iteration), f"keep the answers of iteration {iteration}")
        sums = self._checked().parties.take_answers().float()
        self._advance(client, sums=sums)
        return Done()

    def _retrain(self, iteration: int) -> Measured:
        client = self._expect_stage(self._asking(iteration) + 1, f"retrain in iteration {iteration}")
        assert self._state.sums is not None
        queries = client.make_queries(iteration)  # the network is the one that asked, so these are the same
        num_answers = len(answerers_of(self._plan, self.name, iteration))
        client.retrain(AnsweredQueries(queries, self._state.sums, num_answers), iteration)
        return self._measure(client, len(queries))

    def _measure(self, client: HeteroClient, num_queries: int) -> Measured:
        assert self._test is not None
        accuracy = client.evaluate(self._test)["test_accuracy"]
        self._advance(
            client,
            accuracies=(*self._state.accuracies, accuracy),
            num_queries=(*self._state.num_queries, num_queries),
        )
        return Measured(torch.tensor(accuracy, dtype=torch.float64), num_queries)

    def _advance(self, client: HeteroClient, **changed: Any) -> None:
        """One stage further; kept before anybody is told."""
        values = {"accuracies": self._state.accuracies, "num_queries": self._state.num_queries, **changed}
        self._state = SiteState(self._state.stage + 1, client.state_tensors(), **values)
        self._store.save(self._state)
        log.info("%s has done %d of %d stages", self.name, self._state.stage, num_stages(self._plan))

    def _asking(self, iteration: int) -> int:
        """`asking_stage`, if the plan has such an iteration."""
        if not 1 <= iteration <= self._plan.iterations:
            raise ProtocolError(f"{self.name} has iterations 1 to {self._plan.iterations}, not {iteration}.")
        return asking_stage(iteration)

    def _expect_stage(self, stage: int, what: str) -> HeteroClient:
        """The client, if it is as far as that."""
        if self._client is None or self._state.stage != stage or stage >= num_stages(self._plan):
            raise ProtocolError(
                f"{self.name} was asked to {what}, but has done {self._state.stage} of its stages.",
                remedy="Resume the run: the server then learns how far every site is.",
            )
        return self._client

    def _checked(self) -> _CheckedProtocol:
        if self._protocol is None:
            raise ProtocolError(f"{self.name} has no keys of this term yet.")
        return self._protocol


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
