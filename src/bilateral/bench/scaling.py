"""`bench scaling`: how the cost of a round grows with parameters, partitions and clients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from bilateral.bench.bed import Batch, make_batch, make_bed, make_model
from bilateral.bench.clock import alternate
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb.settings import PerturbationSettings

WIDTHS = (256, 512, 1024, 2048)
PARTITIONS = (1, 2, 4, 8)
CLIENTS = (1, 2, 4, 8)
FEATURES = (512,)


def measure_scaling(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """Seconds of a whole round (perturb, client steps, recover) of an MLP, along each axis."""
    repeats = 3 if quick else 7
    axes: list[tuple[str, dict[int, Callable[[], object]]]] = []
    progress(0, 3, "parameters")
    axes.append(("parameters", dict(_round_of(width, 1, 1) for width in WIDTHS)))
    axes.append(("partitions", {m: _round_of(512, m, 1)[1] for m in PARTITIONS}))
    axes.append(("clients", {k: _round_of(512, 1, k)[1] for k in CLIENTS}))
    rows: list[dict[str, Any]] = []
    for number, (axis, actions) in enumerate(axes):
        progress(number, len(axes), axis)
        seconds = alternate({str(value): action for value, action in actions.items()}, repeats)
        medians = {value: statistics.median(seconds[str(value)]) for value in actions}
        slope = _slope(medians)
        rows += [{"axis": axis, "value": v, "seconds": s, "log_log_slope": slope} for v, s in medians.items()]
    progress(len(axes), len(axes), "done")
    return rows


def _round_of(width: int, partitions: int, num_clients: int) -> tuple[int, Callable[[], object]]:
    """(number of parameters, a function that runs one round)."""
    model = make_model("mlp-5", torch.float32, {"width": width}, FEATURES)
    batch: Batch = make_batch(64, torch.float32, FEATURES)
    graph = ScaleGraph.of(model, batch.inputs)
    settings = PerturbationSettings(loss="mse", noise="activation", num_partitions=partitions)
    bed = make_bed(model, graph, settings, batch)

    def one_round() -> None:
        opening = bed.server.start_round(0)
        uploads = {f"client-{k}": bed.client_step(opening, batch) for k in range(num_clients)}
        bed.server.recover(aggregate(uploads, 0))

    return graph.num_parameters, one_round


def _slope(seconds: dict[int, float]) -> float:
    """Least-squares slope of log seconds over log value: 1 is linear, below 1 has a fixed part."""
    xs = [math.log(v) for v in seconds]
    ys = [math.log(s) for s in seconds.values()]
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)
