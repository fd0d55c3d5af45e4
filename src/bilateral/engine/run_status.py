"""How a run stands, from the files of its directory alone: for `bilateral watch`, on any machine that sees them."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bilateral.documents import parse_json
from bilateral.engine.event_tail import EventTail, Told, refuse_constant
from bilateral.engine.events import Evaluated, RunEnded
from bilateral.engine.kind import Outline, kind_of_plan
from bilateral.engine.run_directory import RunDirectory, plan_at
from bilateral.engine.run_story import RunState, SiteState, Story, Trouble
from bilateral.errors import CheckpointError


@dataclass(frozen=True)
class SiteStatus:
    """One site. Rounds are those that are in the model; misses and refusals are all that happened."""

    name: str
    state: SiteState
    num_rounds: int
    num_misses: int
    num_refused: int
    trouble: Trouble | None

    def as_dict(self) -> dict[str, Any]:
        trouble = self.trouble
        return {
            "site": self.name,
            "state": self.state.value,
            "rounds": self.num_rounds,
            "misses": self.num_misses,
            "refused": self.num_refused,
            "last_trouble_time": trouble.time.isoformat() if trouble else None,
            "last_trouble_round": trouble.round if trouble else None,
            "last_trouble_stage": trouble.stage if trouble else None,
            "last_trouble_reason": trouble.reason if trouble else None,
        }


@dataclass(frozen=True)
class Spending:
    """What `privacy.json` says the whole run spends, against whom."""

    status: str
    unit: str
    observer: str
    epsilon: float
    delta: float


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment. `metrics` and `history` (by round) are of the model as it is now."""

    directory: Path
    kind: str
    unit: str
    """What a step is called; `round` and all that is by round counts steps."""
    data: str
    model: str
    state: RunState
    reason: str
    """Why it waits, stopped, or counts as silent."""
    engine: str
    term: int
    round: int
    num_rounds: int
    num_failed: int
    seconds_per_round: float | None
    """Median of the last 20."""
    seconds_left: float | None
    seconds_since_event: float | None
    history: tuple[tuple[int, dict[str, float]], ...]
    difference_to_fedavg: float | None
    spending: tuple[Spending, ...]
    sites: tuple[SiteStatus, ...]
    recent: tuple[Told, ...]
    """The last notable events, oldest first."""
    num_notable: int
    num_unreadable: int
    """Lines of the log that were cut short, or that this version does not know."""

    @property
    def metrics(self) -> dict[str, float]:
        return self.history[-1][1] if self.history else {}

    def as_dict(self) -> dict[str, Any]:
        return {
            "directory": str(self.directory),
            "kind": self.kind,
            "data": self.data,
            "model": self.model,
            "state": self.state.value,
            "reason": self.reason,
            "engine": self.engine,
            "term": self.term,
            "round": self.round,
            "num_rounds": self.num_rounds,
            "rounds_failed": self.num_failed,
            "seconds_per_round": self.seconds_per_round,
            "seconds_left": self.seconds_left,
            "seconds_since_event": self.seconds_since_event,
            "metrics": self.metrics,
            "difference_to_fedavg": self.difference_to_fedavg,
            "history": [{"round": number, **metrics} for number, metrics in self.history],
            "privacy": [asdict(row) for row in self.spending],
            "sites": [site.as_dict() for site in self.sites],
            "events": [
                {"time": told.time.isoformat(), "event": told.event.event, **asdict(told.event)} for told in self.recent
            ],
            "lines_unreadable": self.num_unreadable,
        }


def read_run(path: Path, now: datetime | None = None) -> RunStatus:
    """The status of a run, read anew."""
    return RunReader(path).read(now)


class RunReader:
    """Reads a run again and again, each line of its log once.

    Guarantee: `read` equals `read_run` at the same moment, however the log was written in between.
    """

    def __init__(self, path: Path) -> None:
        self._directory, plan = RunDirectory.open(path, plan_at)
        kind = kind_of_plan(plan)
        self._kind, self._outline = kind.name, kind.outline(plan)
        self._tail = EventTail(self._directory.events)
        self._story = Story()
        self._num_unreadable = 0

    def read(self, now: datetime | None = None) -> RunStatus:
        """How the run stands now. A directory that is gone, or no run any more, is a `CheckpointError`."""
        path = self._directory.path
        if not (path / "plan.toml").exists():
            raise CheckpointError(f"{path} is no run directory any more.", remedy="It was moved or deleted.")
        batch = self._tail.read_new()
        if batch.restarted:
            self._story, self._num_unreadable = Story(), 0
        self._num_unreadable += batch.num_unreadable
        for told in batch.told:
            self._story.hear(told)
        story = self._story
        if story.last_time is None:
            story = _story_of_result(self._directory.result)
        at = now or datetime.now(UTC)
        return _status(story, self._directory, self._kind, self._outline, at, self._num_unreadable)


def _status(
    story: Story, directory: RunDirectory, kind: str, outline: Outline, now: datetime, num_unreadable: int
) -> RunStatus:
    since = None if story.last_time is None else max(0.0, (now - story.last_time).total_seconds())
    state = story.state(_age(directory, now) if since is None else since, outline)
    num_rounds = outline.num_steps if story.num_rounds is None else story.num_rounds
    pace = statistics.median(story.seconds) if story.seconds else None
    going = state in {RunState.STARTING, RunState.RUNNING, RunState.WAITING}
    evaluated = [story.history[number] for number in sorted(story.history)]
    return RunStatus(
        directory=directory.path,
        kind=kind,
        unit=outline.unit,
        data=outline.data,
        model=outline.model,
        state=state,
        reason=story.reason(state),
        engine=story.engine,
        term=story.term,
        round=story.round,
        num_rounds=num_rounds,
        num_failed=len(story.failed),
        seconds_per_round=pace,
        seconds_left=max(0, num_rounds - story.round) * pace if going and pace is not None else None,
        seconds_since_event=since,
        history=tuple((found.round, found.metrics) for found in evaluated),
        difference_to_fedavg=evaluated[-1].difference_to_fedavg if evaluated else None,
        spending=_spending(directory.privacy),
        sites=tuple(
            SiteStatus(name, story.site_state(name), site.num_rounds, site.num_misses, site.num_refused, site.trouble)
            for name, site in story.sites.items()
        ),
        recent=tuple(story.recent),
        num_notable=story.num_notable,
        num_unreadable=num_unreadable,
    )


def _story_of_result(path: Path) -> Story:
    """Of a run without a log: how it ended, if it did."""
    story, result = Story(), _read_json(path)
    done = result.get("rounds", result.get("stages_done"))
    if isinstance(done, int) and isinstance(result.get("finished"), bool):
        story.round = done
        story.ended = RunEnded(story.round, result["finished"], "")
        metrics = result.get("metrics")
        if isinstance(metrics, dict) and all(isinstance(value, int | float) for value in metrics.values()):
            story.history = {story.round: Evaluated(story.round, metrics, result.get("final_difference_to_fedavg"))}
    return story


def _spending(path: Path) -> tuple[Spending, ...]:
    """Nothing if there is no such file, or no noise."""
    privacy = _read_json(path).get("privacy")
    if privacy is None:
        return ()
    try:
        return tuple(
            Spending(privacy["status"], privacy["unit"], row["observer"], float(row["epsilon"]), float(row["delta"]))
            for row in privacy["rows"]
        )
    except (TypeError, KeyError, ValueError):  # of another version
        return ()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(path.read_bytes(), parse_constant=refuse_constant)
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _age(directory: RunDirectory, now: datetime) -> float:
    """Of a run that has told nothing yet."""
    made = datetime.fromtimestamp((directory.path / "plan.toml").stat().st_mtime, UTC)
    return max(0.0, (now - made).total_seconds())
