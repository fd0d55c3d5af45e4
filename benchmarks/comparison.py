"""From runs to rows: medians, spreads, and ratios taken pass by pass."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from bilateral.bench.clock import ratio_row
from rich.console import Console
from rich.table import Table

from systems import OURS, Case, Measurement

_WIDEST: Final = 1000

Runs = Mapping[str, Sequence[Measurement | None]]
"""For every system one entry a pass; None where it was skipped or failed."""


def rows_of(case: Case, runs: Runs) -> list[dict[str, Any]]:
    """A row a system. A ratio is peer over ours, of the passes in which both were measured, so above 1 we win."""
    return [
        {"model": case.model, "batch_size": case.batch_size, "system": name, **_figures(taken), **_ratios(taken, runs)}
        for name, taken in runs.items()
        if any(run is not None for run in taken)
    ]


def _figures(taken: Sequence[Measurement | None]) -> dict[str, Any]:
    runs = [run for run in taken if run is not None]
    seconds = [run.seconds_per_prediction for run in runs]
    cuts = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
    memory = [run.peak_memory_gigabytes for run in runs if run.peak_memory_gigabytes is not None]
    return {
        "parties": runs[0].parties,
        "passes": len(runs),
        "seconds_per_prediction": statistics.median(seconds),
        "seconds_p10": cuts[0],
        "seconds_p90": cuts[-1],
        "megabytes_per_prediction": statistics.median(run.megabytes_per_prediction for run in runs),
        "rounds": runs[0].rounds,
        "max_logit_error": max(run.max_logit_error for run in runs),
        "peak_memory_gigabytes": max(memory, default=None),
    }


def _ratios(taken: Sequence[Measurement | None], runs: Runs) -> dict[str, float | None]:
    names = ("seconds_ratio", "seconds_ratio_p10", "seconds_ratio_p90", "megabytes_ratio")
    pairs = [(peer, own) for peer, own in zip(taken, runs.get(OURS, ()), strict=False) if peer and own]
    if not pairs:
        return dict.fromkeys(names)
    seconds = ratio_row([p.seconds_per_prediction for p, _ in pairs], [o.seconds_per_prediction for _, o in pairs])
    megabytes = statistics.median(p.megabytes_per_prediction / o.megabytes_per_prediction for p, o in pairs)
    return dict(zip(names, (*seconds.values(), megabytes), strict=True))


def machine(threads: int) -> dict[str, Any]:
    """What decides how far the figures carry: the processor, its vector units as torch sees them, and the load."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.machine(),
        "vector_units": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads_a_party": threads,
        "load_average": round(os.getloadavg()[0], 2),
    }


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table as wide as it is: a narrow terminal wraps its lines, and loses no figure."""
    table = _table(rows)
    needed = Console(width=_WIDEST).measure(table).maximum
    out = Console(highlight=False, width=max(needed, Console().width), soft_wrap=True)
    out.print(table)
    out.print("s, MB: a prediction, all parties and phases. Ratios are peer / ours, pass by pass; above 1 we win.")


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What a reader wants to see; everything else is in --json."""
    table = Table(box=None, header_style="bold")
    for column in ("model", "batch", "system"):
        table.add_column(column, no_wrap=True)
    for column in ("parties", "s", "p10-p90", "MB", "rounds", "error", "s ratio", "p10-p90", "MB ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["model"],
            str(row["batch_size"]),
            row["system"],
            str(row["parties"]),
            _number(row["seconds_per_prediction"]),
            f"{_number(row['seconds_p10'])}-{_number(row['seconds_p90'])}",
            _number(row["megabytes_per_prediction"]),
            "" if row["rounds"] is None else str(row["rounds"]),
            f"{row['max_logit_error']:.1e}",
            _number(row["seconds_ratio"]),
            "" if row["seconds_ratio"] is None else _spread(row),
            _number(row["megabytes_ratio"]),
        )
    return table


def _spread(row: Mapping[str, Any]) -> str:
    return f"{_number(row['seconds_ratio_p10'])}-{_number(row['seconds_ratio_p90'])}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
