"""P4: *PrivHFL*, tables 1 to 5."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bilateral.reproduce.judges import compared, ordered
from bilateral.reproduce.paper_figures import PaperFigure, figures_of
from bilateral.reproduce.sources import CIFAR10, SVHN, Source, is_there
from bilateral.reproduce.tables import Cell, Design, Differs, Judge, Row, Scale, Table
from bilateral.reproduce.tasks.predictions import Predictions
from bilateral.reproduce.tasks.teaching import CONTROL, STAND_ALONE, Teaching
from bilateral.runs.hetero.result import AVERAGE

PAPER: Final = "P4"
PERCENT: Final = 100.0
NETWORKS: Final = {"VGG7": "vgg-7", "ResNet8": "resnet-8", "ResNet10": "resnet-10"}
MNIST_NETWORKS: Final = {
    "CNet2": "bilateral.reproduce.networks:cryptonets",
    "MLP": "bilateral.reproduce.networks:wide_mlp",
}
OURS: Final = ("PrivHFL", "PrivHFL CPU", "PrivHFL GPU")
_ORDER: Final = (
    "Quick clients are barely better than chance, and what such clients answer teaches little; docs/measurements.md "
    "has larger ones"
)


def hetero_settings(source: Source, scale: Scale, data_dir: Path | None) -> tuple[Mapping[str, Any], Differs]:
    """Nine clients as `bench heterogeneous` has them, or six smaller ones."""
    quick = scale == "quick"
    found = is_there(source.name, data_dir)
    networks = [
        {"name": "vgg-7", "options": {"width": 8 if quick else 16, "batch_norm": True}},
        {"name": "resnet-8", "options": {"width": 8 if quick else 16}},
        {"name": "lenet"},
    ]
    settings: dict[str, Any] = {
        "data.name": source.name if found else "digits",
        "data.samples_per_client": (100 if found else 60) if quick else 500 if found else 150,
        "data.shrink": 2 if found else 1,
        "clients.number": 6 if quick else 9,
        "clients.architectures": networks,
        "training.epochs": 10 if quick else 25,
        "training.batch_size": 20,
        "training.learning_rate": 0.02,
        "retraining.epochs": 50,
        "retraining.max_steps": 60 if quick else 600,
        "retraining.batch_size": 32 if quick else 64,
    }
    here = source.size if found else f"digits, which are embedded: {source.name} was not found (`--data-dir`)"
    return settings, Differs(f"data ({source.called})", source.paper, here)


def table_1(scale: Scale, data_dir: Path | None) -> Design:
    """What answers bring, by what is asked and how many answer; and what retraining alone brings."""
    numbers = (
        {"mixup 2.5K": 250, "mixup 10K": 1000}
        if scale == "quick"
        else {"mixup 2.5K": 2500, "mixup 5.0K": 5000, "mixup 7.5K": 7500, "mixup 10K": 10000}
    )
    cases: dict[str, dict[str, Any]] = {
        CONTROL: {"queries.number": 20, "retraining.from_answers": False},
        "private-data queries C=1": {"queries.pool": "private", "queries.number": 1000},
        **{f"{name} C=1": {"queries.number": number} for name, number in numbers.items()},
    }
    largest = max(numbers, key=lambda name: numbers[name])
    cases |= {f"{largest} C=0.6": {"queries.number": numbers[largest], "queries.fraction": 0.6}}
    if scale == "full":
        cases |= {f"{largest} C=0.8": {"queries.number": numbers[largest], "queries.fraction": 0.8}}
    rows, cells, differs = [], [], []
    judges: list[Judge] = []
    for source in (SVHN, CIFAR10):
        settings, said = hetero_settings(source, scale, data_dir)
        row = Row(
            f"{source.called}, six clients" if scale == "quick" else f"{source.called}, nine clients",
            Teaching(settings, cases),
        )
        rows.append(row)
        differs.append(said)
        figures = [one for one in figures_of(PAPER, "1") if one.dataset == source.called]
        for figure in figures:
            case = STAND_ALONE if figure.method == STAND_ALONE else f"{figure.method} {figure.setting}"
            if case == STAND_ALONE or case in cases:
                cells.append(Cell(figure, row.name, f"{case}/{AVERAGE}", PERCENT))
        own = PaperFigure(PAPER, "1", source.called, "heterogeneous", CONTROL, "", "test_accuracy_%")
        cells.append(Cell(own, row.name, f"{CONTROL}/{AVERAGE}", PERCENT))
        keys = [STAND_ALONE, "private-data queries C=1", f"{largest} C=1"]
        judges += [
            ordered(
                f"{source.called}: stand-alone below private below mixup, on every seed",
                row.name,
                [f"{key}/{AVERAGE}" for key in keys],
                ["stand-alone", "private", "mixup"],
                why=_ORDER,
            ),
            ordered(
                f"{source.called}: answers bring more than training as long without them",
                row.name,
                [f"{CONTROL}/{AVERAGE}", f"{largest} C=1/{AVERAGE}"],
                ["control", "mixup"],
                why=_ORDER,
            ),
        ]
    return Design(
        tuple(rows),
        tuple(cells),
        (
            *differs,
            Differs("images", "32x32", "2x2 pixels averaged to one"),
            Differs(
                "clients",
                "50 (CIFAR-10), 100 (SVHN)",
                "6 with 100 samples each" if scale == "quick" else "9 with 500 samples each",
            ),
            Differs("queries", "2,500 to 10,000", ", ".join(f"{number:,}" for number in numbers.values())),
            Differs("answers", "secret-shared", "in the clear, which changes logits by less than 2^-12"),
            Differs("gradient steps after the answers", "grow with queries", "the same for all, the control too"),
        ),
        judges=tuple(judges),
        missing=(
            "TinyImageNet: not among the data that there are",
            "fractions other than the largest number of queries has",
        ),
    )


def table_5(scale: Scale, data_dir: Path | None) -> Design:
    """One weight for all mixups. A pair's order is random: 0.1 and 0.9 make the same queries."""
    settings, said = hetero_settings(CIFAR10, scale, data_dir)
    weights = (0.1, 0.3, 0.5, 0.9) if scale == "quick" else tuple(tenth / 10 for tenth in range(1, 10))
    number = 250 if scale == "quick" else 5000
    cases: dict[str, dict[str, Any]] = {
        f"{weight:g}": {"queries.number": number, "queries.mixup_weight": weight} for weight in weights
    }
    row = Row("CIFAR10, weights", Teaching(settings, cases, (1, 2)))
    cells = [
        Cell(one, row.name, f"{one.setting.removeprefix('lambda=')}/{AVERAGE}", PERCENT)
        for one in figures_of(PAPER, "5")
        if one.setting.removeprefix("lambda=") in cases
    ]
    return Design(
        (row,),
        tuple(cells),
        (
            said,
            Differs("queries", "not stated", f"{number:,}"),
            Differs("clients", "50", "6" if scale == "quick" else "9"),
        ),
        judges=(
            compared(
                "No weight is much better than another (the paper's differ by 0.6 points; 0.1 and 0.9 are one)",
                {name: (row.name, f"{name}/{AVERAGE}") for name in cases},
                {
                    one.setting.removeprefix("lambda="): one.value / PERCENT
                    for one in figures_of(PAPER, "5")
                    if one.value is not None
                },
                lambda v: max(v.values()) - min(v.values()) < 0.03,
                why="0.1 and 0.9 are one distribution: what they differ by is noise, and so are the others'",
            ),
        ),
    )


def table_2(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    """Seconds of many queries, multiplied up from a batch."""
    batch = batches(scale)[-1]
    rows = prediction_rows(scale)
    cells = []
    for figure in figures_of(PAPER, "2"):
        name, count = NETWORKS[figure.model], int(figure.setting.split()[0])
        cells.append(Cell(figure, rows[name].name, f"{name}/{batch}/seconds", count))
    return Design(
        tuple(rows.values()),
        tuple(cells),
        (
            *_prediction_differs(),
            Differs("queries", "1,000 to 5,000 asked", f"a batch of {batch}, multiplied up to as many"),
        ),
        judges=(_faster("2", rows, batch, 1000.0),),
        notes=(f"All of ours is extrapolated: seconds of a query in batches of {batch}, times the queries",),
        missing=("query sharing and aggregation, which P4 counts apart: ours are inside",),
    )


def table_3(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    rows = prediction_rows(scale)
    cells = []
    for figure in figures_of(PAPER, "3"):
        name = NETWORKS[figure.model]
        if figure.method == "PrivHFL CPU":
            cells.append(Cell(figure, rows[name].name, f"{name}/1/{figure.metric}"))
        else:
            cells.append(Cell(figure, "", ""))
    return Design(
        tuple(rows.values()),
        tuple(cells),
        _prediction_differs(),
        judges=(_faster("3", rows, 1, 1.0),),
        missing=(
            "CrypTFlow2 and CryptGPU: other software; docs/measurements.md has CrypTen and SPU on this kind of machine",
        ),
    )


def table_4(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    """Batches of MNIST: random pictures, since neither time nor bytes depend on them."""
    sizes = (128, 256) if scale == "quick" else (128, 256, 512, 1024, 2048)
    rows = {
        called: Row(f"MNIST, {called}", Predictions(name, sizes, 1 if scale == "quick" else 3, (1, 28, 28)))
        for called, name in MNIST_NETWORKS.items()
    }
    cells = []
    for figure in figures_of(PAPER, "4"):
        batch = int(figure.setting.removeprefix("batch="))
        called = "CNet2" if figure.model == "CNet1" else figure.model
        mine = figure.method in OURS and batch in sizes
        cells.append(
            Cell(figure, rows[called].name if mine else "", f"{MNIST_NETWORKS[called]}/{batch}/seconds", batch)
        )
    linear = {name: (rows[name].name, f"{MNIST_NETWORKS[name]}/{sizes[0]}/seconds") for name in rows}
    return Design(
        tuple(rows.values()),
        tuple(cells),
        (
            *_prediction_differs(),
            Differs("CNet1", "squares for activations", "CNet2's figures: our circuits have ReLU alone"),
        ),
        judges=(
            compared(
                "A batch is far faster than HE-Transformer's (seconds of an image in the smallest batch)",
                linear,
                {
                    one.model: one.value / 128
                    for one in figures_of(PAPER, "4")
                    if one.method == "HE-Transformer" and one.setting == "batch=128" and one.value is not None
                },
                lambda v: v["CNet2"] * 128 < 48.83 and v["MLP"] * 128 < 65.01,
            ),
        ),
        missing=("HE-Transformer: no longer kept up; its figures are the paper's",)
        + (("batches of 512 to 2,048 (`--full`)",) if scale == "quick" else ()),
    )


def batches(scale: Scale) -> tuple[int, ...]:
    return (1, 2) if scale == "quick" else (1, 32)


def prediction_rows(scale: Scale) -> dict[str, Row]:
    repeats = 1 if scale == "quick" else 5
    return {
        name: Row(f"predictions of {name}", Predictions(name, batches(scale), repeats)) for name in NETWORKS.values()
    }


def _prediction_differs() -> tuple[Differs, ...]:
    return (
        Differs("machine", "a GPU, or a CPU of the paper's own", "three processes on two cores, by loopback"),
        Differs("comparison", "the paper's, which shows sizes", "`sealed`: whoever helps sees nothing of activations"),
        Differs("ResNet-8, ResNet-10", "their own widths", "the zoo's, without BatchNorm"),
    )


def _faster(table: str, rows: Mapping[str, Row], batch: int, count: float) -> Judge:
    wanted = ("1000 queries", "PrivHFL GPU") if table == "2" else ("one prediction", "PrivHFL CPU")
    paper = {
        one.model: one.value / count
        for one in figures_of(PAPER, table)
        if (one.setting, one.method) == wanted and one.metric == "seconds" and one.value is not None
    }
    return compared(
        "Seconds of a prediction are no more than the paper's",
        {called: (rows[name].name, f"{name}/{batch}/seconds") for called, name in NETWORKS.items()},
        paper,
        lambda v: all(v[name] <= paper[name] for name in paper),
        why="Other machines, and processes of others on this one: ratios of one run stand in docs/measurements.md",
    )


TABLES: Final = (
    Table("p4-1", PAPER, "What answers of others bring (table 1)", table_1, ("svhn", "cifar10")),
    Table("p4-2", PAPER, "Seconds of many queries (table 2)", table_2),
    Table("p4-3", PAPER, "One secret-shared prediction (table 3)", table_3),
    Table("p4-4", PAPER, "Batches of predictions on MNIST (table 4)", table_4),
    Table("p4-5", PAPER, "The weight of mixups (table 5)", table_5, ("cifar10",)),
)
