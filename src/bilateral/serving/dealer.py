"""Who deals for questions: a third party that receives no message that depends on a weight, an input or an answer.

Everything is drawn for one question and dealt once: sessions have keys of their own, and serial numbers grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from bilateral.errors import BilateralError, ProtocolError
from bilateral.protections.sealed.boxes import SEED_BYTES, BoxContent, seal_box
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.membership import KeyRequest
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.serving.parties import deal, weight_masks
from bilateral.protocols.share.serving.terms import checked_circuit, question_terms
from bilateral.randomness import Randomness
from bilateral.serving.messages import (
    NOT_DONE,
    AnswersDealt,
    CloseDealing,
    DealAnswers,
    DealingOpened,
    Joined,
    OpenDealing,
    Refused,
)


@dataclass(repr=False)
class _Session:
    keys: KeyRing
    randomness: Randomness
    client: str = ""
    circuit: Circuit | None = None
    masks: tuple[Tensor, ...] = ()
    latest: int = -1


class AnswerDealer:
    """`pinned`: identity keys of all clients, and its own."""

    def __init__(self, name: str, identity: Identity, pinned: Mapping[str, bytes], randomness: Randomness) -> None:
        self.name = name
        self._identity, self._pinned, self._randomness = identity, dict(pinned), randomness
        self._sessions: dict[bytes, _Session] = {}
        self.num_dealt = 0
        """Questions, so far."""

    def handle(self, message: Message) -> Message:
        """What the server says, and the answer. A refused message changes nothing."""
        try:
            return self._handle(message)
        except BilateralError as error:
            return Refused(NOT_DONE, f"{self.name}: {error}")

    def _handle(self, message: Message) -> Message:
        match message:
            case KeyRequest():
                if message.run_id in self._sessions:
                    raise ProtocolError("the session had its keys before")
                draws = self._randomness.child("session", message.run_id.hex())
                keys = KeyRing(self.name, message.run_id, self._identity, self._pinned, draws)
                self._sessions[message.run_id] = _Session(keys, draws)
                return keys.announce()
            case Roster():
                return self._accept(message)
            case OpenDealing():
                return self._open(message)
            case DealAnswers():
                return self._deal(message)
            case CloseDealing():
                self._sessions.pop(message.run_id, None)
                return Joined()
            case _:
                raise ProtocolError(f"the server sent {type(message).__name__}, which has no answer")

    def _accept(self, roster: Roster) -> Joined:
        session = self._session(roster.run_id)
        if len(roster.clients) != 2:
            raise ProtocolError(f"expected a session of one client and {self.name}, got {len(roster.clients)} parties")
        session.keys.accept(roster)
        (session.client,) = set(roster.clients) - {self.name}
        return Joined()

    def _open(self, message: OpenDealing) -> DealingOpened:
        session = self._session(message.run_id)
        if session.circuit is not None or not session.client:
            raise ProtocolError("the session has masks already, or no keys yet")
        seed = session.randomness.random_bytes(SEED_BYTES)
        circuit = checked_circuit(message.circuit, "the server")
        session.circuit, session.masks = circuit, weight_masks(circuit, seed)
        return DealingOpened(seed)

    def _deal(self, message: DealAnswers) -> AnswersDealt:
        session = self._session(message.run_id)
        if session.circuit is None:
            raise ProtocolError("the session has no masks yet")
        if message.serial <= session.latest:
            raise ProtocolError(f"asking {message.serial} of the session was dealt for before")
        terms = question_terms(session.circuit, message.count, message.reveal, "the server")
        session.latest = message.serial
        with_server, with_client = (session.randomness.random_bytes(SEED_BYTES) for _ in range(2))
        parts = deal(terms, session.masks, with_server, with_client)
        box = seal_box(session.keys, session.client, message.serial, terms.digest, BoxContent(with_client))
        self.num_dealt += message.count
        return AnswersDealt(message.serial, with_server, box, parts)

    def _session(self, run_id: bytes) -> _Session:
        if run_id not in self._sessions:
            raise ProtocolError("this session is not open")
        return self._sessions[run_id]
