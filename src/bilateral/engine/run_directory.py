"""A run's directory: it outlives the processes that write to it.

`plan.toml`, `metrics.csv` (a row an evaluation), `events.jsonl` (what happened, as it happens), `privacy.json` (what is
guaranteed and spent), `checkpoint.safetensors` and, when a run ends, `result.json`.
"""

from __future__ import annotations

import csv
import fcntl
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from bilateral.engine.events import Event, write_event
from bilateral.engine.kind import P, Plan, kind_of_plan, read_any
from bilateral.errors import CheckpointError, DirectoryInUseError, PlanError

DEFAULT_PARENT = Path("bilateral-runs")


class RunDirectory:
    """Files of one run. Never overwrites another run's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def privacy(self) -> Path:
        return self.path / "privacy.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @staticmethod
    def create(path: Path | None, plan: Plan) -> RunDirectory:
        """A new directory with the plan in it; `path` None picks a dated name."""
        kind = kind_of_plan(plan)
        path = path or new_dated_folder(DEFAULT_PARENT, kind.outline(plan).title)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise PlanError(
                f"{path} already exists and is not empty.",
                remedy="Choose another --output, or go on with a stopped run by --resume.",
            )
        path.mkdir(parents=True, exist_ok=True)
        directory = RunDirectory(path)
        partial = path / "plan.partial"
        partial.write_text(kind.dump(plan), encoding="utf-8")
        partial.replace(path / "plan.toml")
        return directory

    @staticmethod
    def create_or_open(path: Path, plan: Plan) -> RunDirectory:
        """The directory of this plan's run: a new one, or one that an earlier term left behind."""
        if not (path / "plan.toml").exists():
            return RunDirectory.create(path, plan)
        directory, found = RunDirectory.open(path, plan_at)
        if found.digest() != plan.digest():
            raise CheckpointError(f"{path} is the directory of another plan.", remedy="Choose another --output.")
        return directory

    @staticmethod
    def open(path: Path, read: Callable[[Path], P]) -> tuple[RunDirectory, P]:
        """An existing run, and its plan as `read` reads it: `load_plan` of a kind, or `plan_at` for any."""
        if not (path / "plan.toml").exists():
            raise CheckpointError(f"{path} is not a run directory (no plan.toml).", remedy="Name a run's --output.")
        return RunDirectory(path), read(path / "plan.toml")

    @contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[None]:
        """Hold the directory: a second process that would write to it is refused. A kill releases it.

        `patience`: seconds to wait for a process that is about to end.
        """
        deadline = time.monotonic() + patience
        with (self.path / ".lock").open("w", encoding="utf-8") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= deadline:
                        raise DirectoryInUseError(
                            f"{self.path} is in use by another process.",
                            remedy="Wait until that run has ended, or stop it.",
                        ) from error
                    time.sleep(0.2)
            yield

    @property
    def stop_requested(self) -> bool:
        """Somebody asked the run to stop after the round at hand (`request_stop`)."""
        return (self.path / "stop").exists()

    def request_stop(self) -> None:
        """Ask whoever writes to this directory to stop after the round at hand."""
        (self.path / "stop").touch()

    def clear_stop(self) -> None:
        (self.path / "stop").unlink(missing_ok=True)

    def tell(self, event: Event) -> None:
        """Append to `events.jsonl`."""
        write_event(self.events, event)

    def write_privacy(self, guarantee: dict[str, Any], privacy: dict[str, Any] | None) -> None:
        """What the run hides from whom, and what it spends."""
        write_json(self.privacy, {"guarantee": guarantee, "privacy": privacy})

    def write_metrics(self, rows: Sequence[dict[str, Any]]) -> None:
        """All rows so far, replacing the file atomically."""
        if not rows:
            return
        columns = list(dict.fromkeys(key for row in rows for key in row))
        partial = self.metrics.with_suffix(".partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self.metrics)  # noqa: PTH105 (the atomic one)

    def note_of_site(self, site: str, row: dict[str, Any]) -> None:
        """Add to the site's own file, which stands for a file at the site; a round that is done again counts last."""
        folder = self.path / "sites"
        folder.mkdir(exist_ok=True)
        file = folder / f"{site}.csv"
        is_new = not file.exists()
        with file.open("a", newline="", encoding="utf-8") as lines:
            writer = csv.DictWriter(lines, list(row))
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def write_result(self, result: dict[str, Any]) -> None:
        write_json(self.result, result)


def plan_at(path: Path) -> Plan:
    """A plan of whichever kind."""
    plan: Plan = read_any(path)[1]
    return plan


def write_json(path: Path, value: dict[str, Any], *, indent: int | None = 2) -> None:
    """Replace a file atomically: an interruption leaves the old one or the new one, whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=indent, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(partial, path)  # noqa: PTH105 (the atomic one)


def new_dated_folder(parent: Path, title: str) -> Path:
    """A folder of nobody else's, named by the time and by what is in it: two processes never get the same."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{title.replace(':', '.').replace('/', '.')}"
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("counting ends nowhere")
