"""`bilateral bench sealed-step`: its options, and its rows as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from bilateral.bench.gate_clock import GATES
from bilateral.bench.sealed_step import AHEAD, ALL, MESSAGES, PIPELINED, QUICK_REPEATS, TOTAL, SealedStep
from bilateral.bench.step_party import PHASES
from bilateral.bench.step_server import PARTIES

Row = Mapping[str, Any]
Found = Mapping[tuple[str, str], Row]


def chosen_steps(options: Mapping[str, Any], quick: bool) -> SealedStep | None:
    """The options that were given, over the defaults; None if there were none."""
    given = {name: value for name, value in options.items() if value is not None}
    return SealedStep(**{**({"repeats": QUICK_REPEATS} if quick else {}), **given}) if given else None


def step_tables(rows: Sequence[Row]) -> tuple[Table, Table]:
    """A line a case; then a line a case, phase and party, with its time by gate. More is in --json."""
    one = rows[0]
    costs = _table(
        f"One training step, three processes, {one['threads']} thread(s) each, median of {one['repeats']}",
        ("s", "p10-p90", *(f"{phase} s" for phase in (*PHASES, AHEAD, PIPELINED)), "plain s", "ratio", "p10-p90", "MB",
         *(f"{phase} MB" for phase in PHASES), "relayed MB", "rounds", *(f"{party} CPU s" for party in PARTIES),
         "relative error"),
    )  # fmt: skip
    costs.caption = (
        "ahead: without dealing. pipelined: in a row, dealing for the next meanwhile. ratio: to a plain torch float32 "
        "step, in turn.\nrelayed: what is dealt passes through the server; MB has it twice."
    )
    gates = _table("On a core, ms", (*GATES, MESSAGES), ("phase", "party"))
    for case in dict.fromkeys(_case(row) for row in rows):
        found = {(row["phase"], row["party"]): row for row in rows if _case(row) == case}
        costs.add_row(*map(str, case), *_line(found))
        for phase in PHASES:
            for party in PARTIES:
                _add_gates(gates, [*map(str, case), phase, party], found[phase, party])
    return costs, gates


def _table(title: str, columns: Sequence[str], texts: Sequence[str] = ()) -> Table:
    table = Table(box=None, header_style="bold", title=title, title_justify="left", caption_justify="left")
    for column in ("model", "loss", "batch", *texts):
        table.add_column(column, no_wrap=True)
    for column in columns:
        table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
    return table


def _case(row: Row) -> tuple[str, str, int]:
    return row["model"], row["loss"], row["batch_size"]


def _line(found: Found) -> list[str]:
    total = found[TOTAL, ALL]
    return [
        _short(total["seconds"]),
        f"{_short(total['seconds_p10'])}-{_short(total['seconds_p90'])}",
        *(_short(found[phase, ALL]["seconds"]) for phase in (*PHASES, AHEAD, PIPELINED)),
        _short(total["plain_seconds"]),
        _short(total["ratio_to_plain"]),
        f"{_short(total['ratio_to_plain_p10'])}-{_short(total['ratio_to_plain_p90'])}",
        _short(total["megabytes"]),
        *(_short(found[phase, ALL]["megabytes"]) for phase in PHASES),
        _short(total["megabytes_relayed"]),
        str(total["rounds"]),
        *(_short(found[TOTAL, party]["seconds"]) for party in PARTIES),
        f"{total['relative_error']:.1e}",
    ]


def _add_gates(table: Table, words: list[str], row: Row) -> None:
    """Nothing for a party that has no part in the phase."""
    if row["seconds"]:
        table.add_row(*words, *(_short(1e3 * row["seconds_by_gate"][gate]) for gate in (*GATES, MESSAGES)))


def _short(value: float) -> str:
    return f"{value:.3g}" if value else ""
