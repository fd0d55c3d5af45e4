"""What a reproduced table is made of.

A table has rows, which are work and are done one after the other, and cells, which are figures: the paper's beside what
a row measured. Findings say what agrees and what does not; they are computed from the cells, never written by hand.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from bilateral.reproduce.paper_figures import PaperFigure

Scale = Literal["quick", "full"]
Note = Callable[[str], None]
Values = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Around:
    """What work is given: where the data are, a folder for what it keeps, and a way to say how far it is."""

    data_dir: Path | None
    folder: Path
    note: Note = lambda _text: None


@dataclass(frozen=True)
class Picture:
    """A file of a picture (PNG), with what it shows."""

    title: str
    png: bytes = field(repr=False)


@dataclass(frozen=True)
class Measured:
    """What a row found. `values`: by name, one a seed; None where a training diverged. `curves`: name to (x, y)."""

    values: Values
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    """What is to be said of a value: from how much it was extrapolated, what an audit concluded."""
    pictures: tuple[Picture, ...] = ()


class Task(Protocol):
    """A kind of work. Tasks are frozen and small: `describe` is what a stored row is recognised by."""

    def describe(self) -> Mapping[str, Any]:
        """All that decides what it measures, as JSON."""
        ...

    def run(self, around: Around) -> Measured: ...

    def pilot(self) -> tuple[Task, float]:
        """A smaller piece of the same work, and how many times as long the whole takes, roughly."""
        ...


@dataclass(frozen=True)
class Row:
    """A piece of work of a table, by a name that tells it from the others of that table."""

    name: str
    task: Task

    @property
    def digest(self) -> str:
        text = json.dumps({"task": type(self.task).__name__, **self.task.describe()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Cell:
    """A figure: the paper's, and under which name which row measured ours. `factor` turns ours into its unit."""

    figure: PaperFigure
    row: str
    key: str
    factor: float = 1.0


@dataclass(frozen=True)
class Differs:
    """A setting that is another one here than in the paper."""

    what: str
    paper: str
    here: str


@dataclass(frozen=True)
class Finding:
    """What the figures say. `agrees` is None where there is nothing to compare, or not enough of it."""

    asked: str
    agrees: bool | None
    found: str
    why: str = ""


Judge = Callable[["Found"], Finding]


@dataclass(frozen=True)
class Design:
    """A table at a scale, on the data that are there: what is done, shown and asked."""

    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]
    differs: tuple[Differs, ...]
    judges: tuple[Judge, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """What the paper has and this design does not measure, and why."""
    curves_of: tuple[str, ...] = ()
    """Rows whose training curves are drawn."""


@dataclass(frozen=True)
class Table:
    """One table of a paper, by name (`p0-i`)."""

    name: str
    paper: str
    title: str
    design: Callable[[Scale, Path | None], Design]
    needs: tuple[str, ...] = ()
    """Data that it wants from `--data-dir`; without them small embedded data stand in, if its notes say so."""


class Found:
    """The rows of a table that are done, and what their cells are."""

    def __init__(self, cells: Sequence[Cell], rows: Mapping[str, Measured]) -> None:
        self.cells = tuple(cells)
        self.rows = rows

    def each(self, row: str, key: str) -> list[float | None]:
        """One value a seed; nothing if the row is not done, or has no such value."""
        return list(self.rows[row].values.get(key, ())) if row in self.rows else []

    def mean(self, row: str, key: str) -> float | None:
        """Over the seeds; None if there is none, or one diverged."""
        values = self.each(row, key)
        known = [value for value in values if value is not None and math.isfinite(value)]
        return sum(known) / len(known) if known and len(known) == len(values) else None

    def ours(self, cell: Cell) -> float | None:
        value = self.mean(cell.row, cell.key)
        return None if value is None else value * cell.factor

    def spread(self, cell: Cell) -> float | None:
        """From the lowest seed to the highest; None for one alone."""
        values = [value for value in self.each(cell.row, cell.key) if value is not None]
        return cell.factor * (max(values) - min(values)) if len(values) > 1 else None

    def word(self, cell: Cell) -> str:
        """What is to be said of the figure, or of all that it belongs to (an experiment that was not done)."""
        words = self.rows[cell.row].words if cell.row in self.rows else {}
        return words.get(cell.key) or words.get(cell.key.split("/")[0], "")
