"""Runs of kinds that have no command of their own: `bilateral run PLAN` and `bilateral run --resume DIRECTORY`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from bilateral.cli.console import ProgressBar, err, interruptible, out, print_json
from bilateral.engine.here import run_here
from bilateral.engine.kind import RunKind


def run_any_kind(
    kind: RunKind[Any],
    plan: Any,
    *,
    output: Path | None,
    resume: bool,
    data_dir: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    """In this process, with the kind's own words."""
    outline = kind.outline(plan)
    with (
        ProgressBar(f"{outline.data} / {outline.model}", quiet=quiet) as bar,
        interruptible(f"Stopping after this {outline.unit}; once more to stop at once.") as interrupted,
    ):
        result = run_here(
            kind,
            plan,
            output=output,
            data_dir=data_dir,
            resume=resume,
            on_progress=lambda at: bar.update(at.num_done, at.num_steps, str(at)),
            should_stop=lambda: bool(interrupted),
        )
    values = result.as_dict()
    if json:
        print_json(values)
    else:
        for name, value in values.items():
            out.print(f"[bold]{escape(str(name))}[/]  {escape(str(value))}")
    if not result.finished:
        again = ["bilateral", "run", "--resume", str(result.output)]
        again += ["--data-dir", str(data_dir)] if data_dir is not None else []
        err.print(f"Stopped. Go on with: {escape(shlex.join(again))}", soft_wrap=True)
        raise typer.Exit(130)
