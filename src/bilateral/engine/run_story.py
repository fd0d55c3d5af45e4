"""The events of a run, folded into how it stands. `run_status` reads the files and `bilateral watch` shows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from bilateral.engine.event_tail import Told
from bilateral.engine.events import (
    Evaluated,
    MessageRefused,
    RoundDone,
    RoundFailed,
    RunEnded,
    RunStarted,
    SiteMissed,
    SiteReturned,
    StageDone,
    Waiting,
)
from bilateral.engine.kind import Outline

NUM_TIMED_ROUNDS = 20
NUM_RECENT_EVENTS = 50
SILENT_AFTER_ROUNDS = 10
MIN_SILENCE_SECONDS = 60.0
MAX_START_SECONDS = 300.0


class RunState(StrEnum):
    STARTING = "starting"
    """No round yet since the run was (re)started."""
    RUNNING = "running"
    WAITING = "waiting"
    """Too few sites are there for a round."""
    STOPPED = "stopped"
    """Ended before its last round; it can be resumed."""
    FINISHED = "finished"
    SILENT = "silent"
    """No event for much longer than a round takes, and no word of an end: killed, or stuck."""


class SiteState(StrEnum):
    EXPECTED = "expected"
    """Named when the run was (re)started; no round of it yet."""
    IN_LAST_ROUND = "in last round"
    NOT_IN_LAST_ROUND = "not in last round"
    """Neither in the last round nor missed: not invited, or done without."""
    MISSED = "missed"
    REFUSED = "refused"
    RETURNED = "returned"
    ABSENT = "absent"
    """Not among the sites with which the run was restarted."""


@dataclass(frozen=True)
class Trouble:
    """Why a site was last out of a round. `stage` is "" for a refused message."""

    time: datetime
    round: int
    stage: str
    reason: str


@dataclass
class Site:
    """What is known of one site. Rounds are those that are in the model; misses and refusals are all that happened."""

    state: SiteState = SiteState.EXPECTED
    num_rounds: int = 0
    num_misses: int = 0
    num_refused: int = 0
    trouble: Trouble | None = None


@dataclass
class Story:
    """The events so far, folded.

    A run that is restarted from a checkpoint does some rounds again: what was told of rounds after the checkpoint is
    void, except that a site was missed or refused.
    """

    engine: str = ""
    term: int = 0
    round: int = 0
    num_rounds: int | None = None
    last_time: datetime | None = None
    ended: RunEnded | None = None
    waiting: Waiting | None = None
    round_in_this_term: bool = False
    done: dict[int, tuple[str, ...]] = field(default_factory=dict)
    last_contributors: tuple[str, ...] = ()
    failed: set[int] = field(default_factory=set)
    history: dict[int, Evaluated] = field(default_factory=dict)
    sites: dict[str, Site] = field(default_factory=dict)
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TIMED_ROUNDS))
    recent: deque[Told] = field(default_factory=lambda: deque(maxlen=NUM_RECENT_EVENTS))
    num_notable: int = 0

    def hear(self, told: Told) -> None:
        self.last_time = told.time
        event = told.event
        if not isinstance(event, RoundDone | StageDone | Evaluated):
            self.recent.append(told)
            self.num_notable += 1
        match event:
            case RunStarted():
                self._started(event)
            case RoundDone():
                self._step_done(event.round, event.seconds, event.contributors)
            case StageDone():
                self._step_done(event.round, event.seconds, event.sites)
            case RoundFailed():
                self._take_back(event.round)
                self.failed.add(event.round)
                self._passed(event.round)
            case Evaluated():
                self.history[event.round] = event
            case SiteMissed():
                self._trouble(event.site, SiteState.MISSED, Trouble(told.time, event.round, event.stage, event.reason))
            case MessageRefused():
                self._trouble(event.site, SiteState.REFUSED, Trouble(told.time, event.round, "", event.reason))
            case SiteReturned():
                self._site(event.site).state = SiteState.RETURNED
            case Waiting():
                self.waiting = event
            case RunEnded():
                self.ended, self.waiting, self.round = event, None, event.round

    def _started(self, event: RunStarted) -> None:
        self.engine, self.term, self.round, self.num_rounds = event.engine, event.term, event.round, event.num_rounds
        self.ended, self.waiting, self.round_in_this_term = None, None, False
        for number in [number for number in self.done if number > event.round]:
            self._take_back(number)
        self.failed = {number for number in self.failed if number <= event.round}
        self.history = {number: found for number, found in self.history.items() if number <= event.round}
        self.last_contributors = ()
        for site in self.sites.values():
            away = site.state in {SiteState.MISSED, SiteState.REFUSED, SiteState.RETURNED, SiteState.ABSENT}
            site.state = SiteState.RETURNED if away else SiteState.EXPECTED
        for name in event.sites:
            self._site(name)
        for name in self.sites.keys() - set(event.sites):
            self.sites[name].state = SiteState.ABSENT

    def _step_done(self, number: int, seconds: float, contributors: tuple[str, ...]) -> None:
        self._take_back(number)
        self.failed.discard(number)
        self.done[number] = self.last_contributors = contributors
        self.seconds.append(seconds)
        self._passed(number)
        for name in contributors:
            site = self._site(name)
            site.num_rounds += 1
            # A site may be lost after its upload: it is in the sum, and it is gone.
            troubled = site.trouble is not None and site.trouble.round == number
            if not (troubled and site.state in {SiteState.MISSED, SiteState.REFUSED}):
                site.state = SiteState.IN_LAST_ROUND

    def _passed(self, number: int) -> None:
        self.round, self.waiting, self.round_in_this_term = number, None, True

    def _take_back(self, number: int) -> None:
        for name in self.done.pop(number, ()):
            self.sites[name].num_rounds -= 1

    def _trouble(self, name: str, state: SiteState, trouble: Trouble) -> None:
        site = self._site(name)
        site.state, site.trouble = state, trouble
        site.num_misses += state is SiteState.MISSED
        site.num_refused += state is SiteState.REFUSED

    def _site(self, name: str) -> Site:
        if name not in self.sites:
            self.sites[name] = Site()
        return self.sites[name]

    def state(self, silence: float, outline: Outline) -> RunState:
        """`silence`: seconds since the last event."""
        if self.ended is not None:
            return RunState.FINISHED if self.ended.finished else RunState.STOPPED
        if silence > self._silent_after(outline):
            return RunState.SILENT
        if self.waiting is not None:
            return RunState.WAITING
        return RunState.RUNNING if self.round_in_this_term else RunState.STARTING

    def reason(self, state: RunState) -> str:
        if self.ended is not None:
            return self.ended.reason
        if state is RunState.SILENT:
            return "no word of an end: the process may be gone, or stuck"
        if state is RunState.WAITING and self.waiting is not None:
            return f"{self.waiting.needed} sites needed, present: {', '.join(self.waiting.present) or 'none'}"
        return ""

    def site_state(self, name: str) -> SiteState:
        state = self.sites[name].state
        if state is SiteState.IN_LAST_ROUND and name not in self.last_contributors:
            return SiteState.NOT_IN_LAST_ROUND
        return state

    def _silent_after(self, outline: Outline) -> float:
        """Longer than any silence that has a reason: a site that lets the others wait, a round that waits for sites."""
        seconds = max(MIN_SILENCE_SECONDS, outline.longest_step, SILENT_AFTER_ROUNDS * max(self.seconds, default=0.0))
        if self.engine != "in-process":
            seconds = max(seconds, 2 * outline.timeout)
        if self.waiting is not None:
            return seconds + outline.patience
        return seconds if self.round_in_this_term else max(seconds, MAX_START_SECONDS)
