"""`bilateral watch`."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from bilateral.cli.console import out, print_json
from bilateral.cli.options import Json
from bilateral.cli.watch_view import View
from bilateral.engine.run_status import RunReader, RunStatus
from bilateral.engine.run_story import RunState

SECONDS_BETWEEN_READS = 1.0
SECONDS_BETWEEN_LINES = 5.0


def watch_command(
    directory: Annotated[Path, typer.Argument(help="Directory of a run.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="Print one picture and stop.")] = False,
    json: Json = False,
) -> None:
    """Watch a run: progress, metrics, which site is in, which was missed and why.

    Reads the files of the run's directory only, every second; it may run anywhere they can be seen, and it never
    disturbs the run. Ends when the run is finished, or on Ctrl-C. A run that was stopped is watched on: it may be
    resumed. Without a terminal it prints lines.

    Examples:

      bilateral watch bilateral-runs/20250101-120000-digits-mlp-5

      bilateral watch out --once

      bilateral watch out --json | jq '.sites[] | select(.state == "missed")'
    """
    reader = RunReader(directory)
    if json:
        print_json(reader.read().as_dict())
    elif once:
        _print_whole(reader.read())
    elif out.is_terminal and not out.is_dumb_terminal:
        _watch_on_screen(reader)
    else:
        _watch_in_lines(reader)


def _print_whole(status: RunStatus) -> None:
    out.print(View.of(out, whole=True).picture(status), soft_wrap=False)


def _watch_on_screen(reader: RunReader) -> None:
    """On the terminal's other screen, as `top` does; the last picture stays on the usual one."""
    status = reader.read()
    with suppress(KeyboardInterrupt), Live(console=out, screen=True, auto_refresh=False) as live:
        while status.state is not RunState.FINISHED:
            live.update(View.of(out, whole=False).picture(status), refresh=True)
            time.sleep(SECONDS_BETWEEN_READS)
            status = reader.read()
    _print_whole(status)


def _watch_in_lines(reader: RunReader) -> None:
    """Every notable event, and a summary when the state changes or every few seconds of progress."""
    lines = _Lines()
    with suppress(KeyboardInterrupt):
        status = reader.read()
        while status.state is not RunState.FINISHED:
            lines.print_new(status)
            time.sleep(SECONDS_BETWEEN_READS)
            status = reader.read()
        lines.print_events(status)
        _print_whole(status)


class _Lines:
    """What was printed already."""

    def __init__(self) -> None:
        self._view = View.of(out, whole=True)
        self._num_notable = 0
        self._told: tuple[RunState, int] | None = None
        self._last_summary = 0.0

    def print_new(self, status: RunStatus) -> None:
        self.print_events(status)
        now = (status.state, status.round)
        changed = self._told is None or self._told[0] is not status.state
        due = now != self._told and time.monotonic() - self._last_summary > SECONDS_BETWEEN_LINES
        if changed or due:
            out.print(self._view.summary(status))
            self._told, self._last_summary = now, time.monotonic()

    def print_events(self, status: RunStatus) -> None:
        if status.num_notable < self._num_notable:  # the log was begun anew
            self._num_notable = 0
        num_new = min(status.num_notable - self._num_notable, len(status.recent))
        for told in status.recent[len(status.recent) - num_new :]:
            out.print(self._view.event(told, status.unit))
        self._num_notable = status.num_notable
