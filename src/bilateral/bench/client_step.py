"""`bench client-step`: a client's step on a perturbed model over a plain step on the same batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bilateral.baselines.fedavg import FedAvgClient, FedAvgServer
from bilateral.bench.bed import CLASSES, make_batch, make_bed, make_model
from bilateral.bench.clock import alternate, ratio_row
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.scheme import term_names
from bilateral.protocols.perturb.settings import Loss, Noise, PerturbationSettings

BATCH_SIZE = 32
NETWORKS: list[tuple[str, dict[str, Any]]] = [("resnet-20", {"batch_norm": False}), ("resnet-20", {"batch_norm": True})]


def client_step(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """ResNet-20, batch 32, one partition: both losses and noises, against FedAvg's client on the same batch."""
    repeats = 5 if quick else 15
    rows: list[dict[str, Any]] = []
    for number, (name, options) in enumerate(NETWORKS):
        progress(number, len(NETWORKS), f"{name} {options}")
        rows += _network_rows(name, options, repeats)
    progress(len(NETWORKS), len(NETWORKS), "done")
    return rows


def _network_rows(name: str, options: dict[str, Any], repeats: int) -> list[dict[str, Any]]:
    model = make_model(name, torch.float32, options)
    batch = make_batch(BATCH_SIZE, torch.float32)
    graph = ScaleGraph.of(model, batch.inputs)
    rows = []
    for loss in ("mse", "ce"):
        actions, settings_of = _actions(model, graph, batch, loss)
        seconds = alternate(actions, repeats)
        for action, settings in settings_of.items():
            rows.append(
                {
                    "model": name,
                    "batch_norm": bool(options.get("batch_norm", False)),
                    "loss": loss,
                    "noise": settings.noise,
                    "partitions": settings.num_partitions,
                    "batch_size": BATCH_SIZE,
                    "backward_passes": len(term_names(settings)),
                    "bound_by_counting_passes": (1 + 2 * len(term_names(settings))) / 3,
                    **ratio_row(seconds[action], seconds["plain"]),
                }
            )
    return rows


def _actions(
    model: torch.nn.Module, graph: ScaleGraph, batch: Any, loss: Loss
) -> tuple[dict[str, Callable[[], object]], dict[str, PerturbationSettings]]:
    """The plain step and the step under each noise, all with messages made beforehand."""
    targets = batch.targets(loss, CLASSES)
    plain_client = FedAvgClient("plain", model, graph, loss)
    plain_model = FedAvgServer(model, graph).start_round(0)
    actions: dict[str, Callable[[], object]] = {
        "plain": lambda: plain_client.train(plain_model, batch.inputs, targets, BATCH_SIZE)
    }
    settings_of: dict[str, PerturbationSettings] = {}
    noises: tuple[Noise, ...] = ("activation", "offset")
    for noise in noises:
        settings = PerturbationSettings(loss=loss, noise=noise, num_partitions=1)
        bed = make_bed(model, graph, settings, batch)
        opening = bed.server.start_round(0)
        actions[noise] = lambda bed=bed, opening=opening: bed.client_step(opening, batch)  # type: ignore[misc]
        settings_of[noise] = settings
    return actions, settings_of
