"""One federated training: a server's model, its optimiser, a protection, and the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.errors import NumericalRangeError
from bilateral.learning.client import TrainingClient
from bilateral.learning.halves import ServerHalf
from bilateral.learning.optimiser import ServerOptimiser
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Message, Upload, aggregate
from bilateral.protocols.statistics import update_running_statistics

SERVER = "server"
Record = Callable[[int, str, str, Message], None]
"""Called with (round, sender, receiver, message) for everything that is sent."""


@dataclass
class Training:
    """The server's side of a run and its clients. `advance` runs one round."""

    protection: str
    model: nn.Module
    graph: ScaleGraph
    server: ServerHalf
    clients: Sequence[TrainingClient]
    optimiser: ServerOptimiser
    num_rounds: int
    guarantee: Guarantee

    def advance(self, round_index: int, participants: Sequence[int], record: Record) -> None:
        """One round; the model changes only after every upload has been checked.

        1. the server sends the round's model to the participants
        2. each client trains; with cross entropy it asks the server once in between
        3. the server sums the uploads, recovers the gradient and takes a step
        """
        opening = self.server.start_round(round_index)
        uploads: dict[str, Upload] = {}
        for index in participants:
            client = self.clients[index]
            record(round_index, SERVER, client.name, opening)
            reply = client.begin(opening, round_index)
            record(round_index, client.name, SERVER, reply)
            if not isinstance(reply, Upload):
                answer = self.server.answer(client.name, reply)
                record(round_index, SERVER, client.name, answer)
                reply = client.resume(answer)
                record(round_index, client.name, SERVER, reply)
            uploads[client.name] = reply
        update = self.server.recover(aggregate(uploads, round_index))
        if not bool(torch.isfinite(update.gradient).all()):
            raise NumericalRangeError(
                f"The aggregated gradient of round {round_index} holds NaN or infinite values.",
                remedy="Lower the learning rate; the last checkpoint is from before.",
            )
        self.optimiser.step(update.gradient, round_index, self.num_rounds)
        update_running_statistics(self.model, self.graph, update.statistics)
        if not bool(torch.isfinite(self.weights()).all()):
            raise NumericalRangeError(
                f"The model's weights became NaN or infinite in round {round_index}.",
                remedy="Lower the learning rate, and resume or start anew: the last checkpoint is from before.",
            )

    def weights(self) -> Tensor:
        """All parameters as one float64 vector."""
        return self.graph.flatten(dict(self.model.named_parameters()), torch.float64)

    def predict(self, inputs: Tensor) -> Tensor:
        """The true model in evaluation mode."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                result: Tensor = self.model(inputs)
        finally:
            self.model.train(was_training)
        return result


def relative_difference(weights: Tensor, reference: Tensor) -> float:
    """|weights - reference| / |reference| in the Euclidean norm."""
    return float((weights - reference).norm() / reference.norm().clamp_min(1e-300))
