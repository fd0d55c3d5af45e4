"""The server's side of a service over sites: `AnswerServer`, with a line to every site and a thread a client.

A term lasts until it is asked to stop or every client has asked all that it may. Nothing is kept between terms but the
counts, which are on disk before anything is dealt: a term that is killed gives nothing back.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any, Final

from bilateral.engine.checkpoint import Checkpoint
from bilateral.engine.events import Event, MessageRefused, SiteMissed, SiteReturned, StageDone
from bilateral.engine.kind import ServerAround, Sites
from bilateral.engine.remote.edge import SiteSilentError
from bilateral.engine.remote.lines import replies_in
from bilateral.errors import BilateralError, MalformedMessageError, ProtocolError
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Message
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.protocols.wire import decode, encode
from bilateral.randomness import Randomness
from bilateral.serving.guarantee import serving_guarantee
from bilateral.serving.hosted.messages import (
    FROM_CLIENT_SITE,
    FROM_DEALER_SITE,
    AskerGone,
    CallUp,
    NobodyAsks,
    SiteHere,
    WhatNext,
)
from bilateral.serving.hosted.plan import ServingPlan
from bilateral.serving.messages import NOT_DONE, Ask, AskingRequest, Refused
from bilateral.serving.model import ServedModel
from bilateral.serving.server import AnswerServer, Conditions

LANE: Final = 0
WAIT_SECONDS: Final = 2.0
"""A client's site may look so long for somebody who asks, before it says that there is nobody."""
TURN_SECONDS: Final = 60.0
"""A site may take so long for an answer; the door of a client's site gives up earlier."""
RETRY_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 0.5
LAST_SECONDS: Final = 30.0
"""What is under way when a term is to stop has so long to come to its end."""
RESTS: Final = "The service rests: nothing was counted. Ask the same again in a minute, with --resume."
TERM: Final = "term"


class SiteLine:
    """The server's way to one site: a message and its answer, one after the other, each packet with a new number."""

    def __init__(self, sites: Sites, site: str, types: Sequence[type[Message]]) -> None:
        self.site, self._sites, self._types = site, sites, tuple(types)
        self.most_bytes = 1 << 20
        """No answer is larger."""
        self._number, self._lock = 0, Lock()

    def tell(self, message: Message, timeout: float = TURN_SECONDS) -> Message:
        """`SiteSilentError` if the site is gone, `ProtocolError` if it refuses or its answer cannot be read."""
        with self._lock:
            self._number += 1
            answer = self._sites.call(self.site, LANE, self._number, [encode(message)], timeout)
        (reply,) = replies_in(answer, self.site, 1)
        if len(reply) > self.most_bytes:
            raise MalformedMessageError(f"{self.site} sent {len(reply)} bytes, at most {self.most_bytes} are read.")
        return decode(reply, self._types, self.site)


@dataclass(frozen=True)
class ServingProgress:
    """Questions so far, of all clients, ever; and of how many."""

    num_done: int
    num_steps: int
    metrics: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.num_done} of {self.num_steps} questions asked, ever"


@dataclass(frozen=True)
class ServingResult:
    """What was asked. `finished`: nobody may ask any more."""

    plan: ServingPlan
    guarantee: Guarantee
    questions: Mapping[str, int]
    finished: bool
    seconds: float
    output: Path | None

    @property
    def rounds(self) -> int:
        return sum(self.questions.values())

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.plan.run,
            "questions": dict(self.questions),
            "limit": self.plan.questions,
            "reveal": self.plan.reveal,
            "dealer": self.plan.dealer,
            "rounds": self.rounds,
            "finished": self.finished,
            "seconds": round(self.seconds, 3),
            "guarantee": self.guarantee.as_dict(),
            "output": str(self.output) if self.output else None,
        }


class ServingRun:
    """A `ServerRun`. `counters`: how many questions each client has asked; `pinned`: all identity keys."""

    def __init__(
        self,
        plan: ServingPlan,
        around: ServerAround,
        sites: Sites,
        model: ServedModel,
        counters: Mapping[str, FileCounter],
        pinned: Mapping[str, bytes],
        randomness: Randomness,
    ) -> None:
        self.plan, self._around, self._model = plan, around, model
        self._counters, self._pinned, self._randomness = counters, pinned, randomness
        self._lines = {
            name: SiteLine(sites, name, FROM_DEALER_SITE if name == plan.dealer else FROM_CLIENT_SITE)
            for name in plan.parties
            if name in sites.names()
        }
        self.term = 0
        self.members: tuple[str, ...] = ()
        self._stop, self._threads = Flag(), list[Thread]()
        self._news: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._answers: AnswerServer | None = None
        self._told = 0
        self._started = self._since = time.perf_counter()
        self._asking: dict[str, None] = {}
        """Who asks at this moment."""

    def load(self, state: Checkpoint) -> None:
        self.term = int(state.counters[TERM]) + 1

    def enrol(self) -> None:
        """Who is there, and has the same plan and version. A service can begin with whoever comes."""
        self._told = self._num_asked()
        threads = [Thread(target=self._call_up, args=(line,)) for line in self._lines.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.members = tuple(name for name in self.plan.parties if name in self._lines)

    def begin(self) -> None:
        plan = self.plan
        self._answers = AnswerServer(
            self._model,
            Conditions(plan.questions, plan.reveal),
            plan.dealer,
            self._tell_dealer,
            self._counters,
            self._pinned,
            self._randomness.child("term", self.term),
        )
        for line in self._lines.values():
            line.most_bytes = self._answers.most_bytes
        for name in self.members:
            if name != plan.dealer:
                thread = Thread(target=self._attend, args=(self._lines[name],), daemon=True, name=f"asking-{name}")
                self._threads.append(thread)
                thread.start()
        self._around.note()

    def steps(self) -> Iterator[None]:
        """Looks, again and again: the work is done by the clients' threads."""
        while not self._is_finished():
            yield

    def do(self, step: None) -> None:  # noqa: ARG002
        self._tell_news(LOOK_SECONDS)
        if (asked := self._num_asked()) != self._told:
            now, self._told = time.perf_counter(), asked
            self._around.tell(StageDone(asked, round(now - self._since, 4), tuple(self._asking)))
            self._since = now
            self._around.keep()
            self._around.note()

    def progress(self) -> ServingProgress:
        return ServingProgress(self._told, self.plan.questions * len(self.plan.clients))

    def state(self) -> Checkpoint:
        return Checkpoint(self.plan.digest(), self._told, {}, [], {TERM: self.term})

    def result(self, output: Path | None) -> ServingResult:
        self._rest(LAST_SECONDS)
        self._told = self._num_asked()
        plan = self.plan
        return ServingResult(
            plan,
            serving_guarantee(plan.dealer, self._model.circuit, plan.reveal, plan.questions),
            {name: counter.used for name, counter in self._counters.items()},
            self._is_finished(),
            time.perf_counter() - self._started,
            output,
        )

    def close(self) -> None:
        self._rest(0.0)

    def _rest(self, seconds: float) -> None:
        """No more questions; those under way are waited for."""
        self._stop.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._tell_news(0.0)

    def _num_asked(self) -> int:
        return sum(counter.used for counter in self._counters.values())

    def _is_finished(self) -> bool:
        return all(counter.used >= self.plan.questions for counter in self._counters.values())

    def _tell_news(self, seconds: float) -> None:
        """What the threads had to tell, in the thread of the run."""
        with suppress(queue.Empty):
            self._around.tell(self._news.get(timeout=seconds) if seconds else self._news.get_nowait())
            while True:
                self._around.tell(self._news.get_nowait())

    def _call_up(self, line: SiteLine) -> None:
        mine = SiteHere(self.plan.digest(), self._around.version)
        try:
            if line.tell(CallUp(mine.plan_digest, mine.version)) == mine:
                return
            self._news.put(MessageRefused(line.site, self._told, "it serves by another plan or version"))
        except SiteSilentError as error:
            self._news.put(SiteMissed(line.site, self._told, "enrolment", str(error)))
        except ProtocolError as error:
            self._news.put(MessageRefused(line.site, self._told, str(error)))
        self._lines.pop(line.site)

    def _tell_dealer(self, message: Message) -> Message:
        dealer = self.plan.dealer
        if dealer not in self._lines:
            raise ProtocolError(f"{dealer}, who deals, is not there.", remedy="Start its kit, and ask again.")
        try:
            return self._lines[dealer].tell(message)
        except SiteSilentError as error:
            self._news.put(SiteMissed(dealer, self._told, "dealing", str(error)))
            raise ProtocolError(
                f"{dealer}, who deals, gave no answer.", remedy="Start its kit, and ask again."
            ) from error

    def _attend(self, line: SiteLine) -> None:
        """One client's thread: whoever asks at its site, one after the other."""
        is_missed = False
        while not self._stop.is_set():
            try:
                first = line.tell(WhatNext(round(1000 * WAIT_SECONDS)))
                if is_missed:
                    self._news.put(SiteReturned(line.site, self._told))
                is_missed = False
                if not isinstance(first, NobodyAsks | AskerGone):
                    self._converse(line, first)
            except SiteSilentError as error:
                if not is_missed:
                    self._news.put(SiteMissed(line.site, self._told, "asking", str(error)))
                is_missed = True
                self._stop.wait(RETRY_SECONDS)
            except ProtocolError as error:
                self._news.put(MessageRefused(line.site, self._told, str(error)))
                self._stop.wait(RETRY_SECONDS)

    def _converse(self, line: SiteLine, message: Message) -> None:
        """A session, until who asks is gone, the site is, or says what cannot be read."""
        assert self._answers is not None
        session = self._answers.session(line.site)
        self._asking[line.site] = None
        try:
            while not isinstance(message, NobodyAsks | AskerGone):
                rests = self._stop.is_set() and isinstance(message, AskingRequest | Ask)
                reply = Refused(NOT_DONE, RESTS) if rests else session.handle(message)
                message = line.tell(reply)
        finally:
            self._asking.pop(line.site, None)
            with suppress(BilateralError):  # the dealer may be gone as well
                session.close()
