"""From runs to rows: medians, spreads, and ratios taken pass by pass."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from bilateral.bench.clock import ratio_row
from rich.console import Console
from rich.table import Table

from systems import OURS, Case, Measurement

_WIDEST: Final = 1000
M = TypeVar("M")

Runs = Mapping[str, Sequence[Measurement | None]]
"""For every system one entry a pass; None where it was skipped or failed."""


def rows_of(case: Case, runs: Runs) -> list[dict[str, Any]]:
    """A row a system. A ratio is peer over ours, of the passes in which both were measured, so above 1 we win."""
    return [
        {
            "model": case.model,
            "batch_size": case.batch_size,
            "system": name,
            **_figures(taken),
            **ratios(taken, runs.get(OURS, ()), _seconds, _megabytes),
        }
        for name, taken in runs.items()
        if any(run is not None for run in taken)
    ]


def _figures(taken: Sequence[Measurement | None]) -> dict[str, Any]:
    runs = [run for run in taken if run is not None]
    memory = [run.peak_memory_gigabytes for run in runs if run.peak_memory_gigabytes is not None]
    return {
        "parties": runs[0].parties,
        "passes": len(runs),
        **spread("seconds_per_prediction", [run.seconds_per_prediction for run in runs]),
        "megabytes_per_prediction": statistics.median(run.megabytes_per_prediction for run in runs),
        "rounds": runs[0].rounds,
        "max_logit_error": max(run.max_logit_error for run in runs),
        "peak_memory_gigabytes": max(memory, default=None),
    }


def _seconds(run: Measurement) -> float:
    return run.seconds_per_prediction


def _megabytes(run: Measurement) -> float:
    return run.megabytes_per_prediction


def spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """The median under its name, and the tenth and ninetieth percentiles."""
    cuts = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else [*seconds] * 9
    return {name: statistics.median(seconds), "seconds_p10": cuts[0], "seconds_p90": cuts[-1]}


def ratios(
    taken: Sequence[M | None],
    ours: Sequence[M | None],
    seconds: Callable[[M], float],
    megabytes: Callable[[M], float],
) -> dict[str, float | None]:
    """Peer over ours, of the passes in which both were measured."""
    names = ("seconds_ratio", "seconds_ratio_p10", "seconds_ratio_p90", "megabytes_ratio")
    pairs = [(peer, own) for peer, own in zip(taken, ours, strict=False) if peer is not None and own is not None]
    if not pairs:
        return dict.fromkeys(names)
    row = ratio_row([seconds(peer) for peer, _ in pairs], [seconds(own) for _, own in pairs])
    traffic = statistics.median(megabytes(peer) / megabytes(own) for peer, own in pairs)
    return dict(zip(names, (*row.values(), traffic), strict=True))


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
    print_wide(_table(rows), "s, MB: a prediction, all parties and phases.")


def print_wide(table: Table, units: str) -> None:
    """The table as wide as it is: a narrow terminal wraps its lines, and loses no figure."""
    needed = Console(width=_WIDEST).measure(table).maximum
    out = Console(highlight=False, width=max(needed, Console().width), soft_wrap=True)
    out.print(table)
    out.print(f"{units} Ratios are peer / ours, pass by pass; above 1 we win.")


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
            number(row["seconds_per_prediction"]),
            range_of(row, "seconds"),
            number(row["megabytes_per_prediction"]),
            "" if row["rounds"] is None else str(row["rounds"]),
            f"{row['max_logit_error']:.1e}",
            number(row["seconds_ratio"]),
            range_of(row, "seconds_ratio"),
            number(row["megabytes_ratio"]),
        )
    return table


def range_of(row: Mapping[str, Any], name: str) -> str:
    """From the tenth to the ninetieth percentile, or nothing where there is nothing."""
    low, high = row[f"{name}_p10"], row[f"{name}_p90"]
    return "" if low is None else f"{number(low)}-{number(high)}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
