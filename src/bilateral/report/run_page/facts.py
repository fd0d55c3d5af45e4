"""What a run's directory holds, gathered for its page.

Nothing of the run is needed but its files: a page can be made of a run that goes on, or of one that somebody sent.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bilateral.audit.auditor import AuditResult, stored_result
from bilateral.documents import parse_json
from bilateral.engine.event_tail import EventTail, Told
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
)
from bilateral.engine.kind import Plan, kind_of_plan
from bilateral.engine.run_directory import RunDirectory, plan_at
from bilateral.engine.run_status import RunStatus, read_run
from bilateral.errors import CheckpointError

_AGAIN: Final = (RoundDone, StageDone, RoundFailed, Evaluated)


@dataclass(frozen=True)
class Step:
    """A round that is in the model, or a part of a heterogeneous run."""

    number: int
    seconds: float
    sites: tuple[str, ...]
    megabytes_up: float
    megabytes_down: float


@dataclass(frozen=True)
class Mark:
    """Something that happened to a site, or (site "") to the run."""

    number: int
    site: str
    what: str
    reason: str


@dataclass(frozen=True)
class RunFacts:
    """All that a page says of a run."""

    directory: Path
    plan: Plan
    settings: Mapping[str, Any]
    status: RunStatus
    result: Mapping[str, Any]
    """`result.json`; empty while a run goes on."""
    guarantee: Mapping[str, Any]
    privacy: Mapping[str, Any] | None
    rows: Sequence[Mapping[str, float]]
    """`metrics.csv`: the numbers of a row, by column."""
    steps: Sequence[Step]
    marks: Sequence[Mark]
    began: datetime | None
    ended: datetime | None
    audit: AuditResult | None = None
    audit_pictures: Sequence[Path] = ()
    audit_note: str = ""
    """Why an audit that was named is not of this run."""

    @property
    def kind(self) -> str:
        return self.status.kind

    @property
    def digest(self) -> str:
        return self.plan.digest()

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.status.sites)


def facts_of(path: Path, audit: Path | None = None) -> RunFacts:
    """Read a run's directory, and an audit's if one is named or lies in the run's (`audit`)."""
    directory, plan = RunDirectory.open(path, plan_at)
    stored = _json(directory.privacy)
    result = _json(directory.result)
    story = _story(directory.events)
    audited = audit if audit is not None else path / "audit"
    found, note = _audit_of(plan, audited, named=audit is not None)
    guarantee = stored.get("guarantee") or result.get("guarantee") or {}
    return RunFacts(
        directory=path,
        plan=plan,
        settings=parse_json(plan.model_dump_json().encode()),
        status=read_run(path),
        result=result,
        guarantee=guarantee if isinstance(guarantee, dict) else {},
        privacy=stored.get("privacy"),
        rows=tuple(_rows(directory.metrics)),
        steps=tuple(_steps(story)),
        marks=tuple(_marks(story)),
        began=story[0].time if story else None,
        ended=story[-1].time if story else None,
        audit=found,
        audit_pictures=tuple(sorted(audited.glob("pictures/*.png"))),
        audit_note=note,
    )


def _audit_of(plan: Plan, path: Path, *, named: bool) -> tuple[AuditResult | None, str]:
    """The stored audit there, if it is of this plan."""
    file = path / "audit.json" if path.is_dir() else path
    if not file.exists():
        if named:
            raise CheckpointError(f"There is no audit at {path}.", remedy="Name the folder of `bilateral audit`.")
        return None, ""
    result = stored_result(file)
    of = kind_of_plan(plan).parse(dict(result.plan), str(file))
    if of.digest() == plan.digest():
        return result, ""
    return result, "This audit is of another plan: its protection, data, network or seed differ from this run's."


def _story(path: Path) -> tuple[Told, ...]:
    """The events, without the rounds that a restart from a checkpoint did again. Lines that are none are left out."""
    kept: list[Told] = []
    for told in EventTail(path).read_new().told:
        if isinstance(told.event, RunStarted):
            after = told.event.round
            kept = [one for one in kept if not (isinstance(one.event, _AGAIN) and one.event.round > after)]
        kept.append(told)
    return tuple(kept)


def _steps(story: Sequence[Told]) -> Iterator[Step]:
    for told in story:
        match told.event:
            case RoundDone() as done:
                yield Step(done.round, done.seconds, tuple(done.contributors), done.megabytes_up, done.megabytes_down)
            case StageDone() as part:
                yield Step(part.round, part.seconds, tuple(part.sites), part.megabytes, 0.0)


def _marks(story: Sequence[Told]) -> Iterator[Mark]:
    for told in story:
        match told.event:
            case SiteMissed(site=site, round=number, stage=stage, reason=reason):
                yield Mark(number, site, "missed", f"{stage}: {reason}")
            case MessageRefused(site=site, round=number, reason=reason):
                yield Mark(number, site, "refused", reason)
            case SiteReturned(site=site, round=number):
                yield Mark(number, site, "back", "")
            case RoundFailed(round=number, reason=reason):
                yield Mark(number, "", "failed", reason)
            case RunStarted(round=number, term=term) if term:
                yield Mark(number, "", "restarted", f"term {term}")
            case RunEnded(round=number, finished=False, reason=reason):
                yield Mark(number, "", "stopped", reason)


def _rows(path: Path) -> Iterator[dict[str, float]]:
    if not path.exists():
        return
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield {name: number for name, text in row.items() if (number := _number(text)) is not None}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not valid JSON: {error}.", remedy="Delete it; the page does without."
        ) from error
    return value if isinstance(value, dict) else {}
