"""Messages between processes of one machine: TCP on 127.0.0.1, a frame a message.

    length (8 bytes, little endian) | the message as `wire` encodes it

Sockets do not block here: `Switchboard` writes and reads whatever is possible, so that it neither stops at a full
buffer nor lets one party wait for another.

Nothing on the way is encrypted or signed. A connection that does not open with the token is closed, which keeps other
programs of this machine out; it is no protection on a network, and `Gate` listens on the loopback only.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from bilateral.errors import MalformedMessageError, ProtocolError
from bilateral.protocols import wire
from bilateral.protocols.messages import Message

HOST: Final = "127.0.0.1"
TOKEN_BYTES: Final = 32
_LENGTH_BYTES: Final = 8
_MAX_FRAME_BYTES: Final = 1 << 36
_MAX_HELLO_BYTES: Final = 1 << 12
_HELLO_SECONDS: Final = 5.0
_BUFFER_BYTES: Final = 1 << 22
_PATIENCE_SECONDS: Final = 3e-4
_PARTS_AT_ONCE: Final = 64  # systems take 16 to 1024


class LostConnectionError(ConnectionError):
    """The other end of a connection is gone. `party` is its name."""

    def __init__(self, party: str) -> None:
        super().__init__(f"The connection with {party} is closed.")
        self.party = party


@dataclass(frozen=True)
class Hello(Message):
    """The first message of a party."""

    token: bytes
    party: str


class Connection:
    """One end. `party` is who is at the other, and `types` is what it may say."""

    def __init__(self, sock: socket.socket, party: str, types: Sequence[type[Message]]) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._socket = sock
        self.party, self.types = party, tuple(types)
        self.max_frame_bytes = _MAX_FRAME_BYTES
        self.bytes_sent = self.bytes_received = 0
        """Frames and headers too."""
        self._unsent: deque[memoryview] = deque()
        self._length = bytearray(_LENGTH_BYTES)
        self._frame = bytearray()
        self._unread = memoryview(self._length)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def queue(self, message: Message) -> None:
        """To be sent after what is queued already. Arrays are sent from where they are: they must not change."""
        parts = [memoryview(part) for part in wire.encode_parts(message)]
        length = sum(map(len, parts))
        self._unsent.append(memoryview(length.to_bytes(_LENGTH_BYTES, "little")))
        self._unsent.extend(parts)
        self.bytes_sent += _LENGTH_BYTES + length

    def write_some(self) -> None:
        """Send as much as the other end takes now."""
        while self._unsent:
            try:
                count = self._socket.sendmsg(islice(self._unsent, _PARTS_AT_ONCE))
            except BlockingIOError:
                return
            except OSError as error:
                raise LostConnectionError(self.party) from error
            while self._unsent and count >= len(self._unsent[0]):
                count -= len(self._unsent.popleft())
            if count:
                self._unsent[0] = self._unsent[0][count:]

    def push(self) -> None:
        """Send as long as the other end keeps taking: systems hold less than a large message, and whoever goes on to
        compute would leave the rest of it for later. One that is busy is not waited for."""
        self.write_some()
        while self._unsent and select.select([], [self], [], _PATIENCE_SECONDS)[1]:
            self.write_some()

    def read_some(self) -> bytearray | None:
        """Take what has come; a frame's content when it is whole, None before."""
        while True:
            try:
                count = self._socket.recv_into(self._unread)
            except BlockingIOError:
                return None
            except OSError as error:
                raise LostConnectionError(self.party) from error
            if not count:
                raise LostConnectionError(self.party)
            self.bytes_received += count
            self._unread = self._unread[count:]
            if self._unread:
                continue
            if self._frame:
                frame, self._frame = self._frame, bytearray()
                self._unread = memoryview(self._length)
                return frame
            self._frame = bytearray(self._checked_length())
            self._unread = memoryview(self._frame)

    def _checked_length(self) -> int:
        length = int.from_bytes(self._length, "little")
        if not 0 < length <= self.max_frame_bytes:
            raise MalformedMessageError(
                f"Expected a frame of 1 to {self.max_frame_bytes} bytes from {self.party}, got {length}."
            )
        return length

    def decode(self, frame: bytearray) -> Message:
        return wire.decode(frame, self.types, self.party)

    def send(self, message: Message) -> None:
        """Return when all of it is on its way."""
        self.queue(message)
        self.flush()

    def flush(self) -> None:
        """Return when all that is queued is on its way."""
        self.write_some()
        while self.has_unsent:
            select.select([], [self], [])
            self.write_some()

    def wait(self) -> None:
        """Return when something has come (or the other end is gone)."""
        select.select([self], [], [])

    @property
    def has_something(self) -> bool:
        """Whether something has come."""
        return bool(select.select([self], [], [], 0)[0])

    def receive(self) -> Message:
        """The next message; waits for it."""
        while (frame := self.read_some()) is None:
            self.wait()
        return self.decode(frame)


UNASKED: Final = -1
"""The ticket of a message that answers none."""


class Switchboard:
    """The server's connections, by party: a `Transport`. `waited_seconds`: how long it had nothing to write or read.

    `unasked`: messages that parties may send at any time, beside their answers.
    """

    def __init__(self, connections: Mapping[str, Connection], unasked: Sequence[type[Message]] = ()) -> None:
        self.connections = dict(connections)
        self.unasked = tuple(unasked)
        self.waited_seconds = 0.0
        self._tickets: dict[str, deque[int]] = {party: deque() for party in connections}

    def submit(self, ticket: int, party: str, message: Message) -> None:
        """Send, and do not wait for a party that is busy: what it does not take goes with `next_reply`."""
        self.connections[party].queue(message)
        self.connections[party].push()
        self._tickets[party].append(ticket)

    def say(self, party: str, message: Message) -> None:
        """As `submit`, but for no answer."""
        self.connections[party].queue(message)
        self.connections[party].push()

    def next_reply(self) -> tuple[int, Message]:
        """Wait for any reply. A party answers in the order in which it was asked."""
        waiting = [self.connections[party] for party, tickets in self._tickets.items() if tickets or self.unasked]
        if not waiting:
            raise ProtocolError("A reply was expected, but nobody was asked anything.")
        while True:
            for connection in self._ready(waiting):
                connection.write_some()
                if (frame := connection.read_some()) is not None:
                    message = connection.decode(frame)
                    is_asked = not isinstance(message, self.unasked)
                    return self._tickets[connection.party].popleft() if is_asked else UNASKED, message

    @property
    def has_something(self) -> bool:
        """Whether something has come of anybody, or can be sent that waits."""
        unsent = [connection for connection in self.connections.values() if connection.has_unsent]
        readable, writable, _ = select.select(list(self.connections.values()), unsent, [], 0)
        return bool(readable or writable)

    def forget(self) -> None:
        """What was sent cannot be called back; the replies are read and ignored."""

    def _ready(self, connections: Sequence[Connection]) -> list[Connection]:
        """Those that can be written to (if there is something to write) or read from; waits for one."""
        started = time.perf_counter()
        readable, writable, _ = select.select(connections, [c for c in connections if c.has_unsent], [])
        self.waited_seconds += time.perf_counter() - started
        return list(dict.fromkeys([*writable, *readable]))

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()


class Gate:
    """Where parties come in. `token` goes to them by another way than the network."""

    def __init__(self) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]

    def admit(
        self,
        expected: Mapping[str, Sequence[type[Message]]],
        check: Callable[[], None],
        unasked: Sequence[type[Message]] = (),
    ) -> Switchboard:
        """Wait for all parties of `expected`; strangers are turned away. `check` is called while nobody comes, and
        raises if waiting is in vain."""
        found: dict[str, Connection] = {}
        self._listener.settimeout(0.2)
        while len(found) < len(expected):
            check()
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            party = self._greet(sock)
            if party is None or party not in expected or party in found:
                sock.close()
                continue
            found[party] = Connection(sock, party, expected[party])
        return Switchboard(found, unasked)

    def _greet(self, sock: socket.socket) -> str | None:
        """Who this is, or None for somebody who does not know the token."""
        hello = read_hello(sock)
        return hello.party if hello is not None and hmac.compare_digest(hello.token, self.token) else None

    def close(self) -> None:
        self._listener.close()


def read_hello(sock: socket.socket) -> Hello | None:
    """What a visitor says of itself, who has a few seconds for it; None if that is no `Hello`."""
    visitor = Connection(sock, "a visitor", (Hello,))
    visitor.max_frame_bytes = _MAX_HELLO_BYTES
    deadline = time.monotonic() + _HELLO_SECONDS
    try:
        while (frame := visitor.read_some()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([visitor], [], [], left)[0]:
                return None
        hello = visitor.decode(frame)
    except (LostConnectionError, MalformedMessageError):
        return None
    assert isinstance(hello, Hello)
    return hello


def connect(port: int, token: bytes, own_name: str, other: str, types: Sequence[type[Message]]) -> Connection:
    """A party's way to the gate."""
    connection = Connection(socket.create_connection((HOST, port)), other, types)
    connection.send(Hello(token, own_name))
    return connection
