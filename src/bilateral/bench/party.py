"""A party of a benchmark in a process of its own: it answers the server's messages, and keeps books.

The bench starts it with one line of JSON on standard input (`Introduction`). What the bench itself has to say (keys,
what to work on, "what did it cost you?") goes over the same connection as the protocol, as the messages below; these
are not counted. The process ends when the connection does.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import torch
from torch import Tensor

from bilateral.engine.remote.loopback import Connection, LostConnectionError, connect
from bilateral.errors import ProtocolError
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.mask.messages import KeyAnnouncement, Roster
from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER
from bilateral.randomness import SecureRandomness


@dataclass(frozen=True)
class IdentityRequest(Message):
    pass


@dataclass(frozen=True)
class IdentityKey(Message):
    identity_key: bytes


@dataclass(frozen=True)
class Setup(Message):
    """Whom to trust, and how to work. A real deployment pins identity keys that it got by another way."""

    run_id: bytes
    parties: tuple[str, ...]
    identity_keys: tuple[bytes, ...]
    threads: int


@dataclass(frozen=True)
class CostRequest(Message):
    """What did it cost since the last such request?"""


@dataclass(frozen=True)
class Costs(Message):
    """Seconds on a core and seconds at work by the clock, a row a phase."""

    seconds: Tensor
    peak_memory_bytes: int


@dataclass(frozen=True)
class Heard(Message):
    pass


ORDERS: Final[tuple[type[Message], ...]] = (IdentityRequest, Roster, CostRequest)
"""What every party is told by the bench, beside its `Setup`."""
REPORTS: Final[tuple[type[Message], ...]] = (IdentityKey, KeyAnnouncement, Costs, Heard)


def peak_memory_bytes() -> int:
    """The most memory that this process has held so far; Linux counts it in kilobytes, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass(frozen=True, repr=False)
class Introduction:
    """What a party is told before it can be spoken to. Not in its arguments, which all users of a machine can see."""

    party: str
    port: int
    token: str

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


class Party(ABC):
    """The client's side of the connection. `phases`: what it has books for."""

    phases: Sequence[str]

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name
        self._identity = Identity.generate(SecureRandomness())
        self._keys: KeyRing | None = None
        self._seconds = torch.zeros(len(self.phases), 2, dtype=torch.float64)

    @abstractmethod
    def phase_of(self, message: Message) -> str | None:
        """Which phase a message of the protocol belongs to; None for an order of the bench."""

    @abstractmethod
    def handle(self, message: Message) -> Message | None:
        """The protocol's reply to a message of the protocol; None for what has none, or not yet."""

    @abstractmethod
    def obey(self, order: Message) -> Message:
        """What this kind of party does at an order of the bench that not every party knows."""

    def work_ahead(self) -> str | None:
        """A piece of work that no message decides, while none has come: the phase that it is of. None if there is
        none."""
        return None

    def say(self, message: Message, *, is_urgent: bool = True) -> None:
        """In the middle of the work on a message: on its way as far as there is room, the rest later.

        `is_urgent`: as far as the other end takes it at once.
        """
        self._connection.queue(message)
        if is_urgent:
            self._connection.push()
        else:
            self._connection.write_some()

    def joined(self, keys: KeyRing) -> None:
        """Keys are agreed on."""
        self._keys = keys

    def serve(self) -> None:
        """Answer until the connection ends. Waiting costs no time on a core, so all CPU time is of some message.

        At work by the clock is from a message's arrival until its reply is ready to leave: once it has left, the server
        goes on, and on a shared core this process may be looked at again only much later.
        """
        while True:
            self._use_the_time()
            self._connection.wait()
            busy, cpu = time.perf_counter(), time.process_time()
            message = self._connection.receive()
            phase = self.phase_of(message)
            if phase is None:
                self._connection.send(self._obeyed(message))
                continue
            reply = self.handle(message)
            if reply is not None:
                self._connection.queue(reply)
            busy = time.perf_counter() - busy
            self._connection.flush()
            spent = torch.tensor([time.process_time() - cpu, busy], dtype=torch.float64)
            self._seconds[self.phases.index(phase)] += spent

    def _use_the_time(self) -> None:
        busy, cpu, phase = time.perf_counter(), time.process_time(), None
        while not self._connection.has_something and (done := self.work_ahead()) is not None:
            phase = done
        if phase is not None:
            spent = [time.process_time() - cpu, time.perf_counter() - busy]
            self._seconds[self.phases.index(phase)] += torch.tensor(spent, dtype=torch.float64)

    def _obeyed(self, order: Message) -> Message:
        """Do what the bench says, and the report of it."""
        match order:
            case IdentityRequest():
                return IdentityKey(self._identity.public_bytes)
            case Setup():
                return self.set_up(order)
            case Roster():
                self._join(order)
                return Heard()
            case CostRequest():
                return self._costs()
            case _:
                return self.obey(order)

    def set_up(self, message: Setup) -> KeyAnnouncement:
        torch.set_num_threads(message.threads)
        pinned = dict(zip(message.parties, message.identity_keys, strict=True))
        self._keys = KeyRing(self._name, message.run_id, self._identity, pinned, SecureRandomness())
        return self._keys.announce()

    def _join(self, roster: Roster) -> None:
        if self._keys is None:
            raise ProtocolError(f"{self._name} got a roster before it was set up.")
        self._keys.accept(roster)
        self.joined(self._keys)

    def _costs(self) -> Costs:
        found = Costs(self._seconds, peak_memory_bytes())
        self._seconds = torch.zeros_like(self._seconds)
        return found

    def refuse(self, order: Message) -> ProtocolError:
        return ProtocolError(f"{self._name} does not know what to do about {type(order).__name__}.")


def run_party(may_hear: Callable[[str], Sequence[type[Message]]], make: Callable[[Connection, str], Party]) -> None:
    """The process. Ctrl-C is for the bench, whose end closes the connection and so ends this process too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = Introduction(**json.loads(sys.stdin.readline()))
    connection = connect(told.port, bytes.fromhex(told.token), told.party, SERVER, may_hear(told.party))
    try:
        make(connection, told.party).serve()
    except LostConnectionError:
        sys.exit(0)
