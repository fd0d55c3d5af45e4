"""What parties do with messages that can be decoded: a site with each packet of a real round, and with its briefing.

Packets are recorded in a run of our own, each with the client as it was before it came; a case changes one message of
one packet and hands it to a copy of that client.
"""

from __future__ import annotations

import copy
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.formats import field_mutation, wire_mutation
from tests.fuzz.mutations import blind
from tests.fuzz.target import Target
from tests.runs.rounds.harness import LocalSites, conduct
from tests.runs.rounds.test_desk import briefing, desk
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.kind import ENROLMENT
from bilateral.learning.vocabulary import TO_CLIENT
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode, encode
from bilateral.runs.rounds.enrolment import Briefing

SITE = "client-1"


@dataclass
class RecordedSites(LocalSites):
    """Keeps what one site is sent, and its client before."""

    seen: list[tuple[Any, list[bytes]]] = field(default_factory=list)

    def call(self, site, lane, ticket, packet, timeout):
        if lane != ENROLMENT and site == SITE:
            with suppress(RuntimeError, TypeError):  # a client in the midst of a backward pass cannot be copied
                self.seen.append((copy.deepcopy(self.desks[site]._clients[lane]), list(packet)))
        return super().call(site, lane, ticket, packet, timeout)


def handler_targets() -> tuple[Target, ...]:
    kinds = {
        "masked": {},
        "blinded": {"training__loss": "ce", "perturbation__softmax": "blinded"},
        "bare": {"protection": "fedavg", "aggregation__masks": "none"},
    }
    plans = {name: plan(federation__clients=3, training__rounds=1, **settings) for name, settings in kinds.items()}
    return (*(_site(f"site, {name}", chosen) for name, chosen in plans.items()), _briefing())


def _site(name: str, chosen: Any) -> Target:
    sites = RecordedSites(chosen)
    with tempfile.TemporaryDirectory() as folder:
        conduct(chosen, Path(folder) / "out", sites)
    stages = [(client, packet) for client, packet in sites.seen if packet]
    assert len(stages) > 1 or "bare" in name

    def handle(data: bytes) -> None:
        """`data`: which packet, which message of it, and the message."""
        client, packet = stages[data[0] % len(stages)]
        changed = list(packet)
        changed[data[1] % len(packet)] = data[2:]
        messages = [decode(one, TO_CLIENT, SERVER) for one in changed]
        encode(copy.deepcopy(client).handle(messages))

    seeds = tuple(bytes([number, index]) + one for number, (_, p) in enumerate(stages) for index, one in enumerate(p))
    fields = _of_message(field_mutation(TO_CLIENT))
    return Target(name, seeds, (fields, fields, fields, _of_message(wire_mutation), _of_message(blind)), handle)


def _of_message(mutation: Any) -> Any:
    def mutate(data: bytes, rng: Random) -> bytes:
        return data[:2] + mutation(data[2:], rng)

    return mutate


def _briefing() -> Target:
    def take(data: bytes) -> None:
        desk()._brief(data)

    fields = field_mutation((Briefing,))
    return Target("briefing of a site", (encode(briefing()),), (fields, fields, wire_mutation, blind), take)
