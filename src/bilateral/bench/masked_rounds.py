"""Whole rounds under ring masks in one process, by the clock of each party: what several benchmarks measure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.graph import forget_graphs
from bilateral.protocols.mask.keys import Identity, KeyRing, is_signed
from bilateral.protocols.mask.messages import MaskedUpload, MaskOpening
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.messages import Aggregate, Message, Upload
from bilateral.randomness import SeededRandomness

RUN_ID = b"bench aggregation"
CONTEXT = b"uploads that nobody trained"


@dataclass
class Clock:
    """Seconds of every client and of the server, and the bytes that every client sent and was sent."""

    seconds: dict[str, float] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def running(self, party: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[party] = self.seconds.get(party, 0.0) + time.perf_counter() - started

    def sent(self, client: str, up: Message | None, down: Message) -> None:
        """A message to a client, and its answer."""
        self.bytes_down[client] = self.bytes_down.get(client, 0) + down.num_bytes
        self.bytes_up[client] = self.bytes_up.get(client, 0) + (up.num_bytes if up is not None else 0)

    def of_clients(self, names: Sequence[str]) -> list[float]:
        return [self.seconds[name] for name in names]


@dataclass(frozen=True)
class Parties:
    """A server and clients that have agreed on keys. `watched`: those whose clocks count."""

    server: MaskServer
    clients: Mapping[str, MaskClient]
    watched: frozenset[str]
    key_seconds: float
    """What a watched client takes to make its keys and to check those of all others, once a run."""


def make_parties(num_clients: int, settings: MaskSettings, *, agree: bool = True, num_watched: int = 20) -> Parties:
    """`agree`: with everybody's pair secrets computed; without it the first round does that as far as it needs them.

    Clients of one process remember for each other which signatures are good and what a round's graph is; those that
    are watched check and compute it all themselves.
    """
    randomness = SeededRandomness(0, "bench aggregation")
    names = [f"client-{k:03d}" for k in range(num_clients)]
    identities = {name: Identity.generate(randomness.child("identity", name)) for name in names}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    watched = frozenset(names[:: -(-num_clients // num_watched)])
    clock, rings = Clock(), {}
    server = MaskServer(RUN_ID, names, settings)
    for name in names:
        others = {other: key for other, key in pinned.items() if other != name}
        with clock.running(name):
            rings[name] = KeyRing(name, RUN_ID, identities[name], others, randomness.child("keys", name))
            announced = rings[name].announce()
        server.register(name, announced)
    roster = server.roster()
    for name, ring in rings.items():
        if name in watched:
            is_signed.cache_clear()
        with clock.running(name):
            ring.accept(roster)
    for name, ring in rings.items():
        for other in names if agree else ():
            if other != name:
                ring.pair_secret(other)
    clients = {name: MaskClient(ring, settings, randomness.child(name)) for name, ring in rings.items()}
    return Parties(server, clients, watched, statistics.median(clock.of_clients(sorted(watched))))


@dataclass(frozen=True)
class Shape:
    """Of an upload without statistics."""

    num_terms: int
    num_parameters: int

    @property
    def num_values(self) -> int:
        return self.num_terms * self.num_parameters + 1


@dataclass(frozen=True)
class MaskedRound:
    """What one round was: its format, its sum, and what it took."""

    opening: MaskOpening
    total: Aggregate
    clock: Clock


def one_round(
    round_index: int, parties: Parties, upload_of: Callable[[str], Upload], shape: Shape, num_dropped: int = 0
) -> MaskedRound:
    """The first `num_dropped` clients die after sharing. A client's clock begins with its upload at hand."""
    clock, server, clients = Clock(), parties.server, parties.clients
    names = sorted(clients)
    alive = names[num_dropped:]

    def each(shown: Mapping[str, Message], act: Callable[[str, Any], Any], collect: Callable[[str, Any], None]) -> None:
        for name, message in shown.items():
            answer = None
            if act is not mask or name in alive:
                answer = act(name, message)
                with clock.running("server"):
                    collect(name, answer)
            clock.sent(name, answer, message)

    def timed(method: str) -> Callable[[str, Any], Any]:
        def act(name: str, message: Any) -> Any:
            if name in parties.watched:
                is_signed.cache_clear()
                forget_graphs()
            with clock.running(name):
                return getattr(clients[name], method)(message)

        return act

    def mask(name: str, routed: Any) -> MaskedUpload:
        upload = replace(upload_of(name), round_index=round_index)
        with clock.running(name):
            clients[name].receive_shares(routed)
            masked = clients[name].mask(upload, context=CONTEXT)
        assert isinstance(masked, MaskedUpload), "uploads of a benchmark are within their range"
        return masked

    with clock.running("server"):
        opening = server.open_round(round_index, names, shape.num_terms + 1, shape.num_values)
    each(dict.fromkeys(names, opening), timed("open"), server.collect_shares)
    with clock.running("server"):
        routed = server.route()
    each(routed, mask, server.collect_upload)
    with clock.running("server"):
        listed = server.close_uploads(context=CONTEXT)
    each(dict.fromkeys(alive, listed), timed("sign"), server.collect_signature)
    with clock.running("server"):
        request = server.request_shares()
    each(dict.fromkeys(alive, request), timed("reveal"), server.collect_reveal)
    with clock.running("server"):
        total = server.unmask((shape.num_terms, shape.num_parameters), 0)
    return MaskedRound(opening, total, clock)
