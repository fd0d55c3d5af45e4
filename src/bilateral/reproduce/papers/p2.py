"""P2: *Secure model training and secure aggregation*, tables 1 to 5 and figure 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bilateral.reproduce.judges import below, compared, equal_within_seed_noise, verdicts
from bilateral.reproduce.paper_figures import PaperFigure, figures_of
from bilateral.reproduce.papers.attack_rows import (
    BALANCED,
    FEATURE_MSE,
    INVERSION,
    MEMBERSHIP,
    OPENED,
    PRIOR,
    PSNR,
    SMALL_SAID,
    TEST_MSE,
    WAYS,
    attack_cells,
    inversions_of,
)
from bilateral.reproduce.papers.shared import ACCURACY, DRIFT, SHORT
from bilateral.reproduce.papers.systems import (
    BARELY,
    CENTRAL,
    CIPHERS,
    EPSILON,
    PUBLISHED,
    client_attacks,
    costs_row,
    prior_attacks,
    systems_row,
    upload_attacks,
)
from bilateral.reproduce.papers.training_rows import (
    MASKED,
    PERCENT,
    SEALED,
    image_row,
    own_cell,
    training_differs,
    trial_of,
)
from bilateral.reproduce.sources import BANK, BREAKHIS
from bilateral.reproduce.tables import Cell, Design, Differs, Judge, Row, Scale, Table
from bilateral.reproduce.tasks.noise import Noise
from bilateral.reproduce.tasks.training import BASE, CONTROL, Training

PAPER: Final = "P2"
SYSTEMS: Final = {
    "FedAvg": BASE,
    "PILE": "pile",
    "TP-SMC": "tp-smc",
    "HybridAlpha": "hybrid-alpha",
    "MP-CDP": CENTRAL,
    "MP+DDP": PUBLISHED,
}
COSTED: Final = {**SYSTEMS, "MP+DDP": MASKED}
"""What MP+DDP costs is what perturbation under masks costs: the noise itself is a draw a parameter."""
MEMBERSHIPS: Final = (BASE, PUBLISHED)
BY_PRIOR: Final = (BASE, PUBLISHED)
"""Those that the generative prior is tried on: without any protection, and under P2's own."""
_SECONDS: Final = ("server_seconds", "client_seconds", "seconds_per_epoch")
SIX: Final = "Six other systems of keys and noise on one small network: orders can differ where margins are small"


def costs(tables: Sequence[str], scale: Scale) -> Design:
    """Tables 1 and 5: seconds of an epoch; all that is reached by a GPU only is left to the paper."""
    figures = [one for table in tables for one in figures_of(PAPER, table)]
    rows: dict[str, Row] = {}
    cells: list[Cell] = []
    judges: list[Judge] = []
    for model, dataset in (("ResNet20", "CIFAR10"), ("ResNet56", "CIFAR100")):
        for count in (5, 100):
            group = [f for f in figures if f.model == model and f.setting == f"K={count} n=5"]
            row = costs_row(scale, model.lower().replace("resnet", "resnet-"), count)
            rows[row.name] = row
            cells += [
                Cell(one, row.name, f"{COSTED[one.method]}/{one.metric}") for one in group if one.metric in _SECONDS
            ]
            epochs = {one.method: one for one in group if one.metric == "seconds_per_epoch"}
            plain = epochs["FedAvg"].value or 1.0
            for method, one in epochs.items():
                ratio = None if one.value is None else one.value / plain
                figure = PaperFigure(
                    PAPER, one.table, dataset, model, method, one.setting, "epoch over FedAvg's", ratio
                )
                cells.append(Cell(figure, row.name, f"{COSTED[method]}/epoch_ratio"))
            judges.append(_epochs(row, epochs, plain, f"{model}, K={count}"))
    return Design(
        tuple(rows.values()),
        tuple(cells),
        (
            Differs("machine", "a GPU, and a CPU for ciphers", "one core of a CPU for all, by turns: compare ratios"),
            Differs(
                "batches",
                "256",
                f"{'8' if scale == 'quick' else '256'}; an epoch is as many images of a client as P2's",
            ),
            Differs("Paillier", "not all stated", "threshold, 2048 bits, 71 (TP-SMC) or 35 (PILE) values a ciphertext"),
            Differs(
                "HybridAlpha", "discrete logarithms modulo a prime", "edwards25519, 128 bits, one ciphertext a value"
            ),
            Differs("sums", "one an epoch", "one an epoch; ciphers on a stated part of the values, multiplied up"),
        ),
        judges=tuple(judges),
        notes=(
            "Ciphers are those of the protections, at their key sizes and packing; P2 does not say how its are packed",
            "With 100 clients masks are measured among 10 with as many neighbours, and the server's part multiplied up",
        ),
        missing=("time to 65 % and to 40 % accuracy: days on this machine, in the papers' setting",)
        if "1" in tables
        else (),
    )


def _epochs(row: Row, epochs: Mapping[str, PaperFigure], plain: float, where: str) -> Judge:
    """The order of the papers' ratios, and ours of perturbation at a client step's ratio."""
    paper = {method: one.value / plain for method, one in epochs.items() if one.value is not None}
    return compared(
        f"{where}: epoch over FedAvg's is below 4 for perturbation under masks, and every cipher costs more",
        {method: (row.name, f"{COSTED[method]}/epoch_ratio") for method in epochs},
        paper,
        lambda v: v["MP+DDP"] < 4 and all(v[name] > v["MP+DDP"] for name in ("TP-SMC", "HybridAlpha", "PILE")),
        why="Packing makes a sum of Paillier or of inner products a small part of an epoch of many steps",
    )


def table_1(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    return costs(("1",), scale)


def table_5(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    return costs(("5",), scale)


def table_2(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    """Reconstruction by the server."""
    priors: dict[str, Row] = {}
    figures = [f for f in figures_of(PAPER, "2+4") if f.dataset == "CIFAR10" and not f.metric.startswith("membership")]
    trained = systems_row(scale)
    rows = {trained.name: trained}
    cells: list[Cell] = []
    attacks: list[tuple[str, str, str, str]] = []
    for figure in figures:
        system = SYSTEMS[figure.method]
        row = upload_attacks(scale, system)
        rows[row.name] = row
        if figure.metric == "test_accuracy_%":
            cells.append(Cell(figure, trained.name, f"{system}/{ACCURACY}", PERCENT))
            attacks += inversions_of(figure.method, row.name)
        else:
            cells += attack_cells(figure, row.name, INVERSION, RECONSTRUCTIONS[figure.metric], value=True)
            if system in BY_PRIOR:
                prior = prior_attacks(scale, system)
                priors[prior.name] = prior
                called = replace(figure, method=f"{figure.method}, by a generative prior")
                cells += attack_cells(called, prior.name, PRIOR, RECONSTRUCTIONS[figure.metric], factor=1.0)
    ours = upload_attacks(scale, MASKED)
    rows[ours.name] = ours
    rows |= priors
    attacks += inversions_of("perturbation under masks (ours)", ours.name)
    opened = [
        (name, rows[f"uploads, {name}"].name, f"{OPENED}/adaptive", PSNR)
        for name in CIPHERS
        if f"uploads, {name}" in rows
    ]
    cells += [own_cell(figures[0], trained, lane, ACCURACY, PERCENT) for lane in (CONTROL, SEALED)]
    return Design(
        tuple(rows.values()),
        tuple(cells),
        _small_differs(),
        judges=(
            *_accuracies(trained),
            verdicts("Reconstruction by the server, PSNR in dB", attacks),
            verdicts("A server that asks for other sums than it should (ledger, line 19), PSNR in dB", opened),
        ),
        notes=(BARELY, _AS_READ, _SHORT_AUDIT) if scale == "quick" else (_AS_READ,),
        missing=("CIFAR-100 with ResNet-56, and reconstruction of batches under BatchNorm",),
        curves_of=(trained.name,),
    )


RECONSTRUCTIONS: Final = {
    "reconstruction_PSNR_dB": PSNR,
    "reconstruction_test_MSE": TEST_MSE,
    "reconstruction_feature_MSE": FEATURE_MSE,
}
_AS_READ: Final = (
    "The naive attacker takes an upload for a gradient; the adaptive one knows the protocol. P2's figures "
    "are of naive attackers, as far as it says"
)
_SHORT_AUDIT: Final = "Audits at the effort `smoke`: few images and seeds, which prove little either way"


def _small_differs() -> tuple[Differs, ...]:
    return (
        Differs("data and network", "CIFAR-10 and ResNet-20", SMALL_SAID),
        Differs("loss", "cross entropy", "the squared error, for which P2's noise is defined"),
        Differs(
            "epsilon", f"{EPSILON:g}, of one round", f"{EPSILON:g}, of one round, as published: it is not composed"
        ),
        Differs(
            "reconstruction",
            "generative priors among others",
            "the audit's `gradient-inversion` on uploads of one sample",
        ),
    )


def _accuracies(trained: Row) -> tuple[Judge, ...]:
    trials = [trial_of(trained, ACCURACY)]
    return (
        equal_within_seed_noise(
            "Perturbation under masks equals FedSGD within seed noise (points)", trials, MASKED, PERCENT, DRIFT
        ),
        equal_within_seed_noise(
            "Sealed training equals FedSGD within seed noise (points)", trials, SEALED, PERCENT, DRIFT
        ),
        *(
            below(
                f"{name} loses accuracy to its noise, as in P2 (points)",
                [trained.name],
                ACCURACY,
                SYSTEMS[name],
                BASE,
                unit=PERCENT,
                why=SIX,
            )
            for name in ("TP-SMC", "HybridAlpha")
        ),
    )


def table_4(scale: Scale, data_dir: Path | None) -> Design:  # noqa: ARG001
    """Membership, by clients that are sent the model."""
    figures = [
        f
        for f in figures_of(PAPER, "2+4")
        if f.dataset == "CIFAR10" and f.metric in ("test_accuracy_%", "membership_ASR_%")
    ]
    trained = systems_row(scale)
    rows = {trained.name: trained}
    cells: list[Cell] = []
    attacked = MEMBERSHIPS if scale == "quick" else tuple(SYSTEMS.values())
    attacks: list[tuple[str, str, str, str]] = []
    for figure in figures:
        system = SYSTEMS[figure.method]
        if figure.metric == "test_accuracy_%":
            cells.append(Cell(figure, trained.name, f"{system}/{ACCURACY}", PERCENT))
        elif system in attacked:
            row = client_attacks(scale, system, "mse")
            rows[row.name] = row
            cells += attack_cells(figure, row.name, MEMBERSHIP, BALANCED, value=True, factor=PERCENT)
            attacks += [(f"{figure.method}, {way}", row.name, f"{MEMBERSHIP}/{way}", BALANCED) for way in WAYS]
        else:
            cells.append(Cell(figure, "", ""))
    left_out = [name for name, system in SYSTEMS.items() if system not in attacked]
    return Design(
        tuple(rows.values()),
        tuple(cells),
        (
            *_small_differs()[:3],
            Differs("attack", "on the last model", "six attacks of the audit on the last model; the best one"),
        ),
        judges=(verdicts("Membership by a client, balanced accuracy (chance 0.5)", attacks),),
        notes=(BARELY, _SHORT_AUDIT) if scale == "quick" else (),
        missing=(f"membership under {', '.join(left_out)}: trainings of hundreds of rounds under real keys (`--full`)",)
        if left_out
        else (),
    )


def table_3(scale: Scale, data_dir: Path | None) -> Design:
    """Breast cancer pictures, ResNet-11, five clients."""
    data = BREAKHIS.chosen(scale, data_dir)
    figures = [f for f in figures_of(PAPER, "3") if f.setting.startswith("K=5 ")]
    base = image_row(data, scale, "resnet-11", 5, "mse", ())
    assert isinstance(base.task, Training)
    trained = Row(
        f"{base.name}, P2",
        Training(
            base.task.settings,
            (MASKED,),
            base.task.seeds,
            {PUBLISHED: {"noise.mechanism": "published", "noise.epsilon": EPSILON}},
        ),
    )
    epoch = costs_row(scale, "resnet-11", 5)
    rows = {trained.name: trained, epoch.name: epoch}
    cells: list[Cell] = []
    for figure in figures:
        system = SYSTEMS[figure.method]
        if figure.metric == "test_accuracy_%":
            there = system in (BASE, PUBLISHED)
            cells.append(Cell(figure, trained.name if there else "", f"{system}/{ACCURACY}", PERCENT))
        elif figure.metric == "seconds_per_epoch":
            cells.append(Cell(figure, epoch.name, f"{COSTED[figure.method]}/seconds_per_epoch"))
        elif figure.metric == "reconstruction_PSNR_dB":
            row = upload_attacks(scale, system)
            rows[row.name] = row
            cells += attack_cells(figure, row.name, INVERSION, PSNR, value=True)
        elif system in MEMBERSHIPS:
            row = client_attacks(scale, system, "mse")
            rows[row.name] = row
            cells += attack_cells(figure, row.name, MEMBERSHIP, BALANCED, value=True, factor=PERCENT)
        else:
            cells.append(Cell(figure, "", ""))
    cells += [own_cell(figures[0], trained, lane, ACCURACY, PERCENT) for lane in (CONTROL,)]
    plain = next(f.value for f in figures if f.metric == "seconds_per_epoch" and f.method == "FedAvg") or 1.0
    epochs = {f.method: f for f in figures if f.metric == "seconds_per_epoch"}
    return Design(
        tuple(rows.values()),
        tuple(cells),
        (data.differs, *training_differs(scale, images=True), Differs("what is attacked", "this network", SMALL_SAID)),
        judges=(
            equal_within_seed_noise(
                "Perturbation under masks equals FedSGD within seed noise (points)",
                [trial_of(trained, ACCURACY)],
                MASKED,
                PERCENT,
                DRIFT,
            ),
            _epochs(epoch, epochs, plain, "ResNet-11"),
        ),
        notes=(SHORT, _AS_READ) if scale == "quick" else (_AS_READ,),
        missing=(
            "K=100: twenty times the training",
            "accuracy under real keys on this network, where P2 has 15 hours an epoch for PILE; `p2-2` has a small one",
        ),
        curves_of=(trained.name,),
    )


PUBLISHED_NOISES: Final = {"published": "MP+DDP", "mp-cdp": "MP-CDP", "mp-dp-naive": "MP-DP-Naive"}
OWN_NOISES: Final = {
    "sound": "sound noise under perturbation (ours)",
    "sound, model in the clear": "sound noise (ours)",
}


def figure_3(scale: Scale, data_dir: Path | None) -> Design:
    """Accuracy over epsilon; the paper's figures are in its picture alone."""
    data = BANK.chosen(scale, data_dir)
    quick = scale == "quick"
    is_bank = data.settings["data.name"] == BANK.name
    settings = {
        **(
            {"data.name": BANK.name, "data.options": {"task": "classification", "with_duration": True}}
            if is_bank
            else {"data.name": "breast-cancer"}
        ),
        "model.name": "mlp-3",
        "model.options": {"width": 32},
        "federation.clients": 10 if is_bank else 5,
        "training.rounds": 12 if quick else 100,
        "training.batch_size": 64 if is_bank else 16,
        "training.loss": "mse",
        "training.learning_rate": 0.1,
    }
    epsilons = (0.3, 3.0) if quick else (0.1, 0.3, 1.0, 3.0, 8.0)
    row = Row("accuracy over epsilon", Noise(settings, epsilons, (1,) if quick else (1, 2, 3), 1.0, 3.0))
    plain = PaperFigure(PAPER, "figure 3", "UBMD" if is_bank else "", "MLP-3", "FedAvg", "", "test_accuracy_%")
    cells = [Cell(plain, row.name, BASE, PERCENT)]
    for name, called in {**PUBLISHED_NOISES, **OWN_NOISES}.items():
        figures = [replace(plain, method=called, setting=f"epsilon={epsilon:g}") for epsilon in epsilons]
        cells += [Cell(one, row.name, f"{name}/{at:g}", PERCENT) for one, at in zip(figures, epsilons, strict=True)]
    last = epsilons[-1]
    return Design(
        (row,),
        tuple(cells),
        (
            Differs(
                "data and network",
                "CIFAR-10 and CIFAR-100, ResNets",
                "Bank Marketing with `duration`, MLP-3" if is_bank else "breast cancer, which is embedded, MLP-3",
            ),
            Differs("figures", "in a picture alone", "accuracies; compare shapes"),
            Differs("epsilon", "of one round", "of one round for P2's own; of the whole run for sound noise"),
        ),
        judges=(
            compared(
                f"At epsilon {last:g} MP+DDP is near MP-CDP (within 5 points), and MP-DP-Naive behind both",
                {called: (row.name, f"{name}/{last:g}") for name, called in PUBLISHED_NOISES.items()},
                {},
                lambda v: abs(v["MP+DDP"] - v["MP-CDP"]) < 0.05 and v["MP-DP-Naive"] <= max(v["MP+DDP"], v["MP-CDP"]),
                why="With ten clients, few rounds and one seed a single draw of noise decides much",
            ),
        ),
        notes=(
            "P2's epsilon is of one round and under conditions (decision 10); beside it: what whole runs add up to",
        ),
        curves_of=(row.name,),
    )


TABLES: Final = (
    Table("p2-1", PAPER, "Seconds of an epoch, server and client (table 1)", table_1),
    Table("p2-2", PAPER, "Accuracy, and reconstruction by the server (table 2)", table_2),
    Table("p2-3", PAPER, "Breast cancer pictures: accuracy, cost, attacks (table 3)", table_3, ("breakhis",)),
    Table("p2-4", PAPER, "Accuracy, and membership by clients (table 4)", table_4),
    Table("p2-5", PAPER, "Seconds of an epoch, by method and number of clients (table 5)", table_5),
    Table("p2-figure-3", PAPER, "Accuracy over epsilon (figure 3)", figure_3, ("bank-marketing",)),
)
