"""Audits as rows: which experiments stand for the papers' attacks, and their cells, naive and adaptive side by side.

An experiment is asked for by its name in the audit's registry; one that is added there later needs its name here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bilateral.reproduce.paper_figures import PaperFigure
from bilateral.reproduce.tables import Cell, Row, Scale
from bilateral.reproduce.tasks.attacks import Attacks

INVERSION: Final = "gradient-inversion"
PRIOR: Final = "prior-inversion"
MEMBERSHIP: Final = "membership-by-clients"
MODEL_INVERSION: Final = "model-inversion"
OPENED: Final = "opened-uploads"
WAYS: Final = ("naive", "adaptive")
PSNR: Final = "PSNR dB"
TEST_MSE: Final = "test MSE"
FEATURE_MSE: Final = "feature MSE"
BALANCED: Final = "balanced accuracy"
SMALL: Final[Mapping[str, Any]] = {
    "model.name": "mlp-3",
    "model.options": {"width": 16},
    "training.rounds": 60,
    "training.learning_rate": 0.05,
}
"""What is attacked: a network that real keys can keep up with."""
SMALL_SAID: Final = "digits, MLP-3 with 16 units a layer, five clients: what real keys can keep up with"


def attack_row(
    name: str,
    settings: Mapping[str, Any],
    scale: Scale,
    experiments: tuple[str, ...],
    *,
    shown: bool = False,
) -> Row:
    """An audit of a small plan."""
    return Row(name, Attacks(settings, experiments, "smoke" if scale == "quick" else "standard", shown=shown))


def attack_cells(
    like: PaperFigure, row: str, experiment: str, metric: str, *, value: bool = False, factor: float = 1.0
) -> list[Cell]:
    """The best naive and the best adaptive attacker. `value`: whether the paper's figure is of this metric."""
    who = [(f"{way} attacker", f"{experiment}/{way}", value) for way in WAYS]
    if experiment == INVERSION:
        who.append(("adaptive attacker on the sum", f"{experiment} of sums/adaptive", False))
    return [
        Cell(
            PaperFigure(
                like.paper,
                like.table,
                like.dataset,
                like.model,
                like.method,
                f"{like.setting}, {called}".removeprefix(", "),
                like.metric if value else metric,
                like.value if is_papers else None,
            ),
            row,
            f"{key}/{metric}",
            factor,
        )
        for called, key, is_papers in who
    ]


def inversions_of(called: str, row: str) -> list[tuple[str, str, str, str]]:
    """What `judges.verdicts` is to tell of a row with inversions."""
    ways = [(f"{called}, {way}", row, f"{INVERSION}/{way}", PSNR) for way in WAYS]
    return [*ways, (f"{called}, adaptive on the sum", row, f"{INVERSION} of sums/adaptive", PSNR)]
