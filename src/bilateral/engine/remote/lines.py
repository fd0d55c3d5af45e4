"""Messages to sites that are elsewhere, and their replies: a `Transport` for secret-shared prediction.

Every site has a line: a thread of its own that sends what waits for the site, in order, one call at a time. What came
while a call was under way goes in the next one together, because a call costs more than a message. Nothing is left
out and nothing is sent twice: a mask that is used twice hides nothing, so a site that does not answer ends the term.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from bilateral.engine.events import MAX_REASON
from bilateral.engine.remote.edge import PINGS_BEFORE_GIVING_UP, REFUSED, REPLY, Ping, SiteSilentError
from bilateral.errors import MalformedMessageError, ProtocolError
from bilateral.protocols.messages import Message
from bilateral.protocols.wire import decode, encode

MAX_MESSAGES = 32
MAX_BYTES = 1 << 20
"""A call takes no more messages when it has so many bytes: other parties wait for the replies to large ones."""
MAX_SECONDS = 24 * 3600.0
"""Of one call. A site may train for hours; whether it lives is asked all the time."""


ReplyOf = Mapping[type[Message], type[Message]]
"""What a site reads, and what it answers to that."""


class LineCall(Protocol):
    """One packet to one site, its answer, or `SiteSilentError`. `number` counts a site's packets from 1."""

    def __call__(self, site: str, number: int, packet: list[bytes], timeout: float) -> Mapping[str, Any]: ...


class SiteLostError(SiteSilentError):
    """`site` gave no answer."""

    def __init__(self, site: str, reason: str) -> None:
        super().__init__(reason)
        self.site = site


class SiteRefusedError(ProtocolError):
    """`site` refused a message, or its reply cannot be read."""

    def __init__(self, site: str, reason: str) -> None:
        super().__init__(reason)
        self.site = site


@dataclass(frozen=True)
class _Waiting:
    ticket: int
    message: Message


_Reply = tuple[int, Message] | SiteLostError | SiteRefusedError


@dataclass
class SiteLines:
    """The lines to all sites of a term. `close` it in the end: the threads wait for more otherwise.

    `ping_after`: seconds without any reply after which the sites that owe one are asked whether they live.
    """

    sites: Sequence[str]
    call: LineCall
    ping: Ping
    reply_of: ReplyOf
    ping_after: float = 3.0
    timeout: float = MAX_SECONDS
    _queues: dict[str, queue.SimpleQueue[_Waiting | None]] = field(default_factory=dict)
    _replies: queue.SimpleQueue[_Reply] = field(default_factory=queue.SimpleQueue)
    _owed: dict[int, str] = field(default_factory=dict)
    """Which site owes the reply to a ticket."""
    _tickets: Iterator[int] = field(default_factory=lambda: itertools.count(-1, -1))
    """Of `ask`: below zero, so that they are none of secret-shared prediction's."""

    def __post_init__(self) -> None:
        for site in self.sites:
            self._queues[site] = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(site,), daemon=True, name=f"line-{site}").start()

    def submit(self, ticket: int, party: str, message: Message) -> None:
        """Send, and do not wait. Messages to one site arrive in the order in which they were submitted."""
        self._owed[ticket] = party
        self._queues[party].put(_Waiting(ticket, message))

    def next_reply(self) -> tuple[int, Message]:
        """Wait for any reply. Raises `SiteLostError` if a site that owes one is gone, `SiteRefusedError` if it
        refuses."""
        silent = dict.fromkeys(self._owed.values(), 0)
        while True:
            try:
                reply = self._replies.get(timeout=self.ping_after)
            except queue.Empty:
                self._look_after(silent)
                continue
            if isinstance(reply, Exception):
                raise reply
            self._owed.pop(reply[0], None)
            return reply

    def forget(self) -> None:
        """A run has failed: what still waits is not delivered, and nobody owes a reply any more."""
        self._owed.clear()
        for waiting in self._queues.values():
            with suppress(queue.Empty):
                while True:
                    waiting.get_nowait()

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        """A message to each site, all at the same time; replies as they come."""
        asked = dict(zip(self._tickets, messages, strict=False))
        for ticket, site in asked.items():
            self.submit(ticket, site, messages[site])
        while asked:
            ticket, reply = self.next_reply()
            if ticket in asked:  # another is of a run that failed
                yield asked.pop(ticket), reply

    def close(self) -> None:
        """No more messages; calls under way are not waited for."""
        for waiting in self._queues.values():
            waiting.put(None)

    def _look_after(self, silent: dict[str, int]) -> None:
        for site in dict.fromkeys(self._owed.values()):
            silent[site] = silent[site] + 1 if self.ping(site) is None else 0
            if silent[site] == PINGS_BEFORE_GIVING_UP:
                raise SiteLostError(site, "no sign of life; its process is gone or cut off")

    def _serve(self, site: str) -> None:
        """The line's thread. After an error it ends: the site's masks are no use any more."""
        number = 0
        while (packet := _take(self._queues[site])) is not None:
            number += 1
            try:
                replies = self._exchange(site, number, packet)
            except (SiteLostError, SiteRefusedError) as error:
                self._replies.put(error)
                return
            except SiteSilentError as error:
                self._replies.put(SiteLostError(site, str(error)))
                return
            except Exception as error:  # a thread's error has nobody else to go to
                self._replies.put(SiteLostError(site, f"the call failed: {type(error).__name__}: {error}"))
                return
            for waiting, reply in zip(packet, replies, strict=True):
                self._replies.put((waiting.ticket, reply))

    def _exchange(self, site: str, number: int, packet: Sequence[_Waiting]) -> list[Message]:
        answer = self.call(site, number, [encode(waiting.message) for waiting in packet], self.timeout)
        try:
            return read_replies(answer, site, [self.reply_of[type(waiting.message)] for waiting in packet])
        except ProtocolError as error:
            raise SiteRefusedError(site, str(error)[:MAX_REASON]) from error


def _take(waiting: queue.SimpleQueue[_Waiting | None]) -> list[_Waiting] | None:
    """What waits for a site, at least one message; None at the end."""
    packet: list[_Waiting] = []
    num_bytes = 0
    while len(packet) < MAX_MESSAGES and num_bytes < MAX_BYTES:
        try:
            found = waiting.get(block=not packet)
        except queue.Empty:
            break
        if found is None:
            return None
        packet.append(found)
        num_bytes += found.message.num_bytes
    return packet


def read_replies(answer: object, site: str, expected: Sequence[type[Message]]) -> list[Message]:
    """A site's replies, of these types in this order. Anything else is refused, naming the site."""
    replies = replies_in(answer, site, len(expected))
    return [decode(data, [kind], site) for data, kind in zip(replies, expected, strict=True)]


def replies_in(answer: object, site: str, count: int) -> list[bytes]:
    """So many replies of a site, not decoded. Anything else is refused, naming the site."""
    if not isinstance(answer, Mapping) or len(answer) != 1:
        raise MalformedMessageError(f"{site} answered with {type(answer).__name__}, which is no answer of a site.")
    if isinstance(reason := answer.get(REFUSED), str):
        raise ProtocolError(f"{site} refused: {reason[:MAX_REASON]}")
    replies = answer.get(REPLY)
    if not isinstance(replies, list | tuple) or not all(isinstance(data, bytes) for data in replies):
        raise MalformedMessageError(f"{site} sent an answer that holds neither messages nor a refusal.")
    if len(replies) != count:
        raise MalformedMessageError(f"{site} sent {len(replies)} replies to {count} messages.")
    return list(replies)
