"""A server and a client around one network and one batch: what the benchmarks measure on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.messages import Message, RecoveredUpdate, Upload, aggregate
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.messages import SoftmaxQuery
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import Loss, PerturbationSettings, Softmax
from bilateral.randomness import SeededRandomness

IMAGE = (3, 32, 32)
CLASSES = 10
EXCHANGES: tuple[tuple[Loss, Softmax], ...] = (("mse", "local"), ("ce", "local"), ("ce", "blinded"))
"""Losses, and for cross entropy how the softmax is exchanged; MSE has no exchange."""


def shown_softmax(settings: PerturbationSettings) -> str:
    """For a row of a table."""
    return settings.softmax if settings.loss == "ce" else ""


@dataclass(frozen=True)
class Batch:
    """Standard normal images with random labels."""

    inputs: Tensor
    labels: Tensor

    def targets(self, loss: Loss, num_outputs: int) -> Tensor:
        if loss == "ce":
            return self.labels
        return F.one_hot(self.labels, num_outputs).to(self.inputs.dtype)


def make_batch(size: int, dtype: torch.dtype, shape: tuple[int, ...] = IMAGE, seed: int = 0) -> Batch:
    randomness = SeededRandomness(seed, "bench batch")
    inputs = randomness.normal(size, *shape).to(dtype)
    labels = torch.tensor([randomness.integer_below(CLASSES) for _ in range(size)])
    return Batch(inputs, labels)


@dataclass
class Bed:
    """Both halves of perturbation around one model."""

    model: nn.Module
    graph: ScaleGraph
    settings: PerturbationSettings
    server: PerturbServer
    client: PerturbClient
    num_queries: int = 0

    def client_step(self, opening: Any, batch: Batch) -> Upload:
        """A whole client step, the server's answer included."""
        targets = batch.targets(self.settings.loss, self.graph.num_outputs)
        reply: Message = self.client.train(opening, batch.inputs, targets, len(batch.labels))
        if isinstance(reply, SoftmaxQuery):
            self.num_queries += 1  # a server answers a client once a round; here each step is another client
            return self.client.receive(self.server.answer(f"bench-{self.num_queries}", reply))
        assert isinstance(reply, Upload)
        return reply

    def recovered(self, batch: Batch, round_index: int = 0) -> RecoveredUpdate:
        upload = self.client_step(self.server.start_round(round_index), batch)
        return self.server.recover(aggregate({"bench": upload}, round_index))


def make_model(name: str, dtype: torch.dtype, options: dict[str, Any], shape: tuple[int, ...] = IMAGE) -> nn.Module:
    return build_model(name, input_shape=shape, num_outputs=CLASSES, seed=0, **options).to(dtype)


def make_bed(
    model: nn.Module,
    graph: ScaleGraph,
    settings: PerturbationSettings,
    batch: Batch,
    seed: int = 0,
    channels_last: bool | None = None,
) -> Bed:
    server = PerturbServer(model, graph, settings, SeededRandomness(seed, "server"), batch.inputs[:4])
    client = PerturbClient(
        "bench", model, graph, settings, SeededRandomness(seed, "client"), channels_last=channels_last
    )
    return Bed(model, graph, settings, server, client)
