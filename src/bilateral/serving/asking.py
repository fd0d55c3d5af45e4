"""The asking half: it has inputs, and learns their answers and nothing else of the model.

asking = AskingSession(name, identity, pinned, randomness, tell_server)
asking.open()
asking.ask(inputs, "logits")          # so many at once as the service says: `asking.service.batch_size`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from bilateral.errors import MalformedMessageError, NumericalRangeError, ProtocolError, QuestionLimitError
from bilateral.protections.sealed.boxes import SEED_BYTES, open_box
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.membership import KeyRequest
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.serving.parties import AskingParty, encode_inputs, expect_weights
from bilateral.protocols.share.serving.terms import REVEALS, QuestionTerms, checked_circuit, question_terms
from bilateral.protocols.transport import SERVER
from bilateral.randomness import Randomness
from bilateral.serving.messages import (
    OUT_OF_RANGE,
    SPENT,
    AnswerBegin,
    AnswerTurn,
    AnswerTurnReply,
    Ask,
    AskingRequest,
    Joined,
    Refused,
    Service,
)

M = TypeVar("M", bound=Message)


@dataclass(repr=False)
class _Opened:
    keys: KeyRing
    service: Service
    circuit: Circuit


class AskingSession:
    """`pinned`: the identity keys of this client and of the dealer that it trusts, which alone may deal for it."""

    def __init__(
        self,
        name: str,
        identity: Identity,
        dealer: str,
        pinned: Mapping[str, bytes],
        randomness: Randomness,
        tell_server: Callable[[Message], Message],
    ) -> None:
        self.name, self._dealer = name, dealer
        self._identity, self._pinned, self._randomness = identity, dict(pinned), randomness
        self._tell = tell_server
        self._opened: _Opened | None = None
        self._serial = 0
        self.used = 0
        """Questions of this client, ever, as the server says."""

    def open(self) -> Service:
        """Agree on keys with the dealer, and hear what is served."""
        request = self._say(AskingRequest(), KeyRequest)
        keys = KeyRing(self.name, request.run_id, self._identity, self._pinned, self._randomness)
        roster = self._say(keys.announce(), Roster)
        if roster.clients != tuple(sorted((self.name, self._dealer))):
            raise ProtocolError(f"{self.name}: expected a session with {self._dealer} alone, got {roster.clients}.")
        keys.accept(roster)
        service = self._say(Joined(), Service)
        if service.dealer != self._dealer:
            raise ProtocolError(f"{self.name}: the server says {service.dealer[:100]!r} deals, not {self._dealer}.")
        circuit = checked_circuit(service.circuit, SERVER)
        expect_weights(circuit, service.weights, SERVER)
        if service.reveal not in REVEALS or service.batch_size < 1 or min(service.limit, service.used) < 0:
            raise MalformedMessageError("Malformed message from the server: its service has impossible conditions.")
        self._opened, self.used = _Opened(keys, service, circuit), service.used
        return service

    @property
    def service(self) -> Service:
        return self._now().service

    @property
    def circuit(self) -> Circuit:
        return self._now().circuit

    def ask(self, inputs: Tensor, reveal: str) -> Tensor:
        """Their answers: float64 outputs, or classes (int64). They are counted, whatever comes of it."""
        opened = self._now()
        terms = question_terms(opened.circuit, len(inputs), reveal, SERVER)
        encode_inputs(terms, inputs)  # what cannot be asked is refused before it is counted
        serial, self._serial = self._serial, self._serial + 1
        begun = self._say(Ask(serial, len(inputs), reveal), AnswerBegin)
        if begun.serial != serial or len(begun.seed) != SEED_BYTES:
            raise ProtocolError(f"{self.name}: AnswerBegin from the server is of another asking, or has no seed.")
        self.used = begun.used
        speaker = Speaker(self._party(opened, terms, begun).work(inputs), SERVER)
        speaker.hear(begun.parts, must_lead=False)
        number, told = 0, speaker.take_told()
        while told or not speaker.is_done:
            reply = self._say(AnswerTurn(serial, number, told), AnswerTurnReply)
            if (reply.serial, reply.number) != (serial, number):
                raise ProtocolError(f"{self.name}: expected turn {number} of asking {serial} from the server.")
            number += 1
            try:
                speaker.hear(reply.parts)
            except NumericalRangeError:
                self._tell(AnswerTurn(serial, number, speaker.take_told()))  # so that the server knows it too
                raise
            told = speaker.take_told()
        return speaker.result

    def _party(self, opened: _Opened, terms: QuestionTerms, begun: AnswerBegin) -> AskingParty:
        content = open_box(opened.keys, self._dealer, begun.serial, terms.digest, begun.box)
        return AskingParty(
            terms,
            opened.service.weights,
            content.seed,
            begun.seed,
            first=SERVER,
        )

    def _now(self) -> _Opened:
        if self._opened is None:
            raise ProtocolError(f"{self.name}: there is no session yet.", remedy="Call open() first.")
        return self._opened

    def _say(self, message: Message, expected: type[M]) -> M:
        reply = self._tell(message)
        if isinstance(reply, Refused):
            raise _ERRORS.get(reply.why, ProtocolError)(f"The server says: {reply.reason[:1000]}")
        if not isinstance(reply, expected):
            raise ProtocolError(
                f"{self.name}: the server sent {type(reply).__name__}, expected {expected.__name__}.",
                remedy="Both sides must run the same version of the protocol.",
            )
        return reply


_ERRORS: Mapping[str, type[ProtocolError]] = {SPENT: QuestionLimitError, OUT_OF_RANGE: NumericalRangeError}
