"""The server's half: it has the model, counts questions, and learns nothing of them but how many they are.

A question is counted, on disk, when it is asked, before anything is dealt or computed for it: whoever dies in the
middle has spent it, and nobody gets an answer that was not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from torch import Tensor

from bilateral.errors import BilateralError, NumericalRangeError, ProtocolError, QuestionLimitError
from bilateral.protections.sealed.boxes import SEED_BYTES
from bilateral.protocols.mask.keys import RUN_ID_BYTES, KeyDirectory
from bilateral.protocols.mask.messages import KeyAnnouncement
from bilateral.protocols.membership import KeyRequest
from bilateral.protocols.messages import Message
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.serving.parties import AnsweringParty, masked_weights, weight_masks
from bilateral.protocols.share.serving.terms import Reveal, question_terms
from bilateral.protocols.transport import SERVER
from bilateral.randomness import Randomness
from bilateral.serving.messages import (
    NOT_DONE,
    OUT_OF_RANGE,
    SPENT,
    AnswerBegin,
    AnswersDealt,
    AnswerTurn,
    AnswerTurnReply,
    Ask,
    AskingRequest,
    CloseDealing,
    DealAnswers,
    DealingOpened,
    Joined,
    OpenDealing,
    Refused,
    Service,
)
from bilateral.serving.model import ServedModel

M = TypeVar("M", bound=Message)
Tell = Callable[[Message], Message]
"""To another party and back."""


class Counter(Protocol):
    """How many questions a client has asked (`FileCounter`)."""

    @property
    def used(self) -> int: ...

    def spend(self, limit: int | None, count: int = 1) -> bool: ...


@dataclass(frozen=True)
class Conditions:
    """`limit`: questions of each client, ever. `reveal`: the most that is revealed of an answer."""

    limit: int
    reveal: Reveal = "logits"


class AnswerServer:
    """One model, and sessions with clients. `pinned`: identity keys of all clients and the dealer."""

    def __init__(
        self,
        model: ServedModel,
        conditions: Conditions,
        dealer: str,
        tell_dealer: Tell,
        counters: Mapping[str, Counter],
        pinned: Mapping[str, bytes],
        randomness: Randomness,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.model, self.conditions, self.dealer = model, conditions, dealer
        self.counters, self.pinned, self.randomness, self.say = counters, pinned, randomness, say
        self._tell_dealer = tell_dealer
        self._numbers: dict[str, itertools.count[int]] = {name: itertools.count() for name in counters}

    def session(self, client: str) -> AnswerSession:
        """For a client whose name the transport vouches for; its identity is checked besides."""
        if client not in self.counters or client not in self.pinned:
            raise ProtocolError(f"{client!r} is no client of this service.", remedy="Give it a kit: --client NAME.")
        draws = self.randomness.child("session", client, next(self._numbers[client]))
        return AnswerSession(self, client, draws)

    @cached_property
    def most_bytes(self) -> int:
        """No message from a client or the dealer is larger."""
        circuit, reveals = self.model.circuit, (self.conditions.reveal, "class")
        shown = [reveal for reveal in reveals if reveal == "logits" or circuit.output.size > 1]
        return max(question_terms(circuit, self.model.batch_size, reveal, SERVER).most_bytes for reveal in shown)

    def ask_dealer(self, message: Message, expected: type[M]) -> M:
        reply = self._tell_dealer(message)
        if isinstance(reply, Refused):
            raise ProtocolError(reply.reason[:1000])
        if not isinstance(reply, expected):
            raise ProtocolError(f"{self.dealer} sent {type(reply).__name__}, expected {expected.__name__}.")
        return reply


@dataclass(repr=False)
class _Asking:
    """What is under way. Secret."""

    serial: int
    speaker: Speaker[Tensor]
    number: int = 0


class AnswerSession:
    """One client, from its first word to its last: `handle` a message, send what it returns."""

    def __init__(self, server: AnswerServer, client: str, randomness: Randomness) -> None:
        self._server, self.client, self._randomness = server, client, randomness
        self._run_id = randomness.random_bytes(RUN_ID_BYTES)
        names = (client, server.dealer)
        self._directory = KeyDirectory(self._run_id, names, {name: server.pinned[name] for name in names}, 2)
        self._stage = 0  # of the opening: so many of its messages were taken
        self._masks: tuple[Tensor, ...] = ()
        self._next_serial = 0
        self._asking: _Asking | None = None

    def handle(self, message: Message) -> Message:
        """A message that is refused ends what is under way; the client may ask again."""
        try:
            return self._handle(message)
        except QuestionLimitError as error:
            return Refused(SPENT, str(error))
        except NumericalRangeError as error:
            self._asking = None
            self._server.say(f"{self.client}: numbers of a question left their range; no answer was told")
            return Refused(OUT_OF_RANGE, str(error))
        except BilateralError as error:
            self._asking = None
            self._server.say(f"{self.client}: {error}")
            return Refused(NOT_DONE, str(error))

    def close(self) -> None:
        """The client is gone."""
        if self._stage:
            self._server.ask_dealer(CloseDealing(self._run_id), Joined)

    def _handle(self, message: Message) -> Message:
        match message:
            case Ask() if self._stage == len(_OPENING):
                return self._begin(message)
            case AnswerTurn() if self._asking is not None:
                return self._turn(self._asking, message)
            case AskingRequest() | KeyAnnouncement() | Joined() if (
                self._stage < len(_OPENING) and type(message) is _OPENING[self._stage]
            ):
                found = self._open(message)
                self._stage += 1
                return found
            case _:
                raise ProtocolError(f"{type(message).__name__} from {self.client} came out of turn; it is not used.")

    def _open(self, message: AskingRequest | KeyAnnouncement | Joined) -> Message:
        server = self._server
        match message:
            case AskingRequest():
                _ = server.counters[self.client].used  # missing is spent: found out before anything is computed
                key = server.ask_dealer(KeyRequest(self._run_id), KeyAnnouncement)
                self._directory.register(server.dealer, key)
                return KeyRequest(self._run_id)
            case KeyAnnouncement():
                self._directory.register(self.client, message)
                roster = self._directory.roster()
                server.ask_dealer(roster, Joined)
                return roster
            case Joined():
                return self._service()

    def _service(self) -> Service:
        server, model = self._server, self._server.model
        opened = server.ask_dealer(OpenDealing(self._run_id, model.circuit.to_json()), DealingOpened)
        self._masks = weight_masks(model.circuit, _seed(opened.seed, server.dealer))
        return Service(
            model.circuit.to_json(),
            server.conditions.reveal,
            model.batch_size,
            server.conditions.limit,
            server.counters[self.client].used,
            server.dealer,
            model.dataset,
            model.task,
            model.class_names,
            masked_weights(model.first, self._masks),
        )

    def _begin(self, message: Ask) -> AnswerBegin:
        server, model, limit = self._server, self._server.model, self._server.conditions.limit
        self._asking = None
        if message.serial != self._next_serial:
            raise ProtocolError(
                f"Ask from {self.client}: expected asking {self._next_serial} of this session, got {message.serial}.",
                remedy="It was sent twice, or came late; it is not used, and was not counted.",
            )
        if not 1 <= message.count <= model.batch_size:
            raise ProtocolError(f"Ask from {self.client}: 1 to {model.batch_size} questions are answered together.")
        if server.conditions.reveal == "class" and message.reveal != "class":
            raise ProtocolError(
                f"{self.client} asked for {message.reveal[:40]}; this service reveals classes only.",
                remedy="Ask with --reveal class.",
            )
        terms = question_terms(model.circuit, message.count, message.reveal, self.client)
        self._next_serial += 1
        counter = server.counters[self.client]
        if not counter.spend(limit, message.count):
            used = counter.used
            raise QuestionLimitError(
                f"{self.client} has asked {used} of {limit} questions, so {message.count} more are too many.",
                remedy="Ask fewer, or agree on a larger `bilateral serve --questions` with the server.",
            )
        used = counter.used
        dealt = server.ask_dealer(
            DealAnswers(self._run_id, message.serial, message.count, message.reveal), AnswersDealt
        )
        common, own = (self._randomness.random_bytes(SEED_BYTES) for _ in range(2))
        seed, known = _seed(dealt.seed, server.dealer), model.model_for(terms)
        party = AnsweringParty(terms, known, dealt.parts, seed, common, own, dealer=server.dealer)
        self._asking = _Asking(message.serial, Speaker(party.work(), self.client))
        server.say(f"{self.client}: {message.count} questions ({message.reveal}), {used} of {limit} so far")
        return AnswerBegin(message.serial, used, common, dealt.box, self._asking.speaker.take_told())

    def _turn(self, asking: _Asking, message: AnswerTurn) -> AnswerTurnReply:
        if (message.serial, message.number) != (asking.serial, asking.number):
            raise ProtocolError(
                f"AnswerTurn from {self.client}: expected turn {asking.number} of asking {asking.serial}, got turn "
                f"{message.number} of {message.serial}."
            )
        asking.number += 1
        asking.speaker.hear(message.parts)
        told = asking.speaker.take_told()
        if asking.speaker.is_done:
            self._asking = None
        return AnswerTurnReply(message.serial, message.number, told)


_OPENING = (AskingRequest, KeyAnnouncement, Joined)


def _seed(seed: bytes, dealer: str) -> bytes:
    if len(seed) != SEED_BYTES:
        raise ProtocolError(f"{dealer} sent a seed of {len(seed)} bytes, expected {SEED_BYTES}.")
    return seed
