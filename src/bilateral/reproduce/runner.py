"""Does what is left of a table, row by row, and says what was found.

    outcome = reproduce(table_named("p0-i"), output=Path("out"))

Formal guarantee (tests/reproduce/test_runner.py): a process that is killed in a row loses that row and no other.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bilateral.arguments import checked
from bilateral.reproduce.store import Done, Store
from bilateral.reproduce.tables import Around, Design, Finding, Found, Measured, Row, Scale, Table

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Outcome:
    """A table that is done, or as far as it is."""

    table: Table
    scale: Scale
    design: Design
    found: Found
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    """Of each row that is done."""

    @property
    def finished(self) -> bool:
        return len(self.seconds) == len(self.design.rows)

    def as_dict(self) -> dict[str, Any]:
        """All that pages and tables are made of; pictures are files beside it."""
        return {
            "table": self.table.name,
            "paper": self.table.paper,
            "title": self.table.title,
            "scale": self.scale,
            "finished": self.finished,
            "seconds": round(sum(self.seconds.values()), 1),
            "rows": [{"row": name, "seconds": round(seconds, 1)} for name, seconds in self.seconds.items()],
            "cells": self._cells(),
            "findings": [asdict(one) for one in self.findings],
            "differs": [asdict(one) for one in self.design.differs],
            "notes": list(self.design.notes),
            "missing": list(self.design.missing),
        }

    def _cells(self) -> list[dict[str, Any]]:
        return [
            {
                "dataset": cell.figure.dataset,
                "model": cell.figure.model,
                "method": cell.figure.method,
                "setting": cell.figure.setting,
                "metric": cell.figure.metric,
                "paper": cell.figure.value,
                "paper_id": cell.figure.id if cell.figure.value is not None else "",
                "ours": _rounded(self.found.ours(cell)),
                "spread": _rounded(self.found.spread(cell)),
                "seeds": len(self.found.each(cell.row, cell.key)),
                "word": self.found.word(cell),
            }
            for cell in self.found.cells
            if cell.figure.value is not None or self.found.ours(cell) is not None or not self.finished
        ]


@checked
def reproduce(
    table: Table,
    *,
    output: Path,
    scale: Scale = "quick",
    data_dir: Path | None = None,
    on_progress: Progress = lambda _done, _total, _note: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Do the rows that are not there yet; those of the same settings are taken from `output`."""
    design = table.design(scale, data_dir)
    store = Store(output)
    done: dict[str, Done] = {}
    with store.held():
        for number, row in enumerate(design.rows):
            on_progress(number, len(design.rows), row.name)
            found = store.get(row)
            if found is None:
                if should_stop():
                    break
                found = _do(row, store, data_dir, partial(_tell, on_progress, number, len(design.rows)))
            done[row.name] = found
        on_progress(len(done), len(design.rows), "done")
    return outcome_of(table, scale, design, done)


def _tell(on_progress: Progress, done: int, total: int, text: str) -> None:
    on_progress(done, total, text)


def outcome_of(table: Table, scale: Scale, design: Design, done: Mapping[str, Done]) -> Outcome:
    """What the rows that are there say."""
    measured: dict[str, Measured] = {name: one.measured for name, one in done.items()}
    found = Found(design.cells, measured)
    findings = tuple(judge(found) for judge in design.judges)
    return Outcome(table, scale, design, found, findings, {name: one.seconds for name, one in done.items()})


def _do(row: Row, store: Store, data_dir: Path | None, note: Callable[[str], None]) -> Done:
    store.work.mkdir(exist_ok=True)
    started = time.perf_counter()
    measured = row.task.run(Around(data_dir, store.work, lambda text: note(f"{row.name}: {text}")))
    seconds = time.perf_counter() - started
    store.put(row, measured, seconds)
    return Done(measured, seconds)


@dataclass(frozen=True)
class Estimate:
    """How long what is left will take, found by `pilot_seconds` of pilots."""

    seconds: float
    pilot_seconds: float
    rows_left: int


def estimate(
    table: Table,
    *,
    output: Path,
    scale: Scale,
    data_dir: Path | None = None,
    on_progress: Progress = lambda _done, _total, _note: None,
) -> Estimate:
    """Measure a small piece of every kind of row that is left. Rows whose pilots are alike share one."""
    design, store = table.design(scale, data_dir), Store(output)
    left = [row for row in design.rows if not store.path(row).exists()]
    known: dict[str, float] = {}
    total, began = 0.0, time.perf_counter()
    for number, row in enumerate(left):
        on_progress(number, len(left), f"pilot of {row.name}")
        task, times = row.task.pilot()
        pilot = Row(row.name, task)
        if pilot.digest not in known:
            started = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix="bilateral-pilot-") as folder:
                task.run(Around(data_dir, Path(folder)))
            known[pilot.digest] = time.perf_counter() - started
        total += times * known[pilot.digest]
    on_progress(len(left), len(left), "pilots done")
    return Estimate(total, time.perf_counter() - began, len(left))


def _rounded(value: float | None) -> float | None:
    """Seven digits: more are noise, and would be a diff of stored results."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.7g}")
