"""The server of a heterogeneous run in one term: enrols the sites, then goes through the stages that are left.

1. All sites train alone, at the same time.
2. In every iteration all get ready (network offered, queries made), then one after the other asks: its answerers work
   side by side, the server helps. At last all retrain, at the same time.

Every site is needed. One that is gone ends the term by name (`SitesMissingError`); what is done is kept, the sites' own
work at the sites, and the next term goes on from there. A stage that was under way is done again, under new keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from bilateral.engine.events import MessageRefused, RunEnded, RunStarted, SiteMissed
from bilateral.engine.remote.lines import LineCall, SiteLines, SiteLostError, SiteRefusedError
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import BilateralError, CheckpointError, PlanError, ProtocolError, SitesMissingError
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.mask.messages import KeyAnnouncement
from bilateral.protocols.messages import Message
from bilateral.protocols.share.prediction.conversation import SERVER, Traffic
from bilateral.protocols.share.prediction.parties import PredictionServer
from bilateral.runs.hetero.directory import HeteroDirectory
from bilateral.runs.hetero.keys import SimulatedKeys
from bilateral.runs.hetero.messages import (
    REPLY_OF,
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
from bilateral.runs.hetero.parties import answerers_of
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.record import HeteroRecord, PublicFacts
from bilateral.runs.hetero.result import HeteroProgress, HeteroResult
from bilateral.runs.hetero.state import asking_stage
from bilateral.runs.rounds.conductor import LOCK_PATIENCE

_M = TypeVar("_M", bound=Message)


class HeteroSites(Protocol):
    """The transport, as the server sees it. Called from many threads."""

    @property
    def call(self) -> LineCall:
        """A packet to a site; may raise `SiteSilentError`."""
        ...

    def names(self) -> Sequence[str]:
        """The sites of this term."""
        ...

    def ping(self, site: str) -> bool | None: ...


@dataclass
class HeteroConductor:
    """One term. `conduct` returns when the plan is done, or after a stage when `should_stop` says so.

    `path`: the run directory, with the plan in it (`HeteroDirectory.create`).
    """

    plan: HeteroPlan
    path: Path
    sites: HeteroSites
    facts: PublicFacts
    version: str
    engine: str
    on_progress: Callable[[HeteroProgress], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    ping_after: float = 3.0
    traffic: Traffic = field(default_factory=Traffic)
    """Of secret-shared prediction, in this term."""

    def conduct(self) -> HeteroResult:
        directory, found = HeteroDirectory.open(self.path)
        if found.digest() != self.plan.digest():
            raise CheckpointError(f"{self.path} is the directory of another plan.", remedy="Choose another --output.")
        if self.plan.answers != "secure":
            raise PlanError(
                f"answers = {self.plan.answers!r} would show every query to the server.",
                remedy="Use secure answers, or the in-process engine.",
            )
        files = RunDirectory(self.path)
        with files.locked(LOCK_PATIENCE):
            files.clear_stop()
            record = HeteroRecord(self.plan, self.facts)
            if directory.checkpoint.exists():
                record = HeteroRecord.load(self.plan, self.facts, directory)
            record.term, record.answered = record.term + 1, 0.0
            record.save(directory)  # a term that was begun has used its keys
            reason = "an internal error"
            try:
                result = self._conduct(record, directory, files)
                reason = "finished" if record.finished else "asked to stop"
                if record.finished:
                    directory.write_result(result.as_dict())
            except BilateralError as error:
                reason = str(error)
                raise
            finally:
                files.tell(RunEnded(record.stages_done, record.finished, reason))
        return result

    def _conduct(self, record: HeteroRecord, directory: HeteroDirectory, files: RunDirectory) -> HeteroResult:
        names = self.plan.clients.names
        if missing := [name for name in names if name not in self.sites.names()]:
            raise SitesMissingError(
                f"All {len(names)} sites of the plan are needed; {', '.join(missing)} did not come.",
                remedy="Start them, then resume.",
            )
        lines = SiteLines(names, self.sites.call, self.sites.ping, REPLY_OF, self.ping_after)
        try:
            term = _Term(self, record, directory, files, lines)
            term.enrol()
            term.run()
        finally:
            lines.close()
        return record.result(directory)


@dataclass
class _Term:
    """The stages of one term."""

    conductor: HeteroConductor
    record: HeteroRecord
    directory: HeteroDirectory
    files: RunDirectory
    lines: SiteLines
    _server: PredictionServer | None = None
    _num_queries: int = 1
    """Of the site that asks."""
    _since: float = field(default_factory=time.perf_counter)

    def enrol(self) -> None:
        """Who is there and how far, then the key agreement of the term."""
        plan, record = self.conductor.plan, self.record
        with self._stage("enrolment", 0):
            for name, card in self._ask_all(HeteroCard, Introduce()):
                self._take_card(name, card)
        self._keep()
        self.files.tell(
            RunStarted(
                self.conductor.engine,
                record.term,
                record.stages_done,
                record.progress().num_stages,
                plan.clients.names,
                plan.digest(),
            )
        )
        with self._stage("key agreement", 0):
            self._agree()

    def run(self) -> None:
        """All stages that are left, unless asked to stop between two."""
        if self._stops():
            return
        self._all_train(TrainAlone(), 0, 0)
        for iteration in range(1, self.conductor.plan.iterations + 1):
            for querier, num_queries in self._get_ready(iteration):
                if self._stops():
                    return
                self._answer(querier, num_queries, iteration)
            if self._stops():
                return
            self._all_train(Retrain(iteration), asking_stage(iteration) + 1, iteration)

    def _take_card(self, name: str, card: HeteroCard) -> None:
        around = self.conductor
        if card.plan_digest != around.plan.digest():
            raise ProtocolError(f"{name} runs another plan than the server.", remedy="Start the run anew.")
        if card.version != around.version:
            raise ProtocolError(
                f"{name} runs bilateral {card.version}, the server {around.version}.", remedy="Install the same."
            )
        self.record.take_card(name, card)

    def _agree(self) -> None:
        keys = SimulatedKeys(self.conductor.plan, self.record.term)
        ring = keys.ring(SERVER)
        announced = KeyDirectory(keys.run_id, keys.names, keys.pinned(), min_clients=len(keys.names))
        announced.register(SERVER, ring.announce())
        briefing = HeteroBriefing(self.conductor.plan.digest(), self.record.term, keys.run_id)
        for name, announcement in self._ask_all(KeyAnnouncement, briefing):
            announced.register(name, announcement)
        roster = announced.roster()
        ring.accept(roster)
        for _ in self._ask_all(Message, roster):
            pass
        self._server = PredictionServer(ring, self.lines, randomness=keys.sessions, on_answered=self._note_answered)
        self.conductor.traffic = self._server.traffic

    def _all_train(self, command: Message, stage: int, iteration: int) -> None:
        """Those that have done `stage` stages train, all at the same time; each is in the record as it is done."""
        waiting = self.record.at_stage(stage)
        what = f"retraining, iteration {iteration}" if iteration else "training alone"
        with self._stage(what, iteration):
            for name, reply in self._ask_all(Measured, command, waiting):
                self._check_count(name, reply.num_queries, least=min(iteration, 1))
                self.record.measured(name, reply.accuracy, reply.num_queries)
                self._keep()

    def _get_ready(self, iteration: int) -> list[tuple[str, int]]:
        """Who has not asked yet, and how much each will."""
        waiting = self.record.at_stage(asking_stage(iteration))
        if not waiting:
            return []
        with self._stage(f"making queries, iteration {iteration}", iteration):
            ready = dict(self._ask_all(QueriesReady, GetReady(iteration)))
            for name in waiting:
                self._check_count(name, ready[name].num_queries, least=1)
        return [(name, ready[name].num_queries) for name in waiting]

    def _answer(self, querier: str, num_queries: int, iteration: int) -> None:
        """One site asks: secret-shared prediction with all its answerers."""
        assert self._server is not None
        with self._stage(f"answering {querier}, iteration {iteration}", iteration):
            sessions = self._server.open_sessions(querier, answerers_of(self.conductor.plan, querier, iteration))
            self._num_queries = num_queries
            self._server.predict(sessions, num_queries)
            self._server.close(sessions)
            for name, _ in self._ask_all(Message, KeepAnswers(iteration), [querier]):
                self.record.advance(name)
            self._keep()

    def _note_answered(self, num_queries: int) -> None:
        self.record.answered += num_queries / self._num_queries
        self._keep()

    def _check_count(self, name: str, count: int, least: int) -> None:
        most = self.conductor.plan.queries.number if least else 0
        if not least <= count <= most:
            raise SiteRefusedError(name, f"{name} said {count} queries; expected {least} to {most}.")

    def _ask_all(
        self, kind: type[_M], command: Message, sites: Sequence[str] | None = None
    ) -> Iterator[tuple[str, _M]]:
        """The same message to all sites, or to these; replies as they come."""
        names = self.conductor.plan.clients.names if sites is None else sites
        for name, reply in self.lines.ask(dict.fromkeys(names, command)):
            assert isinstance(reply, kind)  # the transport reads nothing else as the reply
            yield name, reply

    def _keep(self) -> None:
        now = time.perf_counter()
        self.record.seconds += now - self._since
        self._since = now
        self.record.save(self.directory)
        self.conductor.on_progress(self.record.progress())

    def _stops(self) -> bool:
        return self.conductor.should_stop() or self.files.stop_requested

    @contextmanager
    def _stage(self, what: str, iteration: int) -> Iterator[None]:
        """Whoever fails in here fails by name, at this stage."""
        try:
            yield
        except SiteLostError as error:
            self.files.tell(SiteMissed(error.site, iteration, what, str(error)))
            raise SitesMissingError(
                f"{error.site} gave no answer at the stage: {what} ({error}).",
                remedy="Every stage before is kept; bring the site back and resume.",
            ) from error
        except SiteRefusedError as error:
            self.files.tell(MessageRefused(error.site, iteration, str(error)))
            raise ProtocolError(
                f"At the stage: {what}: {error}", remedy="See the site's log; every stage before is kept."
            ) from error
