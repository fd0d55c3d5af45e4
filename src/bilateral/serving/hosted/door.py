"""A client's site: a door for whoever asks there, by `bilateral ask KIT`, and messages carried to and fro.

The one who asks is a process of the site's operator: it has the site's identity key, its inputs and the answers. What
runs in a job has none of that: it carries messages, one asker at a time. Who may come in knows the token in the door's
file, which is the operator's alone (mode 0600).

Formal guarantees (tests/serving/hosted/test_sites.py):
- messages go as they are: what an asker and a server say to each other is what they would say over one connection;
- a visitor without the token hears nothing and is not heard;
- an asker that dies, or keeps the server waiting, is gone, and the next one is heard.
"""

from __future__ import annotations

import hmac
import queue
import secrets
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Final

from bilateral.engine.remote.loopback import HOST, TOKEN_BYTES, Connection, LostConnectionError, read_hello
from bilateral.errors import MalformedMessageError
from bilateral.protocols.messages import Message
from bilateral.serving.hosted.messages import TO_CLIENT_SITE, AskerGone, NobodyAsks, WhatNext
from bilateral.serving.hosted.plan import ServingPlan
from bilateral.serving.hosted.site import ServiceSite
from bilateral.serving.messages import NOT_DONE, TO_SERVER, Refused

PATIENCE: Final = 45.0
"""Seconds that an asker may take for its part of a turn."""
LONGEST_WAIT: Final = 10.0
MOST_WAITING: Final = 16


class AskingDoor(ServiceSite):
    """`put_up`: called once with the port and the token, for the operator's own eyes."""

    types = TO_CLIENT_SITE

    def __init__(
        self,
        name: str,
        plan: ServingPlan,
        version: str,
        put_up: Callable[[int, bytes], None],
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(name, plan, version)
        self._patience = patience
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._waiting: queue.Queue[Connection] = queue.Queue(MOST_WAITING)
        self._asker: Connection | None = None
        self._listener = socket.create_server((HOST, 0))
        put_up(self._listener.getsockname()[1], self._token)
        Thread(target=self._receive, daemon=True, name=f"door-{name}").start()

    def close(self) -> None:
        """Nobody comes in any more, and who is in is sent away."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._hang_up()

    def handle(self, message: Message) -> Message:
        if isinstance(message, WhatNext):
            return self._next_asker(min(max(message.milliseconds, 0) / 1000, LONGEST_WAIT))
        return self._carry(message)

    def _next_asker(self, seconds: float) -> Message:
        """The first message of somebody new."""
        self._hang_up("The server began anew; what was asked is counted. Go on with --resume.")
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._asker = self._waiting.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return NobodyAsks()
            first = self._hear(self._asker)
            if not isinstance(first, AskerGone):
                return first

    def _carry(self, message: Message) -> Message:
        if self._asker is None:
            return AskerGone()
        try:
            self._asker.send(message)
        except LostConnectionError:
            self._hang_up()
            return AskerGone()
        return self._hear(self._asker)

    def _hear(self, asker: Connection) -> Message:
        """What it says next; `AskerGone` if it says nothing, or nothing that can be read."""
        deadline = time.monotonic() + self._patience
        try:
            while (frame := asker.read_some()) is None:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([asker], [], [], left)[0]:
                    self._hang_up("It took too long. What was asked is counted.")
                    return AskerGone()
            return asker.decode(frame)
        except (LostConnectionError, MalformedMessageError):
            self._hang_up()
            return AskerGone()

    def _hang_up(self, why: str = "") -> None:
        asker, self._asker = self._asker, None
        if asker is None:
            return
        if why:
            with suppress(LostConnectionError):
                asker.queue(Refused(NOT_DONE, why))
                asker.write_some()  # as much as it takes now: nobody waits for it
        asker.close()

    def _receive(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # closed
                return
            # each in a thread of its own: a visitor that says nothing keeps nobody else out
            Thread(target=self._admit, args=(sock,), daemon=True).start()

    def _admit(self, sock: socket.socket) -> None:
        hello = read_hello(sock)
        if hello is None or not hmac.compare_digest(hello.token, self._token) or hello.party != self.name:
            sock.close()
            return
        connection = Connection(sock, self.name, TO_SERVER)
        try:
            self._waiting.put_nowait(connection)
        except queue.Full:
            connection.close()
