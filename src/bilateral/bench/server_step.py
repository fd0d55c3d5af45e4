"""`bench server-step`: perturbing a model and recovering a gradient, as a share of one client step."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bilateral.bench.bed import make_batch, make_bed, make_model, shown_softmax
from bilateral.bench.clock import alternate
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb.server import CALIBRATE_EVERY
from bilateral.protocols.perturb.settings import Loss, Noise, PerturbationSettings

BATCH_SIZE = 32


def measure_server_step(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """ResNet-20, batch 32, one and ten partitions; a client step beside every server step."""
    cases: list[tuple[Loss, Noise, int]] = [
        ("mse", "activation", 1),
        ("mse", "offset", 1),
        ("ce", "activation", 1),
        ("ce", "offset", 1),
        ("mse", "activation", 10),
    ]
    rows = []
    for number, (loss, noise, partitions) in enumerate(cases):
        progress(number, len(cases), f"resnet-20 {loss} {noise} m={partitions}")
        rows.append(_row(loss, noise, partitions, repeats=5 if quick else 10))
    progress(len(cases), len(cases), "done")
    return rows


def _row(loss: Loss, noise: Noise, partitions: int, repeats: int) -> dict[str, Any]:
    model = make_model("resnet-20", torch.float32, {"batch_norm": True})
    batch = make_batch(BATCH_SIZE, torch.float32)
    graph = ScaleGraph.of(model, batch.inputs)
    settings = PerturbationSettings(loss=loss, noise=noise, num_partitions=partitions)
    bed = make_bed(model, graph, settings, batch)
    upload = bed.client_step(bed.server.start_round(0), batch)
    total = aggregate({"bench": upload}, 0)
    rounds = iter(range(1, 10**9))

    def serve() -> None:
        # Whole multiples of the calibration interval, so that its forward pass is counted with its true share.
        for _ in range(CALIBRATE_EVERY):
            round_index = next(rounds)
            bed.server.start_round(round_index)
            bed.server.recover(replace(total, round_index=round_index))

    probe = make_bed(model, graph, settings, batch)
    opening = probe.server.start_round(0)
    seconds = alternate(
        {
            "client": lambda: probe.client_step(opening, batch),
            "server": serve,
        },
        repeats,
    )
    share = statistics.median(
        s / CALIBRATE_EVERY / c for s, c in zip(seconds["server"], seconds["client"], strict=True)
    )
    return {
        "model": "resnet-20",
        "loss": loss,
        "softmax": shown_softmax(settings),
        "noise": noise,
        "partitions": partitions,
        "batch_size": BATCH_SIZE,
        "share_of_client_step": share,
    }
