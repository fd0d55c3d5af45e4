"""The client or the dealer of `bench sealed-step`, in a process of its own (`party`).

Everything passes through the server, as in a run:

| phase | from | to | message |
|---|---|---|---|
| dealing | server | dealer | `DealOrder` |
| dealing | dealer | server | `DealtForStep`: the seed it has with the server, and a sealed box for the client |
| dealing | dealer | server | `DealtParts`, unasked: what the server is dealt, as it is made |
| preparing | server | client | `StepNotice`, for no answer, where phases overlap |
| preparing | server | client | `MaskedWeights`, the box, and a seed that the dealer does not know |
| step | server | client | `StepBegin`, answered when the client has done its half |
| step | server, client | each other | `StepTurn`, unasked: before one must listen, or as soon as it is much |

`StepTaken` answers what needs no other answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from bilateral.bench.gate_clock import DEALT, REST, GateClock
from bilateral.bench.party import ORDERS, REPORTS, Heard, Party, Setup, run_party
from bilateral.engine.remote.loopback import Connection
from bilateral.errors import ProtocolError
from bilateral.protections.sealed.boxes import SEED_BYTES, BoxContent, open_box, seal_box
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.gates.talk import Speaker, Work
from bilateral.protocols.share.training.parties import encode_batch, seed_of_step
from bilateral.protocols.share.training.planning import follow
from bilateral.protocols.share.training.roles import Dealing, Second
from bilateral.protocols.share.training.script import step
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
    """`is_timed`: gate by gate, which takes time itself; 0 or 1."""

    is_timed: int


@dataclass(frozen=True, repr=False)
class DealtForStep(StepMessage):
    seed: bytes
    box: bytes


@dataclass(frozen=True, repr=False)
class DealtParts(StepMessage):
    """In order. The last message of a step has none."""

    parts: tuple[Tensor, ...]


@dataclass(frozen=True, repr=False)
class MaskedWeights(StepMessage):
    box: bytes
    seed: bytes
    weights: tuple[Tensor, ...]


@dataclass(frozen=True)
class StepNotice(StepMessage):
    """A step has begun, unless its phases come one after the other: the client can encode its batch."""


@dataclass(frozen=True)
class StepBegin(StepMessage):
    """`is_timed` as of `DealOrder`."""

    is_timed: int


@dataclass(frozen=True)
class StepTurn(StepMessage):
    """What one computing party has to say."""

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
    DealtParts: DEALING,
    MaskedWeights: PREPARING,
    StepNotice: PREPARING,
    StepBegin: STEP,
    StepTurn: STEP,
}
_ORDERS: Final = (*ORDERS, Setup, StepTask, GateRequest)
_REPORTS: Final = (*REPORTS, GateCosts)
MAY_HEAR: Final[Mapping[str, tuple[type[Message], ...]]] = {
    CLIENT: (StepNotice, MaskedWeights, StepBegin, StepTurn, *_ORDERS, Batch, GradientRequest),
    DEALER: (DealOrder, *_ORDERS),
}
MAY_SAY: Final[Mapping[str, tuple[type[Message], ...]]] = {
    CLIENT: (StepTaken, StepTurn, *_REPORTS, GradientWords),
    DEALER: (DealtForStep, DealtParts, *_REPORTS),
}
UNASKED: Final[tuple[type[Message], ...]] = (StepTurn, DealtParts)
_FIRST_BYTES: Final = 1 << 15
_MOST_BYTES: Final = 1 << 20
"""So much that is dealt is worth a message: the first comes soon, and each of the next has twice as much."""


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
    _worth_a_message = _FIRST_BYTES

    def handle(self, message: Message) -> Message | None:
        """The seeds at once; what is dealt follows as it is made."""
        assert isinstance(message, DealOrder)
        randomness = SecureRandomness()
        with_server, with_client = (randomness.random_bytes(SEED_BYTES) for _ in range(2))
        with self.clock.at(DEALT):
            box = seal_box(self.keys, CLIENT, message.number, self.terms.digest, BoxContent(with_client))
        self.say(DealtForStep(message.number, with_server, box))
        role = Dealing(self.terms, (seed_of_step(self.terms, with_server), seed_of_step(self.terms, with_client)))
        role.on_dealt = lambda: self._pass_on(message.number, role, self._worth_a_message)
        self._worth_a_message = _FIRST_BYTES
        if message.is_timed:
            self.clock.attach(role)
        follow(role, self.terms.shape_of_step.orders)
        self._pass_on(message.number, role, 0)
        return DealtParts(message.number, ())

    def _pass_on(self, number: int, role: Dealing, least: int) -> None:
        """What was dealt and has not left, if there is as much."""
        if role.dealt and sum(part.nbytes for part in role.dealt) >= least:
            self.say(DealtParts(number, tuple(role.dealt)), is_urgent=False)
            role.dealt.clear()
            self._worth_a_message = min(2 * self._worth_a_message, _MOST_BYTES)


class ClientParty(StepParty):
    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name)
        self._batch: Batch | None = None
        self._role: Second | None = None
        self._speaker: Speaker[Tensor] | None = None
        self._encoded: tuple[Tensor, Tensor] | None = None
        self._ahead: Second | None = None
        """Whose later work is done while nothing comes; not where every gate is timed."""

    def handle(self, message: Message) -> Message | None:
        match message:
            case StepNotice():
                self._encoded = self._encode()
                return None
            case MaskedWeights():
                self._prepare(message)
                return StepTaken(message.number)
            case StepBegin():
                number = message.number
                work = self._work(is_timed=bool(message.is_timed))
                self._speaker = Speaker(work, SERVER, early=lambda parts: self.say(StepTurn(number, parts)))
                return self._spoken(number)
            case StepTurn():
                if self._speaker is None:
                    raise ProtocolError(f"{self._name} heard of a step that has not begun.")
                self._speaker.hear(message.parts, must_lead=False)
                return self._spoken(message.number)
            case _:
                raise self.refuse(message)

    def _prepare(self, message: MaskedWeights) -> None:
        with self.clock.at(DEALT):
            content = open_box(self.keys, DEALER, message.number, self.terms.digest, message.box)
        with_dealer, with_server = (seed_of_step(self.terms, seed) for seed in (content.seed, message.seed))
        self._role = Second(self.terms, message.weights, with_dealer, with_server)
        self._speaker = self._ahead = None

    def work_ahead(self) -> str | None:
        return STEP if self._ahead is not None and self._ahead.work_ahead() else None

    def _spoken(self, number: int) -> Message | None:
        """What was told leaves; the answer to `StepBegin` comes when all is done."""
        assert self._speaker is not None
        if told := self._speaker.take_told():
            self.say(StepTurn(number, told))
        return StepTaken(number) if self._speaker.is_done else None

    def _work(self, *, is_timed: bool) -> Work[Tensor]:
        role = self._role
        if role is None:
            raise ProtocolError(f"{self._name} was asked for a step without masked weights.")
        encoded, self._encoded = self._encoded or self._encode(), None
        self._ahead = None if is_timed else role
        if not is_timed:
            role.plan(self.terms.shape_of_step.orders)
        walk = step(role, *encoded)
        found: Tensor = yield from self.clock.timed(role, walk) if is_timed else walk
        return found

    def _encode(self) -> tuple[Tensor, Tensor]:
        if self._batch is None:
            raise ProtocolError(f"{self._name} was asked for a step without a batch.")
        with self.clock.at(REST):
            return encode_batch(self.terms, self._batch.inputs, self._batch.targets)

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
