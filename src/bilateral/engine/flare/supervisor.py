"""The administrator's side of a run: one FLARE job after the other until the run is finished.

Each job is a term. A new one begins when the last one died unfinished (the server was killed, a site was lost while the
job started), and when a site has connected that is not in the job: a site whose process died cannot join a running job,
so the job is asked to stop after the round at hand, and the next one has the site in it again. Nothing is lost between
terms: the server's run directory has every round.

Formal guarantees (tests/engine/flare/test_supervisor.py):
- at most one job of the run is under way at any time, also if the server dies while it takes a job;
- a site that connects but never comes into a job costs one term, not one after the other; one that is cut off and
  keeps its process costs none;
- a run in which nothing moves ends: terms without a round are counted, and waiting is bounded by `patience`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bilateral.engine.flare.admin import JobState, JobStatus, ServerAwayError
from bilateral.engine.flare.coordinator import STATUS, STOP
from bilateral.errors import DeploymentError

Answer = TypeVar("Answer")
POLL_SECONDS = 1.0
SETTLE_SECONDS = 5.0
"""How long to wait for the other sites when enough are there, and before a returned site is believed to be back."""
RETRY_SECONDS = 10.0
"""How long to ask again when the server answers with an error: it may have just begun."""
SECONDS_BETWEEN_FIRST_QUESTIONS = 4.0
"""A job takes a while before it answers; until then every question is an error in the server's log."""
MAX_BARREN_TERMS = 3
FINAL_KINDS = frozenset(
    {"PlanError", "UnsoundPlanError", "DataError", "MissingDataError", "ModelError", "UnsupportedLayerError"}
    | {"NumericalRangeError", "CheckpointError"}
)
"""Errors that another term would meet again."""
STOPPED = "Stopped"
"""The kind of an outcome when there was no job that could have left one."""


class Administrator(Protocol):
    """What a supervisor needs of a FLARE session; `Admin` is one. All of it may raise `DeploymentError`."""

    def submit(self, job: Path, token: str | None = None) -> str: ...

    def status(self, job_id: str) -> JobStatus: ...

    def connected_sites(self) -> tuple[str, ...]: ...

    def sites_running(self, job_id: str) -> dict[str, bool]: ...

    def command(self, job_id: str, topic: str, data: dict[str, Any]) -> dict[str, Any]: ...

    def abort(self, job_id: str) -> None: ...


@dataclass(frozen=True)
class Progress:
    """What the running job says of itself."""

    round: int = 0
    num_rounds: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    is_open: bool = False
    """Sites may come before the first round is done, too."""

    @staticmethod
    def of(answer: dict[str, Any]) -> Progress:
        return Progress(
            int(answer.get("round", 0)),
            int(answer.get("num_rounds", 0)),
            dict(answer.get("metrics") or {}),
            answer.get("open") is True,
        )


@dataclass(frozen=True)
class Outcome:
    """How a term ended: the run's result so far, or what went wrong (`error`, `kind`)."""

    values: dict[str, Any]

    @property
    def finished(self) -> bool:
        return bool(self.values.get("finished"))

    @property
    def rounds(self) -> int:
        return int(self.values.get("rounds", 0))

    @property
    def is_final(self) -> bool:
        """The run is done, or another term cannot help."""
        return self.finished or self.values.get("kind") in FINAL_KINDS


@dataclass
class Supervisor:
    """Runs terms until the run is finished or asked to stop.

    `outcome_of` reads how a job ended (None: it left nothing behind, since it was killed). `patience`: how long to wait
    for the server or for enough sites. `all_at_first`: the first term waits for all sites, not only for enough.
    `job_id`: a job of this run that is under way already, followed in place of a first new one; then the newest job's.
    """

    admin: Administrator
    job: Path
    sites: Sequence[str]
    min_sites: int
    outcome_of: Callable[[str], Outcome | None]
    patience: float = 600.0
    on_term: Callable[[], None] = lambda: None
    on_tick: Callable[[], None] = lambda: None
    on_progress: Callable[[Progress], None] = lambda _: None
    on_note: Callable[[str], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    all_at_first: bool = False
    job_id: str = ""
    _last_round: int = 0
    _waited_for: set[str] = field(default_factory=set)
    """Newcomers for which a term was ended, and which have not been seen in a job since."""

    def supervise(self) -> Outcome:
        """The last term's outcome."""
        barren = 0
        if not self.job_id:
            self.begin()
        while self.job_id:
            before = self._last_round
            status = _Watch(self, self.job_id).to_its_end()
            outcome = self._patiently(lambda: self.outcome_of(self.job_id))
            if outcome is not None and (outcome.is_final or self.should_stop()):
                return outcome
            if self.should_stop():
                break
            self._last_round = max(self._last_round, outcome.rounds if outcome else 0)
            moved = self._last_round > before or (outcome is not None and "error" not in outcome.values)
            barren = 0 if moved else barren + 1
            reason = str(outcome.values.get("error", "")) if outcome else status.text
            if barren >= MAX_BARREN_TERMS:
                raise DeploymentError(
                    f"{barren} terms in a row ended without a round, the last one so: {reason}",
                    remedy="Look at the logs of the server and of the sites; then resume.",
                )
            self.on_note(f"a new term begins{': ' + reason if reason else ''}")
            self._begin(self.min_sites)
        return Outcome({"finished": False, "rounds": self._last_round, "error": "stopped", "kind": STOPPED})

    def begin(self) -> None:
        """Wait for the sites and submit the first job, unless asked to stop meanwhile."""
        self._begin(len(self.sites) if self.all_at_first else self.min_sites)

    def _begin(self, needed: int) -> None:
        self.job_id = ""
        self._wait_for_sites(needed)
        if self.should_stop():
            return
        self.on_term()
        token = uuid.uuid4().hex  # the same one in all tries: a job that the server took before it died is not doubled
        self.job_id = self._patiently(lambda: self.admin.submit(self.job, token))

    def _wait_for_sites(self, needed: int) -> None:
        """Until enough sites are connected, and a little longer if not all are."""
        deadline = time.monotonic() + self.patience
        settled: float | None = None
        noted = False
        while not self.should_stop():
            self.on_tick()
            present = self.connected()
            now = time.monotonic()
            if len(present) == len(self.sites):
                return
            if len(present) >= needed:
                settled = settled or now + SETTLE_SECONDS
                if now >= settled:
                    return
            else:
                settled = None
            if now > deadline:
                raise DeploymentError(
                    f"{len(present)} of {len(self.sites)} sites are connected, {needed} are needed.",
                    remedy=f"Start the kits of {', '.join(site for site in self.sites if site not in present)}; see "
                    "the server's log for sites that were turned away.",
                )
            if not noted:
                noted = True
                self.on_note(f"waiting for sites: {', '.join(present) or 'none'} of {', '.join(self.sites)} there")
            time.sleep(POLL_SECONDS)

    def connected(self) -> list[str]:
        """The run's sites that are connected; none if the server is gone, since it may come back."""
        try:
            connected = self.admin.connected_sites()
        except DeploymentError:
            return []
        return [site for site in self.sites if site in connected]

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again while the server is away."""
        began, noted = time.monotonic(), False
        while True:
            try:
                return ask()
            except DeploymentError as error:
                patience = self.patience if isinstance(error, ServerAwayError) else RETRY_SECONDS
                if time.monotonic() - began > patience:
                    raise
                if not noted:
                    noted = True
                    self.on_note(str(error))
            time.sleep(POLL_SECONDS)
            self.on_tick()


@dataclass
class _Watch:
    """Watches one job."""

    run: Supervisor
    job_id: str
    _asked: bool = False
    _newcomers_since: float | None = None
    _has_answered: bool = False
    _asked_at: float = float("-inf")
    _looked_at: float = float("-inf")

    def to_its_end(self) -> JobStatus:
        run, began = self.run, time.monotonic()
        away_since: float | None = None
        while True:
            time.sleep(POLL_SECONDS)
            run.on_tick()
            now = time.monotonic()
            try:
                status = run.admin.status(self.job_id)
                if status.has_ended:
                    return status
                if status.state is JobState.RUNNING:
                    began = now
                    self._attend(now)
                elif run.should_stop() or now - began > run.patience:
                    run.admin.abort(self.job_id)  # it has not begun, so there is no round to wait for
                away_since = None
            except DeploymentError as error:
                if away_since is None:
                    away_since = now
                    run.on_note(str(error))
                if now - away_since > run.patience:
                    raise

    def _attend(self, now: float) -> None:
        """Look after a running job."""
        run = self.run
        if not self._has_answered and now - self._asked_at < SECONDS_BETWEEN_FIRST_QUESTIONS:
            return
        self._asked_at = now
        try:
            progress = Progress.of(run.admin.command(self.job_id, STATUS, {}))
        except DeploymentError:
            return  # it has only just begun, or is about to end
        self._has_answered = True
        run._last_round = max(run._last_round, progress.round)
        run.on_progress(progress)
        if self._asked:
            return
        if run.should_stop():
            self._ask_to_stop()
        elif (progress.round or progress.is_open) and now - self._looked_at > SETTLE_SECONDS:
            self._looked_at = now
            self._look_for_newcomers(now)

    def _look_for_newcomers(self, now: float) -> None:
        """Connected sites that say that they do not run this job: if they stay, the next term is for them.

        One that says nothing is dead or cut off: it may still run the job, and be back in it.
        """
        run = self.run
        running, connected = run.admin.sites_running(self.job_id), run.connected()
        run._waited_for = {site for site in run._waited_for if site in connected and not running.get(site)}
        newcomers = [site for site in connected if running.get(site) is False and site not in run._waited_for]
        if not newcomers:
            self._newcomers_since = None
        elif self._newcomers_since is None:
            self._newcomers_since = now
        elif self._ask_to_stop():
            run._waited_for.update(newcomers)
            run.on_note(f"{', '.join(newcomers)} came back: a new term after this round")

    def _ask_to_stop(self) -> bool:
        try:
            self.run.admin.command(self.job_id, STOP, {})
        except DeploymentError:
            return False  # asked again at the next look
        self._asked = True
        return True
