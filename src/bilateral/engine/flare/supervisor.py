"""The administrator's side of a run: one FLARE job after the other until the run is finished.

Each job is a term. A new one begins when the last one died unfinished (the server was killed, a site was lost while the
job started), and when a site has connected that is not in the job: a site whose process died cannot join a running job,
so the job is asked to stop after the round at hand, and the next one has the site in it again. Nothing is lost between
terms: the server's run directory has every round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bilateral.engine.flare.admin import Admin, JobState, JobStatus
from bilateral.engine.flare.coordinator import STATUS, STOP
from bilateral.errors import DeploymentError

POLL_SECONDS = 1.0
SETTLE_SECONDS = 5.0
"""How long to wait for the other sites when enough are there, and before a returned site is believed to be back."""
MAX_BARREN_TERMS = 3
FINAL_KINDS = frozenset(
    {"PlanError", "UnsoundPlanError", "DataError", "MissingDataError", "ModelError", "UnsupportedLayerError"}
    | {"NumericalRangeError", "CheckpointError"}
)
"""Errors that another term would meet again."""


@dataclass(frozen=True)
class Progress:
    """What the running job says of itself."""

    round: int = 0
    num_rounds: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    sites: tuple[str, ...] = ()

    @staticmethod
    def of(answer: dict[str, Any]) -> Progress:
        return Progress(
            int(answer.get("round", 0)),
            int(answer.get("num_rounds", 0)),
            dict(answer.get("metrics", {})),
            tuple(answer.get("sites", ())),
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
    for the server or for enough sites.
    """

    admin: Admin
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
    _last_round: int = 0

    def supervise(self) -> Outcome:
        """The last term's outcome."""
        barren = 0
        while True:
            self._wait_for_sites()
            before = self._last_round
            self.on_term()
            job_id = self.admin.submit(self.job)
            status = self._follow(job_id)
            outcome = self.outcome_of(job_id)
            if outcome is not None and (outcome.is_final or self.should_stop()):
                return outcome
            if self.should_stop():
                return outcome or Outcome({"error": "stopped", "kind": "Stopped"})
            reached = max(self._last_round, outcome.rounds if outcome else 0)
            barren = 0 if reached > before or (outcome and "error" not in outcome.values) else barren + 1
            self._last_round = reached
            reason = outcome.values.get("error", "") if outcome else status.text
            if barren >= MAX_BARREN_TERMS:
                raise DeploymentError(
                    f"{barren} terms in a row ended without a round, the last one so: {reason}",
                    remedy="Look at the logs of the server and of the sites; then resume.",
                )
            self.on_note(f"a new term begins{': ' + reason if reason else ''}")

    def _wait_for_sites(self) -> None:
        """Until enough sites are connected, and a little longer if not all are."""
        deadline = time.monotonic() + self.patience
        settled: float | None = None
        noted = False
        while True:
            self.on_tick()
            present = self._connected()
            now = time.monotonic()
            if len(present) == len(self.sites):
                return
            if len(present) >= self.min_sites:
                settled = settled or now + SETTLE_SECONDS
                if now >= settled:
                    return
            elif now > deadline or self.should_stop():
                raise DeploymentError(
                    f"{len(present)} of {len(self.sites)} sites are connected, {self.min_sites} are needed.",
                    remedy="Start the sites' kits; see the server's log for sites that were turned away.",
                )
            elif not noted:
                noted = True
                self.on_note(f"waiting for sites: {', '.join(present) or 'none'} of {', '.join(self.sites)} there")
            time.sleep(POLL_SECONDS)

    def _connected(self) -> list[str]:
        try:
            connected = self.admin.connected_sites()
        except DeploymentError:  # the server is gone; it may come back
            return []
        return [site for site in self.sites if site in connected]

    def _follow(self, job_id: str) -> JobStatus:
        """Watch a job to its end."""
        asked, lost_since, newcomer_since = False, None, None
        while True:
            time.sleep(POLL_SECONDS)
            self.on_tick()
            now = time.monotonic()
            try:
                status = self.admin.status(job_id)
                progress = self._ask(job_id) if status.state is JobState.RUNNING else None
            except DeploymentError as error:
                lost_since = lost_since or now
                if now - lost_since > self.patience:
                    raise
                if now - lost_since < POLL_SECONDS:
                    self.on_note(str(error))
                continue
            if status.has_ended:
                return status
            lost_since = None
            if progress is None or asked:
                continue
            newcomers = self._newcomers(job_id, progress)
            newcomer_since = (newcomer_since or now) if newcomers else None
            if newcomer_since is not None and now - newcomer_since > SETTLE_SECONDS:
                self.on_note(f"{', '.join(newcomers)} came back: a new term after this round")
                asked = self._ask_to_stop(job_id)
            elif self.should_stop():
                asked = self._ask_to_stop(job_id)

    def _ask(self, job_id: str) -> Progress | None:
        """What the job says; None if it does not answer."""
        try:
            progress = Progress.of(self.admin.command(job_id, STATUS, {}))
        except DeploymentError:
            return None
        self._last_round = max(self._last_round, progress.round)
        self.on_progress(progress)
        return progress

    def _newcomers(self, job_id: str, progress: Progress) -> list[str]:
        """Connected sites that do not run this job."""
        if not progress.sites and progress.round == 0:
            return []  # it has only just begun
        running = self.admin.sites_running(job_id)
        return [site for site in self._connected() if site not in running]

    def _ask_to_stop(self, job_id: str) -> bool:
        try:
            self.admin.command(job_id, STOP, {})
        except DeploymentError:
            return False
        return True
