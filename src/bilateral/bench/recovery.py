"""`bench recovery`: relative error of the recovered gradient against the float64 oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bilateral.bench.bed import CLASSES, Batch, make_batch, make_bed, make_model
from bilateral.bench.oracle import oracle_gradient, plain_gradient
from bilateral.learning.training import relative_difference
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.settings import Loss, Noise, PerturbationSettings

BATCH_SIZE = 8
LIMITS = {"float32": 5e-6, "float64": 1e-12}
_RESNET_VARIANTS: list[dict[str, Any]] = [
    {"batch_norm": norm, "shortcut": shortcut} for norm in (True, False) for shortcut in ("add", "concat")
]
NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("mlp-7", {}),
    ("lenet", {}),
    *[("resnet-20", options) for options in _RESNET_VARIANTS],
    *[("resnet-56", options) for options in _RESNET_VARIANTS],
    ("densenet", {"batch_norm": True}),
    ("densenet", {"batch_norm": False}),
]
LOSSES: tuple[Loss, ...] = ("mse", "ce")
NOISES: tuple[Noise, ...] = ("activation", "offset")
PARTITIONS = (1, 2, CLASSES)


def recovery(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """All networks x losses x noises x partitions x dtypes; `quick` leaves out the deep ones and partitions = 2."""
    networks = [n for n in NETWORKS if not (quick and n[0] == "resnet-56")]
    partitions = [m for m in PARTITIONS if not (quick and m == 2)]
    rows: list[dict[str, Any]] = []
    total = len(networks) * 2
    for number, (name, options) in enumerate(networks):
        for half, dtype in enumerate((torch.float32, torch.float64)):
            label = " ".join([name, *[f"{k}={v}" for k, v in options.items()], str(dtype).removeprefix("torch.")])
            progress(2 * number + half, total, label)
            rows += _network_rows(name, options, dtype, partitions)
    progress(total, total, "done")
    return rows


def _network_rows(
    name: str, options: dict[str, Any], dtype: torch.dtype, partitions: list[int]
) -> list[dict[str, Any]]:
    model = make_model(name, dtype, options)
    batch = make_batch(BATCH_SIZE, dtype)
    graph = ScaleGraph.of(model, batch.inputs)
    rows = []
    for loss in LOSSES:
        for noise in NOISES:
            for m in partitions:
                settings = PerturbationSettings(loss=loss, noise=noise, num_partitions=m)
                rows.append({"model": name, **_row(model, graph, settings, batch, options)})
    return rows


def _row(
    model: torch.nn.Module, graph: ScaleGraph, settings: PerturbationSettings, batch: Batch, options: dict[str, Any]
) -> dict[str, Any]:
    bed = make_bed(model, graph, settings, batch)
    recovered = bed.recovered(batch).gradient
    targets = batch.targets(settings.loss, CLASSES)
    eps = bed.server.effective_eps()
    true = oracle_gradient(model, graph, batch.inputs, targets, settings.loss, eps)
    own_eps = {name: torch.full_like(e, 1e-5) for name, e in eps.items()}
    unperturbed = oracle_gradient(model, graph, batch.inputs, targets, settings.loss, own_eps)
    plain = plain_gradient(model, graph, batch.inputs, targets, settings.loss)
    dtype = str(batch.inputs.dtype).removeprefix("torch.")
    error = relative_difference(recovered, true)
    return {
        "batch_norm": bool(options.get("batch_norm", False)),
        "shortcut": options.get("shortcut", ""),
        "loss": settings.loss,
        "noise": settings.noise,
        "partitions": settings.num_partitions,
        "dtype": dtype,
        "relative_error": error,
        "plain_relative_error": relative_difference(plain, unperturbed),
        "limit": LIMITS[dtype],
        "within_limit": error <= LIMITS[dtype],
    }
