"""Everything the commands print: progress on standard error, results on standard output."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON object on standard output, whatever the terminal is."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextmanager
def interruptible(said: str) -> Iterator[list[int]]:
    """The first Ctrl-C says `said` and fills the list, for the work to stop when it can; the second stops at once."""
    caught: list[int] = []

    def handle(number: int, frame: object) -> None:  # noqa: ARG001
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        err.print(said)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, previous)


class ProgressBar:
    """A bar on a terminal, a line every few seconds elsewhere, nothing if quiet."""

    SECONDS_BETWEEN_LINES = 5.0

    def __init__(self, title: str, *, quiet: bool) -> None:
        self._title = title
        self._quiet = quiet
        self._bar: Progress | None = None
        self._last_line = time.monotonic()
        self._last_done = -1
        if not quiet and err.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=err,
            )
            self._task = self._bar.add_task(title, total=None, note="")

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int, note: str = "") -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, note=note)
            return
        due = time.monotonic() - self._last_line > self.SECONDS_BETWEEN_LINES
        if not self._quiet and done != self._last_done and (done == total or due):
            err.print(f"{self._title}: {done}/{total}  {note}")
            self._last_line = time.monotonic()
            self._last_done = done

    def note(self, text: str) -> None:
        """A line beside the progress, for what is worth a line."""
        if not self._quiet:
            err.print(escape(text))
