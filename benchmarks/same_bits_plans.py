"""The plans that `same_bits.py` runs: small ones, so many that every protection, noise, mask and kind of run is in one.

Plans that are refused belong to them: what is refused, and in which words, is behaviour too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, Literal

Kind = Literal["run", "hetero", "audit", "command"]

SMALL: Final[dict[str, Any]] = {
    "data.name": "breast-cancer",
    "model.name": "mlp-3",
    "federation.clients": 3,
    "training.rounds": 2,
    "training.batch_size": 8,
    "training.evaluate_every": 1,
    "training.checkpoint_every": 1,
}
PICTURES: Final[dict[str, Any]] = {**SMALL, "data.name": "digits", "model.name": "lenet"}
RESIDUAL: Final[dict[str, Any]] = {**PICTURES, "model.name": "resnet-20", "model.options": {"batch_norm": True}}
NOISES: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "sound": {"noise.mechanism": "sound", "noise.epsilon": 50.0},
    "published": {"noise.mechanism": "published", "noise.epsilon": 3.0},
    "mp-cdp": {"noise.mechanism": "mp-cdp", "noise.epsilon": 3.0},
    "mp-dp-naive": {"noise.mechanism": "mp-dp-naive", "noise.epsilon": 3.0},
}
LOSSES: Final[dict[str, dict[str, Any]]] = {
    "mse": {"training.loss": "mse"},
    "ce": {"training.loss": "ce"},
    "ce-blinded": {"training.loss": "ce", "perturbation.softmax": "blinded"},
}
SOUND: Final = {**NOISES["sound"], **LOSSES["mse"]}
TEACHING: Final[dict[str, Any]] = {
    "clients.number": 3,
    "clients.architectures": [{"name": "mlp-3"}, {"name": "lenet"}],
    "data.samples_per_client": 60,
    "training.epochs": 2,
    "queries.number": 4,
    "retraining.epochs": 2,
    "answers": "plain",
}


@dataclass(frozen=True)
class Case:
    """One plan, and how it is run.

    `stop_after`: rounds (or stages) after which it is stopped, to be gone on with from its directory. `reference` None
    leaves plain FedSGD beside it to the plan. `words`: of the command line; `experiments`: of an audit.
    """

    name: str
    kind: Kind
    settings: dict[str, Any] = field(default_factory=dict)
    stop_after: int | None = None
    reference: bool | None = None
    experiments: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def all_cases() -> Iterator[Case]:
    """Everything that takes seconds."""
    yield from _grid()
    yield from _runs()
    yield from _hetero()
    yield from _audits()
    yield Case("command/run", "command", words=("run", *_options(SMALL)))
    yield Case("command/hetero", "command", words=("hetero", *_options(TEACHING)))


def flare_cases() -> Iterator[Case]:
    """Sites as processes of FLARE's simulator: half a minute each."""
    engine = ("--engine", "flare-sim")
    yield Case("flare/run", "command", words=("run", *engine, *_options(SMALL)))
    yield Case("flare/run-sound", "command", words=("run", *engine, *_options({**SMALL, **SOUND})))
    yield Case("flare/hetero", "command", words=("hetero", *engine, *_options({**TEACHING, "answers": "secure"})))


def _grid() -> Iterator[Case]:
    for protection, noise, masks, loss in product(
        ("fedavg", "perturbation"), NOISES, ("auto", "ring", "float", "none"), LOSSES
    ):
        settings = {"protection": protection, "aggregation.masks": masks, **NOISES[noise], **LOSSES[loss]}
        yield Case(f"grid/{protection}/{noise}/{masks}/{loss}", "run", {**SMALL, **settings}, reference=False)


def _runs() -> Iterator[Case]:
    longer = {"training.rounds": 4}
    for noise in ("activation", "offset"):
        for partitions in (1, 3):
            settings = {"perturbation.noise": noise, "perturbation.partitions": partitions}
            yield Case(f"lenet/{noise}/{partitions}", "run", {**PICTURES, **settings})
            yield Case(f"lenet-mse/{noise}/{partitions}", "run", {**PICTURES, **settings, **LOSSES["mse"]})
    yield Case("lenet/blinded/3", "run", {**PICTURES, **LOSSES["ce-blinded"], "perturbation.partitions": 3})
    yield Case("lenet/sound", "run", {**PICTURES, **SOUND})
    yield Case("lenet/published", "run", {**PICTURES, **NOISES["published"], **LOSSES["mse"]})
    for name, settings in {"exact": {}, "scaled": {"perturbation.norm_inputs": "scaled"}, "mse": LOSSES["mse"]}.items():
        yield Case(f"resnet/{name}", "run", {**RESIDUAL, **settings})
    yield Case("resnet/fedavg", "run", {**RESIDUAL, "protection": "fedavg"})
    yield Case("resnet/sound", "run", {**RESIDUAL, **SOUND})
    yield Case("double", "run", {**SMALL, "training.dtype": "float64"})
    yield Case("adam", "run", {**SMALL, **longer, "training.optimiser": "adam"})
    yield Case("augmented", "run", {**PICTURES, "training.augment": True})
    yield Case("dirichlet", "run", {**SMALL, "federation.partition": "dirichlet"})
    yield Case("own-data", "run", {**SMALL, "federation.clients": None, "data.sites": {"north": {}, "south": {}}})
    yield Case("other-seed", "run", {**PICTURES, "federation.clients": 4, "seed": 7})
    sound = {**SMALL, **SOUND, "federation.clients": 6, "training.rounds": 4}
    yield Case("sound/client", "run", {**sound, "noise.unit": "client"})
    yield Case("sound/adaptive", "run", {**sound, "noise.unit": "client", "noise.adaptive_clip": True})
    yield Case("sound/colluders", "run", {**sound, "noise.colluders": 1})
    yield Case("sound/multiplier", "run", {**sound, "noise.epsilon": None, "noise.noise_multiplier": 1.0})
    yield Case("sound/beside-fedsgd", "run", sound, reference=True)
    few = {**SMALL, "federation.clients": 8, "federation.participation": 0.5, "training.rounds": 6}
    for name, settings in {"none": {}, "sound": SOUND, "float": {"aggregation.masks": "float"}}.items():
        yield Case(f"few/{name}", "run", {**few, **settings})
        yield Case(f"dropouts/{name}", "run", {**few, **settings, "federation.dropout": 0.3})
        yield Case(f"resumed/{name}", "run", {**few, **settings, "federation.dropout": 0.1}, stop_after=3)
    yield Case("sparse-graph", "run", {**few, "aggregation.graph": "n-out", "aggregation.neighbours": 3})
    yield Case("one-client", "run", {**SMALL, "federation.clients": 1})
    yield Case("resumed/lenet", "run", {**PICTURES, "training.rounds": 4}, stop_after=2)
    published = {**SMALL, **longer, **NOISES["published"], **LOSSES["mse"]}
    yield Case("resumed/published", "run", published, stop_after=2)


def _hetero() -> Iterator[Case]:
    yield Case("hetero/plain", "hetero", {**TEACHING, "iterations": 2})
    yield Case("hetero/resumed", "hetero", {**TEACHING, "iterations": 2}, stop_after=5)
    yield Case("hetero/secure", "hetero", {**TEACHING, "answers": "secure"})
    yield Case("hetero/secure-resumed", "hetero", {**TEACHING, "answers": "secure"}, stop_after=4)
    chosen = {"queries.pool": "cutmix", "queries.selection": "margin", "data.partition": "dirichlet"}
    yield Case("hetero/chosen", "hetero", {**TEACHING, **chosen})
    yield Case("hetero/refused", "hetero", {**TEACHING, "answers": "secure", "clients.number": 2})


def _audits() -> Iterator[Case]:
    """Quick experiments; what whole audits find is compared by running the stored ones again."""
    yield Case("audit/ring", "audit", SMALL, experiments=("presence", "sizes-from-refusals"))
    yield Case("audit/terms", "audit", {**SMALL, "aggregation.masks": "none"}, experiments=("upload-terms",))


def _options(settings: dict[str, Any]) -> Iterator[str]:
    """As `--set` takes them: TOML, in which a list of tables is written in braces."""
    for key, value in settings.items():
        yield from ("--set", f"{key}={_toml(value)}")


def _toml(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(_toml(one) for one in value) + "]"
        case str():
            return f'"{value}"'
        case _:
            return str(value).lower() if isinstance(value, bool) else str(value)
