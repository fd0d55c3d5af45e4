"""What a protection must offer to be trained with: a server's half and a client's half."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate, Upload


class ServerHalf(Protocol):
    """Sends a model, may answer a question in between, and turns the sum of the uploads into a gradient."""

    def start_round(self, round_index: int) -> Message: ...

    def answer(self, sender: str, message: Any) -> Message: ...

    def recover(self, total: Aggregate) -> RecoveredUpdate: ...

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must keep so that later rounds are the same after a restart."""
        ...

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None: ...


class ClientHalf(Protocol):
    """Trains on what it is sent; returns its upload, or a question whose answer leads to the upload."""

    name: str

    def train(self, message: Any, inputs: Tensor, targets: Tensor, weight: int) -> Message: ...

    def receive(self, message: Any) -> Upload: ...
