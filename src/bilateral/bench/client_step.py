"""`bench client-step`: a client's step on a perturbed model over a plain step on the same batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bilateral.bench.bed import CLASSES, EXCHANGES, Batch, make_batch, make_bed, make_model, shown_softmax
from bilateral.bench.clock import alternate, ratio_row
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protocols.local_model import prefers_channels_last
from bilateral.protocols.perturb.scheme import term_names
from bilateral.protocols.perturb.settings import Loss, Noise, PerturbationSettings, Softmax

BATCH_SIZE = 32
NOISES: tuple[Noise, ...] = ("activation", "offset")
NETWORKS: list[tuple[str, dict[str, Any]]] = [("resnet-20", {"batch_norm": False}), ("resnet-20", {"batch_norm": True})]


def measure_client_step(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """ResNet-20, batch 32, one partition: both losses, exchanges and noises, against FedSGD's client on the same batch.

    Both sides in torch's default memory format, as anybody would run a plain step, and in channels-last, which our
    client chooses where that is safe and accurate.
    """
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
    for loss, softmax in EXCHANGES:
        actions, settings_of = _actions(model, graph, batch, loss, softmax)
        seconds = alternate(actions, repeats)
        for (noise, memory_format), settings in settings_of.items():
            for plain in ("default", "channels_last"):
                if plain == "channels_last" and memory_format == "default":
                    continue  # nobody would choose that
                rows.append(
                    {
                        "model": name,
                        "batch_norm": bool(options.get("batch_norm", False)),
                        "loss": loss,
                        "softmax": shown_softmax(settings),
                        "noise": noise,
                        "partitions": settings.num_partitions,
                        "batch_size": BATCH_SIZE,
                        "memory_format": memory_format,
                        "plain_memory_format": plain,
                        "chosen_by_auto": (memory_format == "channels_last") == prefers_channels_last(model),
                        "backward_passes": len(term_names(settings)),
                        "bound_by_counting_passes": (1 + 2 * len(term_names(settings))) / 3,
                        **ratio_row(seconds[f"{noise} {memory_format}"], seconds[f"plain {plain}"]),
                    }
                )
    return rows


def _actions(
    model: torch.nn.Module, graph: ScaleGraph, batch: Batch, loss: Loss, softmax: Softmax
) -> tuple[dict[str, Callable[[], object]], dict[tuple[Noise, str], PerturbationSettings]]:
    """Plain steps and steps under each noise, in both memory formats, with messages made beforehand."""
    targets = batch.targets(loss, CLASSES)
    plain_model = FedAvgServer(model, graph).start_round(0)
    actions: dict[str, Callable[[], object]] = {}
    settings_of: dict[tuple[Noise, str], PerturbationSettings] = {}
    for memory_format in ("default", "channels_last"):
        channels_last = memory_format == "channels_last"
        plain = FedAvgClient("plain", model, graph, loss, channels_last=channels_last)
        actions[f"plain {memory_format}"] = partial(plain.train, plain_model, batch.inputs, targets, BATCH_SIZE)
        for noise in NOISES:
            settings = PerturbationSettings(loss=loss, noise=noise, num_partitions=1, softmax=softmax)
            bed = make_bed(model, graph, settings, batch, channels_last=channels_last)
            actions[f"{noise} {memory_format}"] = partial(bed.client_step, bed.server.start_round(0), batch)
            settings_of[noise, memory_format] = settings
    return actions, settings_of
