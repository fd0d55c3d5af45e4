"""How the papers' networks are trained here, at either scale, and the cells of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bilateral.reproduce.judges import Trial
from bilateral.reproduce.paper_figures import PaperFigure
from bilateral.reproduce.sources import Chosen
from bilateral.reproduce.tables import Cell, Differs, Row, Scale
from bilateral.reproduce.tasks.training import BASE, CONTROL, Training

SEALED: Final = "sealed"
MASKED: Final = "perturbation+masks"
ALONE: Final = "perturbation-activation"
"""With one client there is no sum to hide in."""
BASELINES: Final = ("ppdl", "dbcl", "spn")
CALLED: Final = {
    BASE: "FedSGD (ours)",
    CONTROL: "FedSGD, batches reordered (ours)",
    SEALED: "sealed training (ours)",
}
PERCENT: Final = 100.0
_QUICK_ROUNDS: Final = {"mlp": 20, "resnet-20": 10, "resnet-32": 4, "resnet-56": 3, "resnet-11": 10}
_FULL_ROUNDS: Final = {"mlp": 1000, "resnet-20": 2000, "resnet-32": 2000, "resnet-56": 2000, "resnet-11": 2000}


def lane_of(num_clients: int) -> str:
    """Which perturbation stands for the papers'."""
    return ALONE if num_clients == 1 else MASKED


def model_of(paper_name: str) -> str:
    """`ResNet20` and `MLP-3` as the zoo calls them."""
    name = paper_name.lower()
    return name if "-" in name else name.replace("resnet", "resnet-")


def mlp_row(data: Chosen, scale: Scale, model: str, num_clients: int, lanes: Sequence[str]) -> Row:
    """An MLP on a table."""
    settings: Mapping[str, Any] = {
        **data.settings,
        "model.name": model,
        "model.options": {"width": 32 if scale == "quick" else 64},
        "federation.clients": num_clients,
        "training.rounds": _rounds(scale, "mlp"),
        "training.batch_size": 64,
        "training.learning_rate": 0.01,
        "training.schedule": "constant",
        "training.evaluate_every": 10,
    }
    return Row(f"{data.settings['data.name']}, {model}, K={num_clients}", Training(settings, tuple(lanes)))


def image_row(data: Chosen, scale: Scale, model: str, num_clients: int, loss: str, lanes: Sequence[str]) -> Row:
    """A ResNet on images."""
    quick = scale == "quick"
    rounds = _rounds(scale, model)
    settings: Mapping[str, Any] = {
        **data.settings,
        "model.name": model,
        "model.options": {"width": 4 if quick else 16},
        "federation.clients": num_clients,
        "training.loss": loss,
        "training.rounds": rounds,
        "training.batch_size": 8 if quick else 64,
        "training.optimiser": "adam",
        "training.learning_rate": 0.01 if quick else 0.002,
        "training.evaluate_every": max(1, rounds // 6),
    }
    name = f"{data.settings['data.name']}, {model}, {loss}, K={num_clients}"
    return Row(name, Training(settings, tuple(lanes)))


def training_differs(scale: Scale, *, images: bool) -> tuple[Differs, ...]:
    """What is not as the papers trained."""
    if images:
        size = "4 to 16 channels, batches of 8" if scale == "quick" else "16 to 64 channels, batches of 64"
        shown = {k: v for k, v in (_QUICK_ROUNDS if scale == "quick" else _FULL_ROUNDS).items() if k != "mlp"}
        length = ", ".join(f"{name} {rounds}" for name, rounds in shown.items())
        how = "Adam"
    else:
        size = "32 units a layer" if scale == "quick" else "64 units a layer"
        length, how = str(_rounds(scale, "mlp")), "SGD with momentum"
    return (
        Differs("network", "as named; widths not all stated", size),
        Differs("length", "200 epochs", f"rounds of one gradient a client: {length}"),
        Differs("optimiser", "SGD", f"{how}, the same for all"),
        Differs("machine", "GPUs", "one core of a CPU"),
        Differs(
            "yardstick", "FedAvg", "FedSGD: one gradient a client and round, which is what the papers' equations sum"
        ),
    )


def trial_of(row: Row, metric: str) -> Trial:
    return Trial(row.name, metric, BASE, CONTROL)


def cells_of(
    figures: Sequence[PaperFigure], row: Row, lanes: Mapping[str, str], metric: str, factor: float
) -> list[Cell]:
    """Of the paper's figures of one row, each beside a lane; `lanes`: the paper's method to ours."""
    return [Cell(one, row.name, f"{lanes[one.method]}/{metric}", factor) for one in figures if one.method in lanes]


def own_cell(like: PaperFigure, row: Row, lane: str, metric: str, factor: float) -> Cell:
    """A figure that the paper does not have."""
    figure = PaperFigure(like.paper, like.table, like.dataset, like.model, CALLED[lane], like.setting, like.metric)
    return Cell(figure, row.name, f"{lane}/{metric}", factor)


def _rounds(scale: Scale, name: str) -> int:
    return (_QUICK_ROUNDS if scale == "quick" else _FULL_ROUNDS)[name]
