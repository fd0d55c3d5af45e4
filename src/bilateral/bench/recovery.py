"""`bench recovery`: relative error of the recovered gradient against plain autograd in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bilateral.bench.bed import CLASSES, EXCHANGES, Batch, make_batch, make_bed, make_model, shown_softmax
from bilateral.bench.gates import ImposeGates, RecordGates
from bilateral.bench.oracle import oracle_gradient, plain_gradient
from bilateral.learning.training import relative_difference
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import aggregate
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
NOISES: tuple[Noise, ...] = ("activation", "offset")
PARTITIONS = (1, 2, CLASSES)


def measure_recovery(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """All networks x exchanges x noises x partitions x dtypes; `quick` leaves out the deep ones and partitions = 2."""
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
    for loss, softmax in EXCHANGES:
        plain, plain_gated = _plain_errors(model, graph, loss, batch)
        for noise in NOISES:
            for m in partitions:
                settings = PerturbationSettings(loss=loss, noise=noise, num_partitions=m, softmax=softmax)
                rows.append(
                    {
                        "model": name,
                        **_row(model, graph, settings, batch, options),
                        "plain_relative_error": plain,
                        "plain_relative_error_same_gates": plain_gated,
                    }
                )
    return rows


def _row(
    model: torch.nn.Module, graph: ScaleGraph, settings: PerturbationSettings, batch: Batch, options: dict[str, Any]
) -> dict[str, Any]:
    dtype = str(batch.inputs.dtype).removeprefix("torch.")
    targets = batch.targets(settings.loss, CLASSES)
    bed = make_bed(model, graph, settings, batch)
    recovered = bed.recovered(batch).gradient
    true = oracle_gradient(model, graph, batch.inputs, targets, settings.loss)
    error = relative_difference(recovered, true)
    gated, num_flipped = _error_with_the_clients_gates(model, graph, settings, batch)
    return {
        "batch_norm": bool(options.get("batch_norm", False)),
        "shortcut": options.get("shortcut", ""),
        "loss": settings.loss,
        "softmax": shown_softmax(settings),
        "noise": settings.noise,
        "partitions": settings.num_partitions,
        "dtype": dtype,
        "relative_error": error,
        "relative_error_same_gates": gated,
        "flipped_gates": num_flipped,
        "limit": LIMITS[dtype],
        "within_limit": error <= LIMITS[dtype],
        "within_limit_same_gates": gated <= LIMITS[dtype],
    }


def _error_with_the_clients_gates(
    model: torch.nn.Module, graph: ScaleGraph, settings: PerturbationSettings, batch: Batch
) -> tuple[float, int]:
    """The error against an oracle whose ReLUs are open where the client's are, and how many that changes.

    Channels keep their places here, so that the client's gates are in the oracle's order.
    """
    bed = make_bed(model, graph, replace(settings, permute=False), batch, seed=1)
    opening = bed.server.start_round(0)
    with RecordGates() as recorded:
        upload = bed.client_step(opening, batch)
    recovered = bed.server.recover(aggregate({"bench": upload}, 0)).gradient
    targets = batch.targets(settings.loss, CLASSES)
    with ImposeGates(recorded.gates) as imposed:
        true = oracle_gradient(model, graph, batch.inputs, targets, settings.loss)
    return relative_difference(recovered, true), imposed.num_flipped


def _plain_errors(model: torch.nn.Module, graph: ScaleGraph, loss: Loss, batch: Batch) -> tuple[float, float]:
    """What ordinary autograd in this dtype reaches without any protection, against the same oracle."""
    targets = batch.targets(loss, CLASSES)
    with RecordGates() as recorded:
        plain = plain_gradient(copy.deepcopy(model), graph, batch.inputs, targets, loss)
    true = oracle_gradient(model, graph, batch.inputs, targets, loss)
    with ImposeGates(recorded.gates):
        gated = oracle_gradient(model, graph, batch.inputs, targets, loss)
    return relative_difference(plain, true), relative_difference(plain, gated)
