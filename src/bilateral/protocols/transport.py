"""How messages that `wire` encodes reach the other party, and what that costs: the seam between protocols and engines.

The server's name is here, because all that travels is to it or from it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from bilateral.protocols.messages import Message

SERVER: Final = "server"


class Transport(Protocol):
    """Delivers messages to clients and brings their replies, not necessarily in order."""

    def submit(self, ticket: int, party: str, message: Message) -> None:
        """Send, and do not wait. Messages to one party arrive in the order in which they were submitted."""
        ...

    def next_reply(self) -> tuple[int, Message]:
        """Wait for any reply: its ticket, and what was said."""
        ...

    def forget(self) -> None:
        """A run has failed: do not deliver what still waits. Replies that come all the same are ignored."""
        ...


@dataclass
class LocalTransport:
    """Clients in this process, called one after the other."""

    handlers: dict[str, Callable[[Message], Message]]
    _waiting: deque[tuple[int, str, Message]] = field(default_factory=deque)

    def submit(self, ticket: int, party: str, message: Message) -> None:
        self._waiting.append((ticket, party, message))

    def next_reply(self) -> tuple[int, Message]:
        ticket, party, message = self._waiting.popleft()
        return ticket, self.handlers[party](message)

    def forget(self) -> None:
        self._waiting.clear()


@dataclass
class Traffic:
    """Bytes that every party sent and received, and rounds (a request and its reply), phase by phase.

    Programs that run side by side share their rounds: the longest counts.
    """

    sent: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    received: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    rounds: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def record(self, phase: str, sender: str, receiver: str, message: Message) -> None:
        self.sent[phase, sender] += message.num_bytes
        self.received[phase, receiver] += message.num_bytes

    def total_bytes(self, *phases: str) -> int:
        """What all parties sent in these phases (all of them if none is named)."""
        return sum(count for (phase, _), count in self.sent.items() if not phases or phase in phases)
