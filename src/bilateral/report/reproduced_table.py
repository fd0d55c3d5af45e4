"""A reproduced table, from what `Outcome.as_dict` says of it: as CSV, as text, as Markdown."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Final

Cells = Sequence[Mapping[str, Any]]
_COLUMNS: Final = (
    "dataset",
    "model",
    "method",
    "setting",
    "metric",
    "paper",
    "ours",
    "spread",
    "seeds",
    "word",
    "paper_id",
)
_HEAD: Final = (
    "data, in the paper",
    "network, in the paper",
    "method",
    "setting",
    "figure",
    "paper",
    "ours",
    "of seeds",
    "remark",
)
"""Ours may be of other data and another network: what differs is listed beside the cells."""
AGREES: Final = {True: "agrees", False: "**does not agree**", None: "no comparison"}


def as_csv(table: Mapping[str, Any]) -> str:
    """A line a figure."""
    text = StringIO()
    writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table["cells"])
    return text.getvalue()


def as_markdown(cells: Cells) -> str:
    """The cells, without columns that are empty."""
    rows = [_row(cell) for cell in cells]
    kept = [place for place in range(len(_HEAD)) if any(row[place] for row in rows)]
    lines = [[_HEAD[place] for place in kept], ["---"] * len(kept), *([row[place] for place in kept] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_text(table: Mapping[str, Any]) -> str:
    """For a terminal: figures in columns, then what they say."""
    rows = [_HEAD, *(_row(cell) for cell in table["cells"])]
    kept = [place for place in range(len(_HEAD)) if any(row[place] for row in rows[1:])]
    widths = [max(len(row[place]) for row in rows) for place in kept]
    lines = [
        "  ".join(row[place].ljust(width) for place, width in zip(kept, widths, strict=True)).rstrip() for row in rows
    ]
    said = [f"{AGREES[one['agrees']].strip('*')}: {one['asked']}: {one['found']}" for one in table["findings"]]
    return "\n".join([f"{table['table']}: {table['title']} ({table['scale']})", *lines, *said, ""])


def shown(value: float | None) -> str:
    """Four digits; what is not there is a dash."""
    if value is None:
        return "-"
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"


def in_words(seconds: float) -> str:
    """How long something takes, in a unit that suits it."""
    for name, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} seconds"


def _row(cell: Mapping[str, Any]) -> tuple[str, ...]:
    spread = "" if cell["spread"] is None else f"+-{cell['spread'] / 2:.2g}"
    paper = "" if cell["paper"] is None else shown(cell["paper"])
    texts = (cell["dataset"], cell["model"], cell["method"], cell["setting"], cell["metric"])
    return (*texts, paper, shown(cell["ours"]), spread, cell["word"])
