"""Several sessions side by side, and what they cost.

The server's programs yield requests; `run_together` hands them to a transport and goes on with whichever program has
its reply first, so that one party works on one batch while another works on the next. Everything that travels is
counted, by phase and party.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from bilateral.protocols.messages import Message
from bilateral.protocols.share.helping import Program
from bilateral.protocols.share.messages import PHASES, Phase, phase_of

_T = TypeVar("_T")
SERVER: Final = "server"


class Transport(Protocol):
    """Delivers messages to clients and brings their replies, not necessarily in order."""

    def submit(self, ticket: int, party: str, message: Message) -> None:
        """Send, and do not wait. Messages to one party arrive in the order in which they were submitted."""
        ...

    def next_reply(self) -> tuple[int, Message]:
        """Wait for any reply: its ticket, and what was said."""
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


@dataclass
class Traffic:
    """Bytes that every party sent and received, and rounds (a request and its reply), phase by phase.

    Programs that run side by side share their rounds: the longest counts.
    """

    sent: dict[tuple[Phase, str], int] = field(default_factory=lambda: defaultdict(int))
    received: dict[tuple[Phase, str], int] = field(default_factory=lambda: defaultdict(int))
    rounds: dict[Phase, int] = field(default_factory=lambda: defaultdict(int))

    def record(self, phase: Phase, sender: str, receiver: str, message: Message) -> None:
        self.sent[phase, sender] += message.num_bytes
        self.received[phase, receiver] += message.num_bytes

    def total_bytes(self, *phases: Phase) -> int:
        """What all parties sent in these phases (all of them if none is named)."""
        return sum(count for (phase, _), count in self.sent.items() if phase in (phases or PHASES))


def run_together(programs: Sequence[Program[_T]], transport: Transport, traffic: Traffic) -> list[_T]:
    """Run all programs to their ends; return their results in order."""
    results: list[Any] = [None] * len(programs)
    rounds: list[Counter[Phase]] = [Counter() for _ in programs]
    waits_for: dict[int, tuple[str, Phase]] = {}

    def advance(position: int, reply: Message | None) -> None:
        try:
            party, message, meanwhile = programs[position].send(reply)  # type: ignore[arg-type]
        except StopIteration as end:
            results[position] = end.value
            return
        phase = phase_of(message)
        traffic.record(phase, SERVER, party, message)
        rounds[position][phase] += 1
        waits_for[position] = party, phase
        transport.submit(position, party, message)
        if meanwhile is not None:
            meanwhile()

    for position in range(len(programs)):
        advance(position, None)
    while waits_for:
        position, reply = transport.next_reply()
        party, phase = waits_for.pop(position)
        traffic.record(phase, party, SERVER, reply)
        advance(position, reply)
    for phase in PHASES:
        traffic.rounds[phase] += max((counted[phase] for counted in rounds), default=0)
    return results
