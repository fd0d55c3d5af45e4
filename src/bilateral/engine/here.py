"""A run of any kind in one process: what `bilateral run` does with a plan whose kind has no command of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bilateral.engine.kind import P, Progress, Result, RunKind, ServerAround
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.term import IN_PROCESS, Term, checkpoint_to_resume
from bilateral.version import __version__


def run_here(
    kind: RunKind[P],
    plan: P,
    *,
    output: Path | None = None,
    data_dir: Path | None = None,
    resume: bool = False,
    options: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Run as the plan says, with every party here. `resume` goes on from the checkpoint in `output`.

    A plan or data that are refused leave nothing behind.
    """
    directory = None if output is None else RunDirectory(output)
    checkpoint = checkpoint_to_resume(plan, directory) if resume else None
    term = Term(kind, plan, IN_PROCESS, directory, every=kind.checkpoint_every(plan), should_stop=should_stop)
    around = ServerAround(
        IN_PROCESS,
        __version__,
        data_dir=data_dir,
        options=options or {},
        tell=term.tell,
        keep=term.keep,
        note=lambda: on_progress(server.progress()),
        should_stop=term.stops,
    )
    server = kind.server(plan, around)
    term.on_step = on_progress
    if not resume:
        term.directory = RunDirectory.create(output, plan)
    with term.held():
        result: Result = term.drive(server, checkpoint)
    return result
