"""A table from outside of the package whose work is to count itself, and to wait at a gate if it is told to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilateral.reproduce.judges import below
from bilateral.reproduce.paper_figures import PaperFigure
from bilateral.reproduce.tables import Cell, Design, Differs, Measured, Row, Table


@dataclass(frozen=True)
class Counting:
    """Writes a line a run into `log`; with a gate it says there that it has begun, and then waits for ever."""

    name: str
    log: str
    value: float
    gate: str = ""

    def describe(self):
        return {"name": self.name, "log": self.log, "value": self.value}

    def pilot(self):
        return self, 3.0

    def run(self, around):
        with Path(self.log).open("a", encoding="utf-8") as lines:
            lines.write(f"{self.name}\n")
        if self.gate:
            Path(self.gate).write_text("begun", encoding="utf-8")  # a FIFO: whoever reads it knows where we are
            Path(self.gate).read_text(encoding="utf-8")  # and nobody writes
        around.note("counted")
        return Measured({"one/test_mse": [self.value, self.value + 1], "two/test_mse": [0.0, 0.0]})


def toy_table(log, gate=""):
    rows = tuple(
        Row(name, Counting(name, str(log), number, str(gate) if name == "second" else ""))
        for number, name in enumerate(("first", "second", "third"), 1)
    )
    figure = PaperFigure("P0", "toy", "data", "net", "FedAvg", "K=1", "test_mse", 0.5)
    cells = tuple(Cell(figure, row.name, "one/test_mse", 2.0) for row in rows)
    judge = below("two is below one", [row.name for row in rows], "test_mse", "one", "two", higher_is_better=False)
    design = Design(rows, cells, (Differs("size", "large", "small"),), (judge,), ("a toy",))
    return Table("toy-1", "P0", "A toy", lambda _scale, _data_dir: design)
