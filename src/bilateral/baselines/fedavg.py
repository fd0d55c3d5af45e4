"""Plain federated averaging of gradients, without any protection: the yardstick.

As in the papers (P0 eq. 3) a round is one gradient step on every client's batch, weighted by the clients' sample
counts. It speaks the same messages as the protections, so that both run in the same loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.errors import ProtocolError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.batch_check import check_batch
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.local_model import LocalModel
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate, RoundModel, Upload
from bilateral.protocols.perturb.settings import Loss

GUARANTEE = Guarantee(
    "fedavg",
    claims=(),
    leaks=(
        Leak("the whole model", "clients", 0),
        Leak("each client's gradient", "server", 0),
    ),
)


@dataclass(frozen=True)
class PlainModel(RoundModel):
    """The parameters as they are."""


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

    def __init__(
        self, name: str, model: nn.Module, graph: ScaleGraph, loss: Loss, *, channels_last: bool | None = None
    ) -> None:
        self.name = name
        self._model = LocalModel(model, graph, channels_last=channels_last)
        self._graph = graph
        self._loss = loss

    def train(self, message: PlainModel, inputs: Tensor, targets: Tensor, weight: int) -> Upload:
        message.expect_shape("the server", "parameters", (self._graph.num_parameters,))
        check_batch(self.name, inputs, targets, self._graph, self._loss)
        self._model.load(message.parameters)
        outputs = self._model.run(self.name, message.round_index, inputs)
        lost = F.cross_entropy(outputs, targets) if self._loss == "ce" else F.mse_loss(outputs, targets)
        trained = [p for p in self._model.parameters if p.requires_grad]
        found = dict(zip(trained, torch.autograd.grad(lost, trained, allow_unused=True), strict=True))
        parts = []
        for p in self._model.parameters:
            gradient = found.get(p)
            parts.append(torch.zeros(p.numel(), dtype=p.dtype) if gradient is None else gradient.reshape(-1))
        return Upload(message.round_index, weight, torch.cat(parts)[None], self._model.batch_statistics())

    def receive(self, message: Message) -> Upload:
        raise ProtocolError(f"{self.name} received {type(message).__name__}, but FedAvg has no exchange in a round.")
