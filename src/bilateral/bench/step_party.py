"""The client or the dealer of `bench sealed-step`, in a process of its own (`party`).

Everything passes through the server, as in a run:

| phase | from | to | message |
|---|---|---|---|
| dealing | server | dealer | `DealOrder` |
| dealing | dealer | server | `DealtForStep`: the seed it has with the server, and a sealed box for the client |
| dealing | server | client | `BoxDelivery` |
| preparing | server | client | `MaskedWeights`, and a seed that the dealer does not know |
| step | server, client | each other | `StepTurn` |

`StepTaken` answers what needs no other answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from bilateral.bench.gate_clock import BOX, LINEAR, REST, GateClock
from bilateral.bench.party import ORDERS, REPORTS, Heard, Party, Setup, run_party
from bilateral.engine.remote.loopback import Connection
from bilateral.errors import ProtocolError
from bilateral.protections.sealed.boxes import SEED_BYTES, BoxContent, open_box, seal_box
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.gates.talk import Speaker, Work
from bilateral.protocols.share.training.parties import encode_batch, seed_of_step
from bilateral.protocols.share.training.roles import Dealing, Second
from bilateral.protocols.share.training.script import run, step
from bilateral.protocols.share.training.terms import StepTerms
from bilateral.protocols.transport import SERVER
from bilateral.randomness import SecureRandomness

CLIENT: Final = "client"
DEALER: Final = "dealer"
DEALING: Final = "dealing"
PREPARING: Final = "preparing"
STEP: Final = "step"
PHASES: Final = (DEALING, PREPARING, STEP)


@dataclass(frozen=True)
class StepMessage(Message):
    """`number` names a step of this run, and none has the number of another."""

    number: int


@dataclass(frozen=True)
class DealOrder(StepMessage):
    pass


@dataclass(frozen=True, repr=False)
class DealtForStep(StepMessage):
    seed: bytes
    box: bytes


@dataclass(frozen=True, repr=False)
class BoxDelivery(StepMessage):
    box: bytes


@dataclass(frozen=True, repr=False)
class MaskedWeights(StepMessage):
    seed: bytes
    weights: tuple[Tensor, ...]


@dataclass(frozen=True)
class StepTurn(StepMessage):
    """What one computing party has to say until it must listen."""

    parts: tuple[Tensor, ...]


@dataclass(frozen=True)
class StepTaken(StepMessage):
    pass


@dataclass(frozen=True)
class StepTask(Message):
    """The public facts of the steps to come (`StepTerms`)."""

    circuit: str
    loss: str
    batch_size: int
    trains: tuple[int, ...]

    @classmethod
    def of(cls, terms: StepTerms) -> StepTask:
        flags = tuple(int(part) for layer in terms.trains for part in layer)
        return cls(terms.circuit.to_json(), terms.loss, terms.batch_size, flags)

    @property
    def terms(self) -> StepTerms:
        circuit = Circuit.from_json(self.circuit, SERVER, is_trained=True)
        flags = [bool(flag) for flag in self.trains]
        trains = tuple(zip(flags[::2], flags[1::2], strict=True))
        return StepTerms(circuit, "ce" if self.loss == "ce" else "mse", self.batch_size, trains)


@dataclass(frozen=True)
class Batch(Message):
    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class GradientRequest(Message):
    """For the bench, which checks it; in a run it goes, masked, into the sum of all clients."""


@dataclass(frozen=True)
class GradientWords(Message):
    words: Tensor


@dataclass(frozen=True)
class GateRequest(Message):
    """How did time and bytes split since the last such request?"""


@dataclass(frozen=True)
class GateCosts(Message):
    """`GateClock.take`."""

    seconds: Tensor
    told_bytes: Tensor


_PHASE_OF: Final[Mapping[type[Message], str]] = {
    DealOrder: DEALING,
    BoxDelivery: DEALING,
    MaskedWeights: PREPARING,
    StepTurn: STEP,
}
_ORDERS: Final = (*ORDERS, Setup, StepTask, GateRequest)
_REPORTS: Final = (*REPORTS, GateCosts)
MAY_HEAR: Final[Mapping[str, tuple[type[Message], ...]]] = {
    CLIENT: (BoxDelivery, MaskedWeights, StepTurn, *_ORDERS, Batch, GradientRequest),
    DEALER: (DealOrder, *_ORDERS),
}
MAY_SAY: Final[Mapping[str, tuple[type[Message], ...]]] = {
    CLIENT: (StepTaken, StepTurn, *_REPORTS, GradientWords),
    DEALER: (DealtForStep, *_REPORTS),
}


def phase_of(message: Message) -> str:
    """Of a message of the protocol, and of its reply."""
    return _PHASE_OF[type(message)]


class StepParty(Party):
    phases = PHASES

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name)
        self.clock = GateClock(PHASES)
        self._terms: StepTerms | None = None

    def phase_of(self, message: Message) -> str | None:
        found = _PHASE_OF.get(type(message))
        self.clock.phase = found or self.clock.phase
        return found

    def obey(self, order: Message) -> Message:
        match order:
            case StepTask():
                self._terms = order.terms
                return Heard()
            case GateRequest():
                return GateCosts(*self.clock.take())
            case _:
                raise self.refuse(order)

    @property
    def terms(self) -> StepTerms:
        if self._terms is None:
            raise ProtocolError(f"{self._name} was asked to work before it had a task.")
        return self._terms

    @property
    def keys(self) -> KeyRing:
        if self._keys is None:
            raise ProtocolError(f"{self._name} was asked to work before keys were agreed on.")
        return self._keys


class DealerParty(StepParty):
    def handle(self, message: Message) -> Message:
        assert isinstance(message, DealOrder)
        randomness = SecureRandomness()
        with_server, with_client = (randomness.random_bytes(SEED_BYTES) for _ in range(2))
        role = Dealing(self.terms, (seed_of_step(self.terms, with_server), seed_of_step(self.terms, with_client)))
        self.clock.attach(role)
        run(self.clock.walk(REST, step(role, None, None)))
        with self.clock.at(BOX):
            content = BoxContent(with_client, tuple(role.dealt))
            box = seal_box(self.keys, CLIENT, message.number, self.terms.digest, content)
        return DealtForStep(message.number, with_server, box)


class ClientParty(StepParty):
    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name)
        self._batch: Batch | None = None
        self._boxes: dict[int, BoxContent] = {}
        self._role: Second | None = None
        self._speaker: Speaker[Tensor] | None = None

    def handle(self, message: Message) -> Message:
        match message:
            case BoxDelivery():
                with self.clock.at(BOX):
                    content = open_box(self.keys, DEALER, message.number, self.terms.digest, message.box)
                self._boxes[message.number] = content
                return StepTaken(message.number)
            case MaskedWeights():
                self._prepare(message)
                return StepTaken(message.number)
            case StepTurn():
                return StepTurn(message.number, self._spoken(message.parts))
            case _:
                raise self.refuse(message)

    def _prepare(self, message: MaskedWeights) -> None:
        content = self._boxes.pop(message.number, None)
        if content is None:
            raise ProtocolError(f"{self._name}: nothing was dealt for step {message.number}.")
        with_dealer, with_server = (seed_of_step(self.terms, seed) for seed in (content.seed, message.seed))
        self._role = Second(self.terms, message.weights, content.dealt, with_dealer, with_server, DEALER)
        self._speaker = None
        self.clock.attach(self._role)
        with self.clock.at(LINEAR):
            self._role.prepare()

    def _spoken(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._speaker is None:
            self._speaker = Speaker(self._work(), SERVER)
        self._speaker.hear(parts, must_lead=False)
        return self._speaker.take_told()

    def _work(self) -> Work[Tensor]:
        role, batch = self._role, self._batch
        if role is None or batch is None:
            raise ProtocolError(f"{self._name} was asked for a step without a batch or masked weights.")
        with self.clock.at(REST):
            encoded = encode_batch(self.terms, batch.inputs, batch.targets)
        found: Tensor = yield from self.clock.walk(REST, step(role, *encoded))
        role.expect_all_used()
        return found

    def obey(self, order: Message) -> Message:
        match order:
            case Batch():
                self._batch = order
                return Heard()
            case GradientRequest():
                if self._speaker is None:
                    raise ProtocolError(f"{self._name} has made no step.")
                return GradientWords(self._speaker.result)
            case _:
                return super().obey(order)


def main() -> None:
    """The process."""
    run_party(MAY_HEAR.__getitem__, lambda connection, name: _KINDS[name](connection, name))


_KINDS: Final[Mapping[str, type[StepParty]]] = {CLIENT: ClientParty, DEALER: DealerParty}
