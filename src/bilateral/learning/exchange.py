"""How a server and its clients talk: the one seam between the protocols and a transport.

The server hands an `Exchange` a packet of messages per client and gets the replies of those that answered; a client
that is gone is simply not among them. The round loop and the masked sum are written against this alone, so that they
are the same in one process and on many machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER
from bilateral.randomness import Randomness

SETUP = -1
"""The round index of what is said before the first round."""
Packet = Sequence[Message]
"""Messages that travel together; the client takes them in order and replies to the last."""


@dataclass(frozen=True)
class Taken(Message):
    """Stands among the replies for one that was used when it came. It never travels."""

    round_index: int


@dataclass(frozen=True)
class Unusable(Message):
    """Stands among the replies for one that could not be read, or for a refusal. It never travels."""

    reason: str


@dataclass(frozen=True)
class Unanswered(Message):
    """Stands among the replies for one that was refused when it came: an incident already. It never travels."""

    round_index: int


class Enough(tuple[Message, ...]):
    """An empty packet that also says what to keep of the last reply: a large one that was used need not be kept."""

    kept: Message

    @classmethod
    def keeping(cls, kept: Message) -> Enough:
        packet = cls()
        packet.kept = kept
        return packet


def kept_of(packet: Packet, reply: Message) -> Message:
    """What an exchange returns for a conversation that ended with `reply`, to which `packet` was the last word."""
    return packet.kept if isinstance(packet, Enough) else reply


Respond = Callable[[str, Message], Packet]
"""What the server says to a reply: the next packet, or nothing if that was the last of the conversation."""
Record = Callable[[int, str, str, Message], None]
"""Called with (round, sender, receiver, message) for everything that is sent."""


class Exchange(Protocol):
    """One conversation with each of several clients."""

    def __call__(
        self, round_index: int, packets: Mapping[str, Packet], respond: Respond | None = None
    ) -> dict[str, Message]:
        """Send every client its packet; go on with `respond` while it has something to say; return the last replies."""
        ...


class Party(Protocol):
    """A client as a transport sees it."""

    def handle(self, packet: Packet) -> Message: ...


@dataclass(frozen=True)
class Dropouts:
    """Simulated deaths: in each round a client dies with probability `rate`, after a random number of replies.

    `max_replies`: the most after which it dies. A masked round has four replies (shares, upload, signature, reveal),
    and with the published cross entropy a question more, so that four lets a client die before each of them.
    """

    rate: float
    randomness: Randomness
    max_replies: int = 4

    def replies_before_death(self, round_index: int, client: str) -> int | None:
        """None: it lives through the round."""
        if round_index == SETUP:
            return None
        draws = self.randomness.child("dropout", round_index, client)
        if float(draws.uniform(1)) >= self.rate:
            return None
        return draws.integer_below(self.max_replies + 1)


@dataclass
class LocalExchange:
    """All clients in this process, one after the other.

    It catches nothing: what clients here raise is about the server, or about the user's data and plan. What one client
    does to another comes as a message (`ShareComplaint`), and what it sends to the server is checked there.
    """

    clients: Mapping[str, Party]
    record: Record
    dropouts: Dropouts | None = None
    helpers: Mapping[str, Party] = field(default_factory=dict)
    """Parties without data. Dropouts are of clients."""
    _num_replies: dict[tuple[int, str], int] = field(default_factory=dict)

    def __call__(
        self, round_index: int, packets: Mapping[str, Packet], respond: Respond | None = None
    ) -> dict[str, Message]:
        replies: dict[str, Message] = {}
        for name, packet in packets.items():
            reply = self._converse(round_index, name, packet, respond)
            if reply is not None:
                replies[name] = reply
        return replies

    def _converse(self, round_index: int, name: str, packet: Packet, respond: Respond | None) -> Message | None:
        while True:
            for message in packet:
                self.record(round_index, SERVER, name, message)
            if self._is_dead(round_index, name):
                return None
            party = self.helpers[name] if name in self.helpers else self.clients[name]
            reply = party.handle(packet)
            self.record(round_index, name, SERVER, reply)
            packet = respond(name, reply) if respond is not None else ()
            if not packet:
                return kept_of(packet, reply)

    def _is_dead(self, round_index: int, name: str) -> bool:
        if self.dropouts is None or name in self.helpers:
            return False
        limit = self.dropouts.replies_before_death(round_index, name)
        given = self._num_replies.get((round_index, name), 0)
        if limit is not None and given >= limit:
            return True
        self._num_replies = {k: v for k, v in self._num_replies.items() if k[0] == round_index}
        self._num_replies[round_index, name] = given + 1
        return False
