"""What commands say alike of every kind of run; and kinds without a command of their own.

Those are `bilateral run PLAN`, `run --resume DIRECTORY` and `audit PLAN`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from bilateral.cli.console import ProgressBar, err, interruptible, out, print_json
from bilateral.engine.here import run_here
from bilateral.engine.kind import RunKind, has_own_command, read_any
from bilateral.engine.term import IN_PROCESS
from bilateral.report.run_page.page import write_run_page


def from_outside(plan: Path | None) -> tuple[RunKind[Any], Any] | None:
    """The kind and the plan of a file, if no command was written for them."""
    if plan is None or not plan.exists() or has_own_command(plan):
        return None
    return read_any(plan)


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
    page = None if result.output is None else write_run_page(result.output)
    if json:
        print_json(values)
    else:
        for name, value in values.items():
            out.print(f"[bold]{escape(str(name))}[/]  {escape(str(value))}")
        if page is not None:
            out.print(f"[bold]report[/]  {escape(str(page))}")
    if not result.finished:
        raise stopped("Stopped.", "run", result.output, data_dir=data_dir)


def stopped(
    said: str,
    command: str,
    output: Path | None,
    code: Mapping[str, str] | None = None,
    *,
    data_dir: Path | None = None,
    engine: str = IN_PROCESS,
) -> typer.Exit:
    """Tell how to go on with what was stopped. `code`: functions that its plan names, by the option that names them."""
    again = ["bilateral", command, "--resume", str(output)]
    again += [part for what, name in (code or {}).items() for part in (f"--{what}", name)]
    again += ["--data-dir", str(data_dir)] if data_dir is not None else []
    again += ["--engine", engine] if engine != IN_PROCESS else []
    err.print(f"{said} Go on with: {escape(shlex.join(again))}", soft_wrap=True)
    return typer.Exit(130)


def print_guarantee(guarantee: Mapping[str, Any]) -> None:
    """Of a result: `Guarantee.as_dict`."""
    out.print(f"\n[bold]What {guarantee['protection']} hides[/]")
    for claim in guarantee["claims"]:
        out.print(f"  from {claim['whom']}: {claim['what']}")
        out.print(f"    [dim]if {claim['assumption']}[/]")
    if not guarantee["claims"]:
        out.print("  nothing")
    if guarantee["leaks"]:
        out.print("\n[bold]What it does not hide[/] (docs/leakage-ledger.md)")
    for leak in guarantee["leaks"]:
        out.print(f"  line {leak['ledger_line']}, to {leak['whom']}: {leak['what']}")
