"""What an epoch costs under each system, relative to FedAvg's, all in one process and alternately.

A plain step, a perturbed one, and the server's work for it are measured whole. The cryptosystems of the baselines are
measured on a stated number of values and multiplied up; sums are made once an epoch, as the papers count, and steps are
of the batch that P2 has.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

import torch

from bilateral.bench.baselines import Workload, one_sum, sums_of_baselines
from bilateral.bench.bed import CLASSES, make_batch, make_bed, make_model
from bilateral.bench.clock import alternate
from bilateral.bench.masked_rounds import Shape, make_parties, one_round
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.messages import Upload, aggregate
from bilateral.protocols.perturb.scheme import term_names
from bilateral.protocols.perturb.settings import Loss, PerturbationSettings
from bilateral.randomness import SeededRandomness
from bilateral.reproduce.tables import Around, Measured

MASKED: Final = "perturbation+masks"
PLAIN: Final = "fedavg"
NEIGHBOURS: Final = 2
EPOCH_IMAGES: Final = 10_240
"""Of a client: what P2's forty batches of 256 have."""
_MOST_CLIENTS: Final = 10
"""Masks are measured among so many at most, with a fixed number of neighbours: a client's work depends on these."""


@dataclass(frozen=True)
class Costs:
    """Values are named `system/client_seconds`, `/server_seconds`, `/seconds_per_epoch`, `/epoch_ratio`, `/upload_MB`.

    `baselines`: whether the cryptosystems are measured too.
    """

    model: str
    num_clients: int
    batch_size: int = 256
    image: int = 32
    repeats: int = 3
    loss: Loss = "ce"
    baselines: bool = True

    def describe(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def pilot(self) -> tuple[Costs, float]:
        return replace(self, repeats=1, batch_size=min(32, self.batch_size), baselines=False), 2.0 * self.repeats

    def run(self, around: Around) -> Measured:
        around.note(f"{self.model}: steps")
        steps = self._steps()
        parameters = sum(p.numel() for p in self._model().parameters())
        plain, count = steps["plain"], EPOCH_IMAGES // self.batch_size
        values: dict[str, list[float | None]] = {}
        words: dict[str, str] = {}

        def tell(name: str, client: float, server: float, upload_bytes: float) -> None:
            total = client + server
            values.update(
                {
                    f"{name}/client_seconds": [client],
                    f"{name}/server_seconds": [server],
                    f"{name}/seconds_per_epoch": [total],
                    f"{name}/epoch_ratio": [total / (count * plain + steps["plain server"])],
                    f"{name}/upload_MB": [upload_bytes / 1e6],
                }
            )

        tell(PLAIN, count * plain, steps["plain server"], 4.0 * parameters)
        around.note(f"{self.model}: masks")
        terms = len(term_names(self._settings()))
        mask_client, mask_server = self._masks(parameters, terms)
        tell(
            MASKED,
            count * steps["perturbed"] + mask_client,
            steps["perturbed server"] + mask_server,
            4.0 * terms * parameters,
        )
        for one in sums_of_baselines(self.num_clients) if self.baselines else ():
            around.note(f"{self.model}: a sum under {one.protection}")
            row = a_sum(one.protection, self.num_clients)
            step = steps["perturbed"] if one.num_terms > 1 else plain
            tell(
                one.protection,
                count * step + parameters * row["client_seconds"],
                parameters * row["server_seconds"],
                parameters * row["upload_bytes"],
            )
            said = f"{one.sample:,} of {one.num_terms * parameters:,} values encrypted, multiplied up"
            words |= {
                f"{one.protection}/{what}": said
                for what in ("client_seconds", "server_seconds", "seconds_per_epoch", "epoch_ratio")
            }
        return Measured(values, words=words)

    def _model(self) -> torch.nn.Module:
        return make_model(self.model, torch.float32, {"batch_norm": True}, (3, self.image, self.image))

    def _settings(self) -> PerturbationSettings:
        return PerturbationSettings(loss=self.loss, noise="activation", num_partitions=1)

    def _steps(self) -> dict[str, float]:
        """Seconds of a client's step and of the server's part of a round, plain and perturbed, by turns."""
        model, batch = self._model(), make_batch(self.batch_size, torch.float32, (3, self.image, self.image))
        graph = ScaleGraph.of(model, batch.inputs[:4])
        opening = FedAvgServer(model, graph).start_round(0)
        client = FedAvgClient("plain", model, graph, self.loss)
        targets = batch.targets(self.loss, CLASSES)
        bed = make_bed(model, graph, self._settings(), batch)
        total = aggregate({"bench": bed.client_step(bed.server.start_round(0), batch)}, 0)
        rounds = iter(range(1, 10**9))
        weights = [p.detach().clone() for p in model.parameters()]
        step = [torch.randn_like(w) for w in weights]

        def serve() -> None:
            number = next(rounds)
            bed.server.start_round(number)
            bed.server.recover(replace(total, round_index=number))

        def serve_plainly() -> None:
            for one, change in zip(weights, step, strict=True):
                one.sub_(change, alpha=1e-9)

        seconds = alternate(
            {
                "plain": partial(client.train, opening, batch.inputs, targets, self.batch_size),
                "perturbed": partial(bed.client_step, bed.server.start_round(next(rounds)), batch),
                "plain server": serve_plainly,
                "perturbed server": serve,
            },
            self.repeats,
            warmup=1,
        )
        return {name: statistics.median(times) for name, times in seconds.items()}

    def _masks(self, parameters: int, terms: int) -> tuple[float, float]:
        """Seconds of a client and of the server for one masked sum, as `bench aggregation` counts them."""
        count = min(self.num_clients, _MOST_CLIENTS)
        parties = make_parties(count, MaskSettings("n-out", NEIGHBOURS))
        base = 0.01 * SeededRandomness(0, "reproduce uploads").normal(terms, parameters).float()
        uploads = {name: Upload(0, 100, base, torch.zeros(0)) for name in sorted(parties.clients)}
        rounds = [
            one_round(n, parties, uploads.__getitem__, Shape(terms, parameters), 0) for n in range(1 + self.repeats)
        ]
        client = statistics.median(s for one in rounds[1:] for s in one.clock.of_clients(sorted(parties.watched)))
        server = statistics.median(one.clock.seconds["server"] for one in rounds[1:])
        return client, server * self.num_clients / count


@cache
def a_sum(protection: str, num_clients: int) -> Mapping[str, Any]:
    """Seconds and bytes of a sum for each parameter. Networks differ in how many they have alone."""
    sums = {one.protection: one for one in sums_of_baselines(num_clients)}
    return one_sum(sums[protection], Workload("", 1, 1.0, 1, num_clients), 1)
