"""What parties in processes of their own spend, phase by phase: seconds on a core and by the clock, bytes at sockets.

This process is the server, whose transport has the meter; the other parties keep their own books (`party.Costs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bilateral.bench.party import Costs
from bilateral.engine.remote.loopback import Switchboard
from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER


@dataclass
class PartyCost:
    """What one party spent: seconds on a core, seconds at work by the clock, and bytes at its sockets."""

    cpu_seconds: float = 0.0
    busy_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass
class PhaseCost:
    """One phase by the clock, and each party's part in it."""

    seconds: float
    rounds: int
    parties: dict[str, PartyCost]

    @classmethod
    def of(cls, parties: Sequence[str]) -> PhaseCost:
        """Nothing yet."""
        return cls(0.0, 0, {party: PartyCost() for party in parties})


@dataclass(frozen=True)
class _Reading:
    """The server's clocks and counters at one time; bytes sent to and received from every client."""

    seconds: float
    cpu_seconds: float
    waited_seconds: float
    num_bytes: Mapping[str, tuple[int, int]]


@dataclass
class MeteredTransport:
    """The server's transport, with a meter: a phase lasts from its first message (or `enter`) to the next phase.

    `rounds`: how many messages of each phase the server sent since `begin`.
    """

    switchboard: Switchboard
    phases: Sequence[str]
    phase_of: Callable[[Message], str]
    _costs: dict[str, PhaseCost] = field(init=False)
    _phase: str = field(init=False)
    _last: _Reading = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        parties = (*self.switchboard.connections, SERVER)
        self._costs = {phase: PhaseCost.of(parties) for phase in self.phases}
        self._phase, self._last = self.phases[0], self._read()

    def end(self) -> dict[str, PhaseCost]:
        """What was spent since `begin`, by the server, and by the clients as far as the server can see it."""
        self._charge()
        found = self._costs
        self.begin()  # what comes now is charged elsewhere
        return found

    def submit(self, ticket: int, party: str, message: Message) -> None:
        phase = self.phase_of(message)
        self.enter(phase)
        self._costs[phase].rounds += 1
        self.switchboard.submit(ticket, party, message)

    def enter(self, phase: str) -> None:
        """What the server does from now on is of this phase, before it sends anything."""
        if phase != self._phase:
            self._charge()
            self._phase = phase

    def say(self, party: str, message: Message) -> None:
        """For no answer. Counts as a message of the server all the same."""
        phase = self.phase_of(message)
        self.enter(phase)
        self._costs[phase].rounds += 1
        self.switchboard.say(party, message)

    def next_reply(self) -> tuple[int, Message]:
        return self.switchboard.next_reply()

    def forget(self) -> None:
        """Nothing to do: a run that fails here ends the benchmark, and replies of another run are ignored."""

    def _charge(self) -> None:
        """All that was spent since the last reading, to the phase that ends here."""
        before, now, cost = self._last, self._read(), self._costs[self._phase]
        elapsed, waited = now.seconds - before.seconds, now.waited_seconds - before.waited_seconds
        server = cost.parties[SERVER]
        cost.seconds += elapsed
        server.cpu_seconds += now.cpu_seconds - before.cpu_seconds
        server.busy_seconds += elapsed - waited
        for party, (sent, received) in now.num_bytes.items():  # whatever travels, travels to the server or from it
            down, up = sent - before.num_bytes[party][0], received - before.num_bytes[party][1]
            server.bytes_sent += down
            server.bytes_received += up
            cost.parties[party].bytes_received += down
            cost.parties[party].bytes_sent += up
        self._last = now

    def _read(self) -> _Reading:
        counted = {party: (c.bytes_sent, c.bytes_received) for party, c in self.switchboard.connections.items()}
        return _Reading(time.perf_counter(), time.process_time(), self.switchboard.waited_seconds, counted)


def add_books(phases: Mapping[str, PhaseCost], costs: Mapping[str, Costs]) -> None:
    """The clients' own seconds, a row a phase."""
    for index, cost in enumerate(phases.values()):
        for party, found in costs.items():
            cost.parties[party].cpu_seconds, cost.parties[party].busy_seconds = found.seconds[index].tolist()
