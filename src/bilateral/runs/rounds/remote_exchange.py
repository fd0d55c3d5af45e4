"""Packets to sites and replies from them, as bytes: an `Exchange` for clients that are elsewhere.

Every conversation runs in a thread of its own; what the server says in between is said by one thread at a time. A site
that does not answer in time is out of the round, and told of with the stage. A reply that cannot be read, and a
refusal, is `Unusable`: an incident of its sender like any wrong message. A dead site is not waited for as long as a
slow one. No reply makes this raise. (A site can still make rounds fail, by masking what it did not agree to mask:
decision 9.)
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from bilateral.engine.events import MAX_REASON
from bilateral.engine.remote.edge import PINGS_BEFORE_GIVING_UP, REFUSED, REPLY, Ping, SiteSilentError
from bilateral.errors import ProtocolError
from bilateral.learning.exchange import Packet, Record, Respond, Unusable, kept_of
from bilateral.protections.spoken_messages import stage_of, to_server
from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode, encode
from bilateral.runs.rounds.attendance import Attendance


class SiteCall(Protocol):
    """The transport: one packet to one site, its answer, or `SiteSilentError`. Called from many threads."""

    def __call__(
        self, site: str, lane: int, ticket: int, packet: list[bytes], timeout: float, /
    ) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Timing:
    """How long one exchange with all its sites took."""

    lane: int
    round_index: int
    stage: str
    seconds: float


class Tickets:
    """Numbers that only grow: a site drops a packet when a later one has arrived."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            return next(self._numbers)


@dataclass
class RemoteExchange:
    """The way to the sites of a term, for one lane (a training; FedSGD beside it is another)."""

    lane: int
    call: SiteCall
    ping: Ping
    attendance: Attendance
    pool: ThreadPoolExecutor
    tickets: Tickets
    record: Record
    timeout: float
    ping_after: float = 3.0
    """Seconds after which a site that has not answered is asked whether it is there at all."""
    on_exchange: Callable[[Timing], None] = lambda _: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(
        self, round_index: int, packets: Mapping[str, Packet], respond: Respond | None = None
    ) -> dict[str, Message]:
        """The replies in the order of `packets`, whatever the order of their arrival: sums of floats depend on it."""
        started = time.perf_counter()
        there = self.attendance.present(round_index, list(packets))
        # A model goes to all sites: encoded once. The packets hold the messages meanwhile, so an id stays its own.
        encoded = {id(message): message for name in there for message in packets[name]}
        data = {number: encode(message) for number, message in encoded.items()}
        conversations = {
            name: self.pool.submit(
                self._converse, round_index, name, packets[name], [data[id(m)] for m in packets[name]], respond
            )
            for name in there
        }
        outcomes = {name: future.exception() or future.result() for name, future in conversations.items()}
        for outcome in outcomes.values():
            if isinstance(outcome, BaseException):
                raise outcome
        if packets:
            stage = stage_of(next(iter(packets.values())))
            self.on_exchange(Timing(self.lane, round_index, stage, time.perf_counter() - started))
        return {name: reply for name, reply in outcomes.items() if isinstance(reply, Message)}

    def _converse(
        self, round_index: int, name: str, packet: Packet, data: list[bytes], respond: Respond | None
    ) -> Message | None:
        while True:
            reply = self._ask(round_index, name, packet, data)
            if reply is None:
                return None
            with self._lock:
                if not isinstance(reply, Unusable):
                    self.record(round_index, name, SERVER, reply)
                packet = respond(name, reply) if respond is not None else ()
            if not packet:
                return kept_of(packet, reply)
            data = [encode(message) for message in packet]

    def _ask(self, round_index: int, name: str, packet: Packet, data: list[bytes]) -> Message | None:
        with self._lock:
            for message in packet:
                self.record(round_index, SERVER, name, message)
        try:
            answer = self._call(name, data)
        except SiteSilentError as error:
            self.attendance.missed(name, round_index, stage_of(packet), str(error))
            return None
        try:
            return read_answer(answer, name)
        except ProtocolError as error:
            return Unusable(str(error)[:MAX_REASON])

    def _call(self, name: str, data: list[bytes]) -> Mapping[str, Any]:
        """Call the site; give up early if it shows no sign of life twice in a row."""
        call = self.pool.submit(self.call, name, self.lane, self.tickets.next(), data, self.timeout)
        silent = 0
        while not wait([call], self.ping_after).done:
            silent = silent + 1 if self.ping(name) is None else 0
            if silent == PINGS_BEFORE_GIVING_UP:
                raise SiteSilentError("no sign of life; its process is gone or cut off")
        return call.result()


def read_answer(answer: object, site: str) -> Message:
    """A site's reply. Anything but an answer of the agreed form is refused."""
    if not isinstance(answer, Mapping) or len(answer) != 1:
        raise ProtocolError(f"{site} answered with {type(answer).__name__}, which is no answer of a site.")
    if isinstance(data := answer.get(REPLY), bytes):
        return decode(data, to_server(), site)
    if isinstance(reason := answer.get(REFUSED), str):
        raise ProtocolError(f"{site} refused: {reason[:MAX_REASON]}")
    raise ProtocolError(f"{site} sent an answer that holds neither a message nor a refusal.")
