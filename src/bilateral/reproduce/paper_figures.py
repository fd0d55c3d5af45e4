"""The figures that the papers print, from a file of this package; nothing of them is in code."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

FILE: Final = "paper_figures.tsv"


@dataclass(frozen=True)
class PaperFigure:
    """One number of a table; `value` is None where a paper has none and ours stands alone."""

    paper: str
    table: str
    dataset: str
    model: str
    method: str
    setting: str
    metric: str
    value: float | None = None

    @property
    def id(self) -> str:
        """What names it: every column but the value."""
        return "/".join((self.paper, self.table, self.dataset, self.model, self.method, self.setting, self.metric))


@cache
def paper_figures() -> tuple[PaperFigure, ...]:
    """All of them, in the papers' order."""
    text = (files("bilateral.reproduce") / FILE).read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t")
    return tuple(PaperFigure(**{**row, "value": float(row["value"])}) for row in rows)  # type: ignore[arg-type]


def figures_of(paper: str, *tables: str) -> tuple[PaperFigure, ...]:
    """Those of some tables of a paper."""
    return tuple(one for one in paper_figures() if one.paper == paper and one.table in tables)
