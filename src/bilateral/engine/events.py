"""What happened in a run, as lines of JSON (`events.jsonl`): for the operator, for `bilateral watch`, and for later.

Every line has a `time` (UTC), an `event` and the fields of its class below. Rounds are counted from 1 here; 0 is the
time before the first. A line that a kill cut short is skipped by readers, and costs no other line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from bilateral.documents import parse_json

MAX_REASON: Final = 500
"""So much of what a site says of a failure is told on; it may have written much."""


@dataclass(frozen=True)
class Event:
    """Base of everything that can be told about a run."""

    event: ClassVar[str]


@dataclass(frozen=True)
class RunStarted(Event):
    """A run begins, or goes on after `round` rounds. `term` counts how often it was (re)started, from 0."""

    event: ClassVar[str] = "run_started"
    engine: str
    term: int
    round: int
    num_rounds: int
    sites: tuple[str, ...]
    plan_digest: str


@dataclass(frozen=True)
class RecoveryChecked(Event):
    """Before the rounds of a term: the gradient that perturbation recovers is plain autograd's, up to `error`."""

    event: ClassVar[str] = "recovery_checked"
    error: float
    parameter: str
    dtype: str
    seconds: float


@dataclass(frozen=True)
class RoundDone(Event):
    """A round changed the model. `contributors`: whose uploads are in it.

    `gradient_digest` identifies the gradient that the server recovered: equal on two engines, equal bit for bit.
    """

    event: ClassVar[str] = "round_done"
    round: int
    seconds: float
    contributors: tuple[str, ...]
    megabytes_up: float
    megabytes_down: float
    gradient_digest: str = ""


@dataclass(frozen=True)
class StageDone(Event):
    """`sites` did their part of a heterogeneous run: `round` parts of all are done.

    `megabytes`: what all parties sent for secret-shared prediction meanwhile.
    """

    event: ClassVar[str] = "stage_done"
    round: int
    seconds: float
    sites: tuple[str, ...]
    megabytes: float = 0.0


@dataclass(frozen=True)
class RoundFailed(Event):
    """A round that had too few sites; the model is as it was before."""

    event: ClassVar[str] = "round_failed"
    round: int
    reason: str


@dataclass(frozen=True)
class Evaluated(Event):
    """The model was measured after `round` rounds."""

    event: ClassVar[str] = "evaluated"
    round: int
    metrics: dict[str, float]
    difference_to_fedavg: float | None = None


@dataclass(frozen=True)
class SiteTold(Event):
    """A site told what it found of the model after `round` rounds, since the plan asks for it."""

    event: ClassVar[str] = "site_told"
    site: str
    round: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class SiteMissed(Event):
    """A site gave no answer at a stage of a round (dead, too slow, cut off); it is out of the round."""

    event: ClassVar[str] = "site_missed"
    site: str
    round: int
    stage: str
    reason: str


@dataclass(frozen=True)
class SiteReturned(Event):
    """A site that was missed answers again."""

    event: ClassVar[str] = "site_returned"
    site: str
    round: int


@dataclass(frozen=True)
class MessageRefused(Event):
    """A site sent something that the protocol does not allow, and is out of the round."""

    event: ClassVar[str] = "message_refused"
    site: str
    round: int
    reason: str


@dataclass(frozen=True)
class Waiting(Event):
    """Too few sites are there for a round."""

    event: ClassVar[str] = "waiting"
    round: int
    present: tuple[str, ...]
    needed: int


@dataclass(frozen=True)
class RunEnded(Event):
    """The run is finished, or stops after `round` rounds with a checkpoint to go on from."""

    event: ClassVar[str] = "run_ended"
    round: int
    finished: bool
    reason: str


def write_event(path: Path, event: Event) -> None:
    """Append one line; after a line that a kill cut short, on a line of its own."""
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event.event, **asdict(event)}
    data = (json.dumps(line, allow_nan=False) + "\n").encode()
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        end = os.lseek(file, 0, os.SEEK_END)
        if end and os.pread(file, 1, end - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line, oldest first; nothing if there is no file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for raw in file:
            try:
                line = parse_json(raw)
            except ValueError:  # cut short by a kill
                continue
            if isinstance(line, dict) and "event" in line and "time" in line:
                yield line
