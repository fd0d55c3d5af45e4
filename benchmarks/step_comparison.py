"""From runs of the training step to rows, and the rows as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from comparison import number, print_wide, range_of, ratios, spread
from step_systems import StepCase, StepMeasurement
from systems import OURS

StepRuns = Mapping[str, Sequence[StepMeasurement | None]]
"""For every system one entry a pass; None where it was skipped or failed."""


def step_rows(case: StepCase, runs: StepRuns) -> list[dict[str, Any]]:
    """A row a system. A ratio is peer over ours, of the passes in which both were measured, so above 1 we win."""
    named = {"model": case.model, "loss": case.loss, "batch_size": case.batch_size}
    own = runs.get(OURS, ())
    return [
        {**named, "system": name, **_figures(taken), **ratios(taken, own, _seconds, _megabytes)}
        for name, taken in runs.items()
        if any(run is not None for run in taken)
    ]


def _figures(taken: Sequence[StepMeasurement | None]) -> dict[str, Any]:
    runs = [run for run in taken if run is not None]
    summed = [run.relative_error_summed for run in runs if run.relative_error_summed is not None]
    memory = [run.peak_memory_gigabytes for run in runs if run.peak_memory_gigabytes is not None]
    return {
        "parties": runs[0].parties,
        "passes": len(runs),
        **spread("seconds", [run.seconds for run in runs]),
        "megabytes": statistics.median(run.megabytes for run in runs),
        "rounds": runs[0].rounds,
        "relative_error": max(run.relative_error for run in runs),
        "relative_error_summed": max(summed, default=None),
        "peak_memory_gigabytes": max(memory, default=None),
    }


def _seconds(run: StepMeasurement) -> float:
    return run.seconds


def _megabytes(run: StepMeasurement) -> float:
    return run.megabytes


def print_steps(rows: Sequence[Mapping[str, Any]]) -> None:
    """What a reader wants to see; everything else is in --json."""
    table = Table(box=None, header_style="bold")
    for column in ("model", "loss", "batch", "system"):
        table.add_column(column, no_wrap=True)
    columns = ("parties", "s", "p10-p90", "MB", "rounds", "error", "error, summed", "s ratio", "p10-p90", "MB ratio")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["model"],
            row["loss"],
            str(row["batch_size"]),
            row["system"],
            str(row["parties"]),
            number(row["seconds"]),
            range_of(row, "seconds"),
            number(row["megabytes"]),
            "" if row["rounds"] is None else str(row["rounds"]),
            _error(row["relative_error"]),
            _error(row["relative_error_summed"]),
            number(row["seconds_ratio"]),
            range_of(row, "seconds_ratio"),
            number(row["megabytes_ratio"]),
        )
    print_wide(table, "s, MB: a step of the whole batch, all parties and phases.")


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
