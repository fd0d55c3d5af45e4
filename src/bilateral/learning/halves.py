"""What a protection must offer to be trained with: a server's half and a client's half."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from bilateral.learning.exchange import Exchange, Packet
from bilateral.models.layout import ModelLayout
from bilateral.protocols.mask.messages import MaskOpening, Roster
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate, Upload
from bilateral.protocols.objective import Objective
from bilateral.protocols.perturb.recovery_trial import RecoveryReport


class ServerHalf(Protocol):
    """Sends a model, may answer a question in between, and turns the sum of the uploads into a gradient."""

    def start_round(self, round_index: int) -> Message: ...

    def answer(self, sender: str, message: Any) -> Message: ...

    def recover(self, total: Aggregate) -> RecoveredUpdate: ...

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must keep so that later rounds are the same after a restart."""
        ...

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class OpenedRound:
    """A round as its clients were told of it: they know what depends on this as well as the server does."""

    roster: Roster
    opening: MaskOpening

    @property
    def round_index(self) -> int:
        return self.opening.round_index


@dataclass(frozen=True)
class Preparation:
    """What a round's model needs before it goes down.

    `packets`: for each client that goes on, the messages that precede the model. `incidents`: (client, why) of those
    that cannot, or are why others cannot.
    """

    packets: Mapping[str, Packet]
    incidents: tuple[tuple[str, str], ...] = ()


@runtime_checkable
class PreparingHalf(Protocol):
    """A server's half with something to do in a round before its model is sent, which may take exchanges of its own.

    It needs masks: they say who is in the round.
    """

    def prepare(self, opened: OpenedRound, names: tuple[str, ...], exchange: Exchange) -> Preparation:
        """Called between the opening of a round and its model, with the clients that are still there."""
        ...

    def expect_finished(self, sender: str) -> None:
        """A `ProtocolError` for an upload that comes before its time: the upload is refused, and nothing else."""
        ...


class GradientCheck(Protocol):
    """Tries before the first round whether what will be recovered is the gradient of plain training."""

    def run(self, model: nn.Module) -> RecoveryReport:
        """Raises `RecoveryError` if not. Changes nothing."""
        ...


@runtime_checkable
class LocalHalf(Protocol):
    """A client's half that takes steps of its own on several batches."""

    def train_locally(self, message: Any, batches: Iterable[tuple[Tensor, Tensor]], weight: int) -> Upload: ...


@runtime_checkable
class WeighedHalf(Protocol):
    """A client's half whose loss may have class weights that follow from counts of all clients."""

    objective: Objective
    layout: ModelLayout


class ClientHalf(Protocol):
    """Trains on what it is sent; returns its upload, or a question whose answer leads to the upload."""

    name: str

    def train(self, message: Any, inputs: Tensor, targets: Tensor, weight: int) -> Message: ...

    def receive(self, message: Any) -> Message | None:
        """What comes besides the model; None has no answer, and what follows in the packet is taken."""
        ...
