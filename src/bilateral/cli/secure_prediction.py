"""`bilateral bench secure-prediction`: its options, and its rows as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from bilateral.bench.secure_prediction import (
    AHEAD,
    ALL,
    GOAL_MEGABYTES,
    GOAL_SECONDS,
    P4,
    QUICK_REPEATS,
    SecurePrediction,
)
from bilateral.bench.three_parties import PARTIES

Row = Mapping[str, Any]


def chosen_prediction(options: Mapping[str, Any], quick: bool) -> SecurePrediction | None:
    """The options that were given, over the defaults; None if there were none."""
    given = {name: value for name, value in options.items() if value is not None}
    return SecurePrediction(**{**({"repeats": QUICK_REPEATS} if quick else {}), **given}) if given else None


def prediction_table(rows: Sequence[Row]) -> Table:
    """A line a network and batch size. The parties' rows are in --json."""
    one = rows[0]
    table = Table(
        box=None,
        header_style="bold",
        caption_justify="left",
        title_justify="left",
        title=f"One prediction, three processes, {one['threads']} thread(s) each, median of {one['repeats']}",
        caption="goal: 10 (VGG-7) and 5 (ResNet-8) times as fast as the best other system on two cores, less than half "
        "of its traffic.\nP4: as the paper reports it, on its own machine. ahead s: online, dealt before and read from "
        "disk. link s: modelled,\n20 ms a round and 100 Mbit/s. later MB: a further batch of the same session. ratio: "
        "to hardened comparisons, in turn.",
    )
    table.add_column("model", no_wrap=True)
    table.add_column("style", no_wrap=True)
    columns = (
        "batch", "s", "p10-p90", "goal", "P4", "ratio", "offline s", "online s", "ahead s", "link s", "MB", "goal",
        "P4", "online MB", "later MB", "rounds",
    )  # fmt: skip
    for column in (*columns, *(f"{party} CPU s" for party in PARTIES), "max logit error"):
        table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
    for case in dict.fromkeys(_case(row) for row in rows):
        found = {(row["phase"], row["party"]): row for row in rows if _case(row) == case}
        table.add_row(*_line(*case, found))
    return table


def _case(row: Row) -> tuple[str, str, int]:
    return row["model"], row["style"], row["batch_size"]


def _line(model: str, style: str, batch_size: int, found: Mapping[tuple[str, str], Row]) -> list[str]:
    total, paper, ratio = found["total", ALL], P4.get(model), found["total", ALL]["ratio_to_hardened"]
    return [
        model,
        style,
        str(batch_size),
        _short(total["seconds_per_prediction"]),
        f"{_short(total['seconds_p10'])}-{_short(total['seconds_p90'])}",
        _short(GOAL_SECONDS.get((model, batch_size))),
        _short(paper.seconds if paper else None),
        f"{ratio['median']:.2f} ({ratio['p10']:.2f}-{ratio['p90']:.2f})" if ratio else "",
        _short(found["offline", ALL]["seconds_per_prediction"]),
        _short(found["online", ALL]["seconds_per_prediction"]),
        _short(found[AHEAD, ALL]["seconds_per_prediction"]),
        _short(total["modelled_seconds_on_a_slow_link"]),
        _short(total["megabytes_per_prediction"]),
        _short(GOAL_MEGABYTES.get((model, batch_size))),
        _short(paper.megabytes if paper else None),
        _short(found["online", ALL]["megabytes_per_prediction"]),
        _short(total["megabytes_per_prediction_later_batches"]),
        str(total["rounds"]),
        *(_short(found["total", party]["seconds_per_prediction"]) for party in PARTIES),
        f"{total['max_logit_error']:.1e}",
    ]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
