"""P1: *PBPFL*, tables 1 to 3. Its scheme is P0's for the squared error, and so are its tables 1 and 3."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bilateral.reproduce.paper_figures import figures_of
from bilateral.reproduce.papers.p0 import step_costs
from bilateral.reproduce.papers.shared import classification, regression
from bilateral.reproduce.sources import HAM
from bilateral.reproduce.tables import Design, Scale, Table
from bilateral.reproduce.tasks.training import BASE

PAPER: Final = "P1"


def table_1(scale: Scale, data_dir: Path | None) -> Design:
    return regression(figures_of(PAPER, "1"), {"FedAvg": BASE, "PBPFL": ""}, scale, data_dir)


def table_2(scale: Scale, data_dir: Path | None) -> Design:
    """FedAvg with both losses, PBPFL with the squared error."""
    return classification(
        figures_of(PAPER, "2"),
        HAM,
        {"FedAvg-CE": BASE, "FedAvg-MSE": BASE, "PBPFL": ""},
        scale,
        data_dir,
        loss=lambda figure: "ce" if figure.method == "FedAvg-CE" else "mse",
    )


def table_3(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    return step_costs(figures_of(PAPER, "3"), "PBPFL", scale)


TABLES: Final = (
    Table("p1-1", PAPER, "Squared error of regression (table 1)", table_1, ("bank-marketing", "aptos")),
    Table("p1-2", PAPER, "Accuracy of classification, both losses (table 2)", table_2, ("ham10000",)),
    Table("p1-3", PAPER, "Seconds of a client and of the server, and bytes (table 3)", table_3),
)
