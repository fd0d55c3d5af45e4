"""Rows that several papers' tables have in common: they are done once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bilateral.reproduce.judges import below, equal_within_seed_noise
from bilateral.reproduce.paper_figures import PaperFigure
from bilateral.reproduce.papers.training_rows import (
    BASELINES,
    PERCENT,
    SEALED,
    cells_of,
    image_row,
    lane_of,
    mlp_row,
    model_of,
    own_cell,
    training_differs,
    trial_of,
)
from bilateral.reproduce.sources import APTOS, BANK, Chosen, Source
from bilateral.reproduce.tables import Cell, Design, Judge, Row, Scale
from bilateral.reproduce.tasks.training import BASE, CONTROL

MSE: Final = "test_mse"
ACCURACY: Final = "test_accuracy"
SEALED_ROW: Final = ("mlp-3", 5)
"""The row that is trained sealed too: it costs some twenty plain steps a step."""
DRIFT: Final = (
    "The recovered gradient equals FedSGD's up to rounding (docs/measurements.md), and few rounds of a badly "
    "conditioned network carry roundings far; one reordered run a seed is a small sample of how far"
)


def clients_of(figure: PaperFigure) -> int:
    """`K=5 CE` is 5."""
    return int(figure.setting.split()[0].removeprefix("K="))


def bank_row(data: Chosen, scale: Scale, model: str, num_clients: int) -> Row:
    """Bank Marketing with all that P0, P1 and P3 compare on it."""
    lanes = (lane_of(num_clients), *BASELINES)
    sealed = (SEALED,) if (model, num_clients) == SEALED_ROW else ()
    return mlp_row(data, scale, model, num_clients, (*lanes, *sealed))


def regression(
    figures: Sequence[PaperFigure], methods: Mapping[str, str], scale: Scale, data_dir: Path | None
) -> Design:
    """UBMD with MLPs and ABD with ResNet-20. `methods`: the papers' names to lanes; "" is perturbation."""
    bank = BANK.chosen(scale, data_dir)
    has_images = any(one.dataset == APTOS.called for one in figures)
    images = APTOS.chosen(scale, data_dir) if has_images else None
    rows: dict[str, Row] = {}
    cells: list[Cell] = []
    missing: list[str] = []
    for (dataset, model, count), group in grouped(figures).items():
        if dataset == BANK.called:
            row = bank_row(bank, scale, model_of(model), count)
        elif images is not None and images.settings["data.name"] == APTOS.name:
            row = image_row(images, scale, model_of(model), count, "mse", (lane_of(count),))
        else:
            missing.append(f"{dataset}, {model}: needs {APTOS.name} in `--data-dir`; nothing stands in for it")
            continue
        rows[row.name] = row
        cells += cells_of(group, row, {m: lane or lane_of(count) for m, lane in methods.items()}, MSE, 1.0)
        own = (CONTROL, SEALED) if (model_of(model), count) == SEALED_ROW else (CONTROL,)
        cells += [own_cell(group[0], row, lane, MSE, 1.0) for lane in own]
    differs = (bank.differs, *((images.differs,) if images else ()), *training_differs(scale, images=False))
    if images:
        differs += training_differs(scale, images=True)[:3]
    trials = [trial_of(row, MSE) for row in rows.values()]
    return Design(
        tuple(rows.values()),
        tuple(cells),
        differs,
        judges=(
            equal_within_seed_noise(
                "Perturbation equals FedSGD within seed noise",
                trials,
                lambda trial: lane_of(int(trial.row.rsplit("K=", 1)[1])),
                why=DRIFT,
            ),
            equal_within_seed_noise("Sealed training equals FedSGD within seed noise", trials, SEALED, why=DRIFT),
        ),
        missing=tuple(dict.fromkeys(missing)),
        curves_of=tuple(rows)[:3],
    )


def classification(
    figures: Sequence[PaperFigure],
    source: Source,
    methods: Mapping[str, str],
    scale: Scale,
    data_dir: Path | None,
    *,
    loss: Callable[[PaperFigure], str] = lambda _: "ce",
    lanes: Sequence[str] = (),
) -> Design:
    """ResNets on images. `methods`: as in `regression`; `lanes`: baselines that are trained beside."""
    data = source.chosen(scale, data_dir)
    rows: dict[str, Row] = {}
    cells: list[Cell] = []
    for (_, model, count), group in grouped(figures).items():
        for chosen in dict.fromkeys(loss(one) for one in group):
            row = image_row(data, scale, model_of(model), count, chosen, (lane_of(count), *lanes))
            rows[row.name] = row
            of_loss = [one for one in group if loss(one) == chosen]
            named = {m: lane or lane_of(count) for m, lane in methods.items()}
            cells += cells_of(of_loss, row, named, ACCURACY, PERCENT)
            cells.append(own_cell(of_loss[0], row, CONTROL, ACCURACY, PERCENT))
    trials = [trial_of(row, ACCURACY) for row in rows.values()]
    return Design(
        tuple(rows.values()),
        tuple(cells),
        (data.differs, *training_differs(scale, images=True)),
        judges=(
            equal_within_seed_noise(
                "Perturbation equals FedSGD within seed noise (points)",
                trials,
                lambda trial: lane_of(int(trial.row.rsplit("K=", 1)[1])),
                PERCENT,
                why=DRIFT,
            ),
        ),
        notes=(SHORT,) if scale == "quick" else (),
        curves_of=tuple(name for name in rows if "resnet-20" in name)[:3],
    )


SHORT: Final = (
    "Quick: trainings of a few rounds on small images, so that accuracies are far below the papers' and say only "
    "whether the systems train alike; HAM10000's largest class alone is 67 %"
)
BELOW: Final = (
    "What these schemes lose depends on how much they share, perturb or sketch, which P3 does not state; ours are the "
    "defaults of decision 43"
)


def baselines_below(rows: Sequence[Row], metric: str, *, higher_is_better: bool, unit: float) -> tuple[Judge, ...]:
    """P3 has all three behind FedAvg."""
    names = [row.name for row in rows]
    return tuple(
        below(
            f"{name.upper()} ends below FedSGD, as in P3",
            names,
            metric,
            name,
            BASE,
            higher_is_better=higher_is_better,
            unit=unit,
            why=BELOW,
        )
        for name in BASELINES
    )


def grouped(figures: Sequence[PaperFigure]) -> dict[tuple[str, str, int], list[PaperFigure]]:
    """By data, network and number of clients, in the papers' order."""
    groups: dict[tuple[str, str, int], list[PaperFigure]] = {}
    for one in figures:
        groups.setdefault((one.dataset, one.model, clients_of(one)), []).append(one)
    return groups
