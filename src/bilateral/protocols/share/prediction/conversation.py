"""Several sessions side by side, and what they cost.

The server's programs yield requests; `run_together` hands them to a transport and goes on with whichever program has
its reply first, so that one party works on one batch while another works on the next. Everything that travels is
counted, by phase and party.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from bilateral.protocols.messages import Message
from bilateral.protocols.share.prediction.helping import Program
from bilateral.protocols.share.prediction.messages import PHASES, Phase, phase_of

_T = TypeVar("_T")
SERVER: Final = "server"
_TICKETS: Final = itertools.count()
"""Never the same twice, so that no reply is taken for another."""


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
    together = _Together(programs, transport, traffic)
    try:
        return together.run()
    except BaseException:
        transport.forget()
        raise


class _Together:
    def __init__(self, programs: Sequence[Program[Any]], transport: Transport, traffic: Traffic) -> None:
        self._programs, self._transport, self._traffic = programs, transport, traffic
        self._results: list[Any] = [None] * len(programs)
        self._rounds: list[Counter[Phase]] = [Counter() for _ in programs]
        self._waits_for: dict[int, tuple[int, str, Phase]] = {}

    def run(self) -> list[Any]:
        for position in range(len(self._programs)):
            self._advance(position, None)
        while self._waits_for:
            ticket, reply = self._transport.next_reply()
            if ticket in self._waits_for:  # another is of a run that failed
                position, party, phase = self._waits_for.pop(ticket)
                self._traffic.record(phase, party, SERVER, reply)
                self._advance(position, reply)
        for phase in PHASES:
            self._traffic.rounds[phase] += max((counted[phase] for counted in self._rounds), default=0)
        return self._results

    def _advance(self, position: int, reply: Message | None) -> None:
        try:
            party, message, meanwhile = self._programs[position].send(reply)  # type: ignore[arg-type]
        except StopIteration as end:
            self._results[position] = end.value
            return
        phase, ticket = phase_of(message), next(_TICKETS)
        self._traffic.record(phase, SERVER, party, message)
        self._rounds[position][phase] += 1
        self._waits_for[ticket] = position, party, phase
        self._transport.submit(ticket, party, message)
        if meanwhile is not None:
            meanwhile()
