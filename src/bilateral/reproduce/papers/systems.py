"""All systems on one small plan, with real keys: what P2's tables share, and the summary of them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bilateral.reproduce.papers.attack_rows import (
    INVERSION,
    MEMBERSHIP,
    MODEL_INVERSION,
    OPENED,
    PRIOR,
    SMALL,
    attack_row,
)
from bilateral.reproduce.papers.training_rows import MASKED, SEALED
from bilateral.reproduce.tables import Row, Scale
from bilateral.reproduce.tasks.costs import Costs
from bilateral.reproduce.tasks.training import BASE, Training

EPSILON: Final = 3.0
PUBLISHED: Final = "mp+ddp"
CENTRAL: Final = "mp-cdp at epsilon 3"
NOISES: Final[Mapping[str, Mapping[str, Any]]] = {
    PUBLISHED: {"noise.mechanism": "published", "noise.epsilon": EPSILON},
    CENTRAL: {"noise.mechanism": "mp-cdp", "noise.epsilon": EPSILON},
}
CIPHERS: Final = ("ckks", "tp-smc", "pile", "hybrid-alpha")
IN_THE_CLEAR: Final = ("ppdl", "spn", "dbcl", "gaussian")
LANES: Final = ("masks", MASKED, SEALED, *CIPHERS, *IN_THE_CLEAR)
BASE_SETTINGS: Final[Mapping[str, Any]] = {"data.name": "digits", "federation.clients": 5, "training.loss": "mse"}


BARELY: Final = (
    "Quick: all systems train for 8 rounds with the squared error, after which no model has learned much: accuracies "
    "say only whether systems train alike"
)


def systems_row(scale: Scale) -> Row:
    """Whole runs, everything encrypted that is to be: accuracy, seconds and bytes of the same rounds."""
    rounds = 8 if scale == "quick" else 150
    settings = {
        **BASE_SETTINGS,
        "model.name": "mlp-3",
        "model.options": {"width": 8},
        "training.rounds": rounds,
        "training.learning_rate": 0.2,
        "training.batch_size": 64,
        "training.evaluate_every": max(1, rounds // 10),
    }
    return Row("all systems on digits", Training(settings, LANES, (1, 2), NOISES))


def costs_row(scale: Scale, model: str, num_clients: int) -> Row:
    """An epoch of one of P2's networks."""
    quick = scale == "quick"
    batch, repeats = (8, 3) if quick else (256, 5)
    return Row(f"an epoch of {model}, K={num_clients}", Costs(model, num_clients, batch, 32, repeats))


SETTINGS_OF: Final[Mapping[str, Mapping[str, Any]]] = {
    BASE: {"protection": "fedavg", "aggregation.masks": "none"},
    "masks": {"protection": "masks"},
    MASKED: {},
    **{name: {"protection": name, "aggregation.masks": "none"} for name in (*CIPHERS, *IN_THE_CLEAR)},
    **NOISES,
}
"""A plan's settings of each system, but sealed training, whose audit is another one."""


def upload_attacks(scale: Scale, system: str) -> Row:
    """What a server reads: out of single uploads, and where sums are opened by others, out of what it asks them for."""
    settings = {**BASE_SETTINGS, **SMALL, **SETTINGS_OF[system]}
    experiments = (INVERSION, OPENED) if system in CIPHERS else (INVERSION,)
    return attack_row(f"uploads, {system}", settings, scale, experiments, shown=True)


def client_attacks(scale: Scale, system: str, loss: str = "ce") -> Row:
    """What a client reads out of the model that it is sent."""
    settings = {**BASE_SETTINGS, **SMALL, "training.loss": loss, **SETTINGS_OF[system]}
    return attack_row(f"clients, {system}, {loss}", settings, scale, (MEMBERSHIP,))


def inversion_of_model(scale: Scale, system: str) -> Row:
    """What a client learns of what a class looks like."""
    settings = {**BASE_SETTINGS, **SMALL, "training.loss": "ce", **SETTINGS_OF[system]}
    return attack_row(f"model inversion, {system}", settings, scale, (MODEL_INVERSION,))


def prior_attacks(scale: Scale, system: str) -> Row:
    """What a server reads that knows what images look like (GIAS, GIFD), as P2's does."""
    settings = {**BASE_SETTINGS, **SMALL, **SETTINGS_OF[system]}
    return attack_row(f"uploads by a generative prior, {system}", settings, scale, (PRIOR,), shown=True)
