"""Plain federated averaging of gradients, without any protection: the yardstick.

As in the papers (P0 eq. 3) a round is one gradient step on every client's batch, weighted by the clients' sample
counts. It speaks the same messages as the protections, so that both run in the same loop.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.errors import NumericalRangeError, ProtocolError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.batch_check import check_batch
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate, Upload
from bilateral.protocols.perturb.settings import Loss
from bilateral.protocols.perturb.statistics import batch_statistics, collect_batch_statistics

GUARANTEE = Guarantee(
    "fedavg",
    claims=(),
    leaks=(
        Leak("the whole model", "clients", 0),
        Leak("each client's gradient", "server", 0),
    ),
)


@dataclass(frozen=True)
class PlainModel(Message):
    """The parameters of one round as a flat vector."""

    round_index: int
    parameters: Tensor


class FedAvgServer:
    """Sends the model as it is and averages what comes back."""

    def __init__(self, model: nn.Module, graph: ScaleGraph) -> None:
        self._model = model
        self._graph = graph
        self._dtype = next(iter(model.parameters())).dtype

    def start_round(self, round_index: int) -> PlainModel:
        return PlainModel(round_index, self._graph.flatten(dict(self._model.named_parameters()), self._dtype))

    def answer(self, sender: str, message: Message) -> Message:
        raise ProtocolError(f"{sender} sent {type(message).__name__}, but FedAvg has no exchange inside a round.")

    def recover(self, total: Aggregate) -> RecoveredUpdate:
        return RecoveredUpdate(total.terms[0] / total.total_weight, total.statistics / total.total_weight)


    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """FedAvg keeps nothing between rounds but the model."""


class FedAvgClient:
    """Computes the gradient of its batch."""

    def __init__(self, name: str, model: nn.Module, graph: ScaleGraph, loss: Loss) -> None:
        self.name = name
        self._model = copy.deepcopy(model).train()
        collect_batch_statistics(self._model)
        self._graph = graph
        self._loss = loss
        own = dict(self._model.named_parameters())
        self._parameters = [own[p.name] for p in graph.parameters]

    def train(self, message: PlainModel, inputs: Tensor, targets: Tensor, weight: int) -> Upload:
        message.expect_shape("the server", "parameters", (self._graph.num_parameters,))
        check_batch(self.name, inputs, targets, self._graph, self._loss)
        values = self._graph.unflatten(message.parameters)
        with torch.no_grad():
            for layout, parameter in zip(self._graph.parameters, self._parameters, strict=True):
                parameter.copy_(values[layout.name])
        outputs = self._model(inputs)
        if not bool(torch.isfinite(outputs).all()):
            raise NumericalRangeError(
                f"{self.name}: the model's outputs are NaN or infinite in round {message.round_index}.",
                remedy="Check the inputs, or lower the learning rate.",
            )
        lost = F.cross_entropy(outputs, targets) if self._loss == "ce" else F.mse_loss(outputs, targets)
        trained = [p for p in self._parameters if p.requires_grad]
        found = dict(zip(trained, torch.autograd.grad(lost, trained, allow_unused=True), strict=True))
        gradients = [found.get(p) for p in self._parameters]
        flat = torch.cat(
            [
                torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1)
                for p, g in zip(self._parameters, gradients, strict=True)
            ]
        )
        return Upload(message.round_index, weight, flat[None], batch_statistics(self._model, self._graph))

    def receive(self, message: Message) -> Upload:
        raise ProtocolError(f"{self.name} received {type(message).__name__}, but FedAvg has no exchange in a round.")
