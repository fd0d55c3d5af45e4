"""P3: *An accuracy-lossless perturbation method*, tables I to IV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from bilateral.reproduce.judges import verdicts
from bilateral.reproduce.paper_figures import PaperFigure, figures_of
from bilateral.reproduce.papers.attack_rows import (
    BALANCED,
    MEMBERSHIP,
    MODEL_INVERSION,
    SMALL_SAID,
    WAYS,
    attack_cells,
)
from bilateral.reproduce.papers.shared import ACCURACY, MSE, baselines_below, classification, regression
from bilateral.reproduce.papers.systems import client_attacks, inversion_of_model
from bilateral.reproduce.papers.training_rows import BASELINES, MASKED, PERCENT
from bilateral.reproduce.sources import CIFAR10
from bilateral.reproduce.tables import Cell, Design, Differs, Row, Scale, Table
from bilateral.reproduce.tasks.training import BASE

PAPER: Final = "P3"
METHODS: Final = {"FedAvg": BASE, "PPDL": "ppdl", "DBCL": "dbcl", "SPN": "spn", "perturbation": ""}
SYSTEMS: Final = {**METHODS, "perturbation": MASKED}
LAYERS: Final = {
    "K=2 last": "membership by attack network, last layer",
    "K=2 last three": "membership by attack network, last three layers",
}
ATTACK_ACCURACY: Final = "attack accuracy"
_SMOKE: Final = "Audits at the effort `smoke`: two seeds, few images, which prove little either way"


def table_i(scale: Scale, data_dir: Path | None) -> Design:
    design = regression(figures_of(PAPER, "I"), METHODS, scale, data_dir)
    return replace(
        design, judges=(*design.judges, *baselines_below(design.rows, MSE, higher_is_better=False, unit=1.0))
    )


def table_ii(scale: Scale, data_dir: Path | None) -> Design:
    design = classification(figures_of(PAPER, "II"), CIFAR10, METHODS, scale, data_dir, lanes=BASELINES)
    below = baselines_below(design.rows, ACCURACY, higher_is_better=True, unit=PERCENT)
    return replace(design, judges=(*design.judges, *below))


def table_iii(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    """Membership from what layers of the model show."""
    rows: dict[str, Row] = {}
    cells: list[Cell] = []
    attacks: list[tuple[str, str, str, str]] = []
    for figure in figures_of(PAPER, "III"):
        row = client_attacks(scale, SYSTEMS[figure.method])
        rows[row.name] = row
        if figure.setting in LAYERS:
            cells += attack_cells(
                figure, row.name, f"{MEMBERSHIP}/{LAYERS[figure.setting]}", BALANCED, value=True, factor=PERCENT
            )
        else:
            cells.append(Cell(figure, "", ""))
    for method, system in SYSTEMS.items():
        row = client_attacks(scale, system)
        best = PaperFigure(PAPER, "III", "digits", "MLP-3", method, "the best of six attacks", "balanced accuracy %")
        cells += attack_cells(best, row.name, MEMBERSHIP, BALANCED, factor=PERCENT)
        attacks += [(f"{method}, {way}", row.name, f"{MEMBERSHIP}/{way}", BALANCED) for way in WAYS]
    return Design(
        tuple(rows.values()),
        tuple(cells),
        (
            Differs("data and network", "CIFAR-10 and ResNet-56, two clients", SMALL_SAID),
            Differs(
                "attack",
                "a network on outputs of chosen layers",
                "the audit's attack networks on the last layers; loss threshold and LiRA beside",
            ),
        ),
        judges=(verdicts("Membership by a client, balanced accuracy (chance 0.5)", attacks),),
        notes=(_SMOKE,) if scale == "quick" else (),
        missing=(
            "second and third to last layer alone: the audit's networks take the last one, two or three together",
        ),
    )


def table_iv(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    """Model inversion with a generator."""
    rows: dict[str, Row] = {}
    cells: list[Cell] = []
    attacks: list[tuple[str, str, str, str]] = []
    for figure in figures_of(PAPER, "IV"):
        row = inversion_of_model(scale, SYSTEMS[figure.method])
        rows[row.name] = row
        if figure.metric == "GMI_ASR_%":
            cells += attack_cells(figure, row.name, MODEL_INVERSION, ATTACK_ACCURACY, value=True, factor=PERCENT)
            attacks += [
                (f"{figure.method}, {way}", row.name, f"{MODEL_INVERSION}/{way}", ATTACK_ACCURACY) for way in WAYS
            ]
        elif figure.metric == "GMI_feature_distance":
            cells.append(Cell(figure, "", ""))
            cells += attack_cells(figure, row.name, MODEL_INVERSION, "feature MSE")
        else:
            cells.append(Cell(figure, "", ""))
    return Design(
        tuple(rows.values()),
        tuple(cells),
        (
            Differs("data and network", "CIFAR-10 and ResNet-56", SMALL_SAID),
            Differs(
                "generator",
                "a GAN on public images",
                "the audit's small one, trained on the test images without labels",
            ),
            Differs("distances", "of another network's features, unscaled", "mean squared, of the judge's features"),
        ),
        judges=(verdicts("Model inversion by a client, accuracy of the judge (chance 0.1)", attacks),),
        notes=(_SMOKE,) if scale == "quick" else (),
    )


TABLES: Final = (
    Table(
        "p3-i", PAPER, "Squared error of regression, with PPDL, DBCL and SPN (table I)", table_i, ("bank-marketing",)
    ),
    Table("p3-ii", PAPER, "Accuracy of classification, with PPDL, DBCL and SPN (table II)", table_ii, ("cifar10",)),
    Table("p3-iii", PAPER, "Membership by clients (table III)", table_iii),
    Table("p3-iv", PAPER, "Model inversion by clients (table IV)", table_iv),
)
