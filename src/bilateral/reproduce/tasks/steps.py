"""A client's step and the server's part of a round, taken to pieces as P0's table V does."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from bilateral.bench.bed import CLASSES, make_batch, make_bed, make_model
from bilateral.bench.clock import alternate
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.reproduce.tables import Around, Measured

ITERATIONS: Final = 250


@dataclass(frozen=True)
class Steps:
    """Values are named `fedavg/client forward` and so on, in seconds of `ITERATIONS` rounds, and `/up`, `/down` in MB.

    A forward pass is measured by itself; a backward one is the rest of the step.
    """

    model: str
    image: int
    batch_size: int
    repeats: int

    def describe(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def pilot(self) -> tuple[Steps, float]:
        return replace(self, repeats=1), (self.repeats + 1) / 2

    def run(self, around: Around) -> Measured:
        around.note(f"{self.model} on {self.image}x{self.image}")
        shape = (3, self.image, self.image)
        model, batch = (
            make_model(self.model, torch.float32, {"batch_norm": True}, shape),
            make_batch(self.batch_size, torch.float32, shape),
        )
        graph = ScaleGraph.of(model, batch.inputs[:2])
        settings = PerturbationSettings(loss="mse", noise="activation", num_partitions=1)
        bed = make_bed(model, graph, settings, batch)
        plain_server = FedAvgServer(model, graph)
        opening, plain_opening = bed.server.start_round(0), plain_server.start_round(0)
        client = FedAvgClient("plain", model, graph, "mse")
        targets = batch.targets("mse", CLASSES)
        upload = bed.client_step(opening, batch)
        plain_upload = client.train(plain_opening, batch.inputs, targets, self.batch_size)
        total = aggregate({"bench": upload}, 0)
        rounds = iter(range(1, 10**9))

        def forward() -> None:
            with torch.enable_grad():
                model.train()(batch.inputs)

        def recover(number: int) -> None:
            bed.server.recover(replace(total, round_index=number))

        seconds = alternate(
            {
                "forward": forward,
                "plain": partial(client.train, plain_opening, batch.inputs, targets, self.batch_size),
                "perturbed": partial(bed.client_step, opening, batch),
                "perturb": lambda: bed.server.start_round(next(rounds)),
                "both": lambda: recover(_opened(bed.server, next(rounds))),
            },
            self.repeats,
            warmup=1,
        )
        of = {name: ITERATIONS * statistics.median(times) for name, times in seconds.items()}
        values: dict[str, list[float | None]] = {
            "fedavg/client forward": [of["forward"]],
            "fedavg/client backward": [of["plain"] - of["forward"]],
            "fedavg/client total": [of["plain"]],
            "perturbation/client forward": [of["forward"]],
            "perturbation/client backward": [of["perturbed"] - of["forward"]],
            "perturbation/client total": [of["perturbed"]],
            "perturbation/server perturb": [of["perturb"]],
            "perturbation/server update": [max(0.0, of["both"] - of["perturb"])],
            "perturbation/server total": [of["both"]],
            "perturbation/client ratio": [of["perturbed"] / of["plain"]],
            "fedavg/up": [_megabytes(plain_upload)],
            "fedavg/down": [_megabytes(plain_opening)],
            "perturbation/up": [_megabytes(upload)],
            "perturbation/down": [_megabytes(opening)],
        }
        return Measured(values)


def _opened(server: Any, number: int) -> int:
    server.start_round(number)
    return number


def _megabytes(message: Any) -> float:
    return float(message.num_bytes) / 1e6
