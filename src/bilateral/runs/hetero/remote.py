"""The clients of a heterogeneous run at sites of their own, each at the end of a line.

1. All sites train alone, at the same time.
2. In every iteration all get ready (network offered, queries made), then one after the other asks: its answerers work
   side by side, the server helps, and the next one who asks deals. At last all retrain, at the same time.

Every site is needed. One that is gone ends the term by name (`SitesMissingError`); what is done is kept, the sites' own
work at the sites, and the next term goes on from there. A stage that was under way is done again, under new keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor

from bilateral.engine.events import MessageRefused, SiteMissed
from bilateral.engine.kind import ServerAround
from bilateral.engine.remote.lines import SiteLines, SiteLostError, SiteRefusedError
from bilateral.errors import ProtocolError, SitesMissingError
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.mask.messages import KeyAnnouncement
from bilateral.protocols.messages import Message
from bilateral.protocols.share.prediction.parties import Asking, PredictionServer
from bilateral.protocols.transport import SERVER, Traffic
from bilateral.runs.hetero.keys import SimulatedKeys
from bilateral.runs.hetero.messages import (
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
from bilateral.runs.hetero.record import HeteroRecord, check_accuracies
from bilateral.runs.hetero.staged_client import Measure

_M = TypeVar("_M", bound=Message)


class ClientsAtSites:
    """`lines` are to the sites that are there; `close` closes them."""

    at_once = True

    def __init__(self, plan: HeteroPlan, lines: SiteLines, around: ServerAround) -> None:
        self.traffic = Traffic()
        """Of secret-shared prediction, in this term."""
        self._plan, self._lines, self._around = plan, lines, around
        self._server: PredictionServer | None = None
        self._num_queries: dict[str, int] = {}
        self._asking: dict[str, Asking] = {}
        """Who is dealt for ahead: sessions are open, and correlations there or under way."""
        self._on_answered: Callable[[int], None] = lambda _: None

    def enrol(self, record: HeteroRecord) -> None:
        """Who is there, and how far."""
        if missing := [name for name in self._plan.clients.names if name not in self._lines.sites]:
            raise SitesMissingError(
                f"All {len(self._plan.clients.names)} sites of the plan are needed; {', '.join(missing)} did not come.",
                remedy="Start them, then resume.",
            )
        with self._stage("enrolment", 0):
            for name, card in self._ask_all(HeteroCard, Introduce()):
                self._check_card(name, card)
                record.take_card(name, card)

    def agree(self, record: HeteroRecord) -> None:
        """The key agreement of the term."""
        keys = SimulatedKeys(self._plan, record.term)
        ring = keys.ring(SERVER)
        announced = KeyDirectory(keys.run_id, keys.names, keys.pinned(), min_clients=len(keys.names))
        announced.register(SERVER, ring.announce())
        briefing = HeteroBriefing(self._plan.digest(), record.term, keys.run_id)
        with self._stage("key agreement", 0):
            for name, announcement in self._ask_all(KeyAnnouncement, briefing):
                announced.register(name, announcement)
            roster = announced.roster()
            ring.accept(roster)
            for _ in self._ask_all(Message, roster):
                pass
        self._server = PredictionServer(
            ring,
            self._lines,
            style=self._plan.comparisons,
            randomness=keys.sessions,
            on_answered=lambda count: self._on_answered(count),  # noqa: PLW0108 (it is another for every site)
        )
        self.traffic = self._server.traffic

    def train(self, names: Sequence[str]) -> Iterator[tuple[str, Measure]]:
        return self._measures(TrainAlone(), names, 0, "training alone")

    def get_ready(self, iteration: int, waiting: Sequence[str]) -> None:
        with self._stage(f"making queries, iteration {iteration}", iteration):
            ready = dict(self._ask_all(QueriesReady, GetReady(iteration)))
            for name in waiting:
                self._check_count(name, ready[name].num_queries, least=1)
        self._num_queries = {name: reply.num_queries for name, reply in ready.items()}

    def ask(self, name: str, iteration: int, following: Sequence[str], on_answered: Callable[[float], None]) -> None:
        """Secret-shared prediction with all its answerers. While they compute, the next one who asks deals."""
        assert self._server is not None
        total = self._num_queries[name]
        with self._stage(f"answering {name}, iteration {iteration}", iteration):
            asking = self._asking.pop(name, None) or self._open(name, iteration)
            self._on_answered = lambda count: on_answered(count / total)
            if following and following[0] not in self._asking:
                self._asking[following[0]] = self._open(following[0], iteration)
            self._server.answer_all(asking, self._asking.get(following[0]) if following else None)
            self._server.close(asking.sessions)
            for _ in self._ask_all(Message, KeepAnswers(iteration), [name]):
                pass

    def _open(self, name: str, iteration: int) -> Asking:
        assert self._server is not None
        sessions = self._server.open_sessions(name, answerers_of(self._plan, name, iteration))
        return self._server.asking(sessions, self._num_queries[name])

    def retrain(self, names: Sequence[str], iteration: int) -> Iterator[tuple[str, Measure]]:
        return self._measures(Retrain(iteration), names, iteration, f"retraining, iteration {iteration}")

    def bytes_sent(self) -> int:
        return self.traffic.total_bytes()

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, record: HeteroRecord, tensors: Mapping[str, Tensor]) -> None: ...

    def close(self) -> None:
        self._lines.close()

    def _measures(
        self, command: Message, names: Sequence[str], iteration: int, what: str
    ) -> Iterator[tuple[str, Measure]]:
        with self._stage(what, iteration):
            for name, reply in self._ask_all(Measured, command, names):
                self._check_count(name, reply.num_queries, least=min(iteration, 1))
                check_accuracies(name, reply.accuracy.reshape(-1), 1)
                yield name, Measure(float(reply.accuracy), reply.num_queries)

    def _check_card(self, name: str, card: HeteroCard) -> None:
        if card.plan_digest != self._plan.digest():
            raise ProtocolError(f"{name} runs another plan than the server.", remedy="Start the run anew.")
        if card.version != self._around.version:
            raise ProtocolError(
                f"{name} runs bilateral {card.version}, the server {self._around.version}.", remedy="Install the same."
            )

    def _check_count(self, name: str, count: int, least: int) -> None:
        most = self._plan.queries.number if least else 0
        if not least <= count <= most:
            raise SiteRefusedError(name, f"{name} said {count} queries; expected {least} to {most}.")

    def _ask_all(
        self, kind: type[_M], command: Message, sites: Sequence[str] | None = None
    ) -> Iterator[tuple[str, _M]]:
        """The same message to all sites, or to these; replies as they come."""
        names = self._plan.clients.names if sites is None else sites
        for name, reply in self._lines.ask(dict.fromkeys(names, command)):
            assert isinstance(reply, kind)  # the transport reads nothing else as the reply
            yield name, reply

    @contextmanager
    def _stage(self, what: str, iteration: int) -> Iterator[None]:
        """Whoever fails in here fails by name, at this stage."""
        try:
            yield
        except SiteLostError as error:
            self._around.tell(SiteMissed(error.site, iteration, what, str(error)))
            raise SitesMissingError(
                f"{error.site} gave no answer at the stage: {what} ({error}).",
                remedy="Every stage before is kept; bring the site back and resume.",
            ) from error
        except SiteRefusedError as error:
            self._around.tell(MessageRefused(error.site, iteration, str(error)))
            raise ProtocolError(
                f"At the stage: {what}: {error}", remedy="See the site's log; every stage before is kept."
            ) from error
