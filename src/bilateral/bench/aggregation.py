"""`bench aggregation`: the cost of summing under masks, per client and for the server, and how exact the mean is.

A client's time is all it does in a round: sharing seeds, opening shares, encoding and masking, signing, revealing. The
expansion of its masks alone is measured alternately with the raw cipher on as many bytes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from bilateral.bench.clock import alternate, ratio_row
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.mask.messages import MaskedUpload
from bilateral.protocols.mask.prg import add_masks
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import GraphKind, MaskSettings
from bilateral.protocols.messages import Aggregate, Upload, aggregate
from bilateral.randomness import SeededRandomness

NUM_PARAMETERS = 270_000
NUM_TERMS = 3
CLIENTS = (5, 20, 100)
NEIGHBOURS = {5: 2, 20: 5, 100: 10}
"""Partners that each client chooses in the n-out graph."""
RUN_ID = b"bench aggregation"
WARMUP_ROUNDS = 2
"""The first rounds also fetch the memory that later ones use again."""


def measure_aggregation(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """One row per number of clients and graph, without dropouts and with a tenth of the clients dropping."""
    graphs: tuple[GraphKind, ...] = ("complete", "n-out")
    sizes = CLIENTS[:2] if quick else CLIENTS
    every = [(size, graph, dropped) for size in sizes for graph in graphs for dropped in (0, size // 10)]
    cases = list(dict.fromkeys(every))
    rows = []
    for number, (num_clients, graph, num_dropped) in enumerate(cases):
        progress(number, len(cases), f"{num_clients} clients, {graph}, {num_dropped} dropped")
        rows.append(_measure(num_clients, graph, num_dropped, repeats=3 if quick or num_clients >= 100 else 9))
    progress(len(cases), len(cases), "done")
    return rows


@dataclass
class _Clock:
    """Seconds of every client and of the server."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def running(self, party: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[party] = self.seconds.get(party, 0.0) + time.perf_counter() - started

    def of_clients(self, names: Sequence[str]) -> list[float]:
        return [self.seconds[name] for name in names]


def _measure(num_clients: int, graph: GraphKind, num_dropped: int, repeats: int) -> dict[str, Any]:
    settings = MaskSettings(graph, NEIGHBOURS[num_clients] if graph == "n-out" else None)
    server, clients = _parties(num_clients, settings)
    uploads = _uploads(sorted(clients))
    expected = aggregate({name: uploads[name] for name in sorted(uploads)[num_dropped:]}, 0)
    clocks, up = [], 0
    for round_index in range(WARMUP_ROUNDS + repeats):
        clock = _Clock()
        total, up = _round(round_index, server, clients, uploads, num_dropped, clock)
        clocks.append(clock)
    names = sorted(clients)[num_dropped:]
    client_seconds = statistics.median(s for clock in clocks[WARMUP_ROUNDS:] for s in clock.of_clients(names))
    server_seconds = statistics.median(clock.seconds["server"] for clock in clocks[WARMUP_ROUNDS:])
    num_streams = 1 + (num_clients - 1 if graph == "complete" else min(2 * NEIGHBOURS[num_clients], num_clients - 1))
    return {
        "clients": num_clients,
        "graph": graph,
        "dropped": num_dropped,
        "parameters": NUM_PARAMETERS,
        "terms": NUM_TERMS,
        "client_seconds": client_seconds,
        "server_seconds": server_seconds,
        "all_parties_seconds_per_term": (client_seconds * len(names) + server_seconds) / NUM_TERMS,
        "client_megabytes_up": up / 1e6,
        "relative_error": _relative_error(total, expected),
        **_ratio_to_raw_prg(num_streams, repeats=5 if num_clients < 100 else 3),
    }


def _parties(num_clients: int, settings: MaskSettings) -> tuple[MaskServer, dict[str, MaskClient]]:
    """A server and clients that have agreed on keys (once a run, not timed)."""
    randomness = SeededRandomness(0, "bench aggregation")
    names = [f"client-{k:03d}" for k in range(num_clients)]
    identities = {name: Identity.generate(randomness.child("identity", name)) for name in names}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    rings = {}
    for name in names:
        others = {other: key for other, key in pinned.items() if other != name}
        rings[name] = KeyRing(name, RUN_ID, identities[name], others, randomness.child("keys", name))
    server = MaskServer(RUN_ID, names, settings)
    for name, ring in rings.items():
        server.register(name, ring.announce())
    roster = server.roster()
    for name, ring in rings.items():
        ring.accept(roster)
        for other in names:
            if other != name:
                ring.pair_secret(other)
    return server, {name: MaskClient(ring, settings, randomness.child(name)) for name, ring in rings.items()}


def _uploads(names: Sequence[str]) -> dict[str, Upload]:
    randomness = SeededRandomness(0, "bench uploads")
    base = 0.01 * randomness.normal(NUM_TERMS, NUM_PARAMETERS).float()
    shifts = [int(randomness.integer_below(NUM_PARAMETERS)) for _ in names]
    return {
        name: Upload(0, 100 + 7 * k, base.roll(shift, 1), torch.zeros(0))
        for k, (name, shift) in enumerate(zip(names, shifts, strict=True))
    }


def _round(
    round_index: int,
    server: MaskServer,
    clients: Mapping[str, MaskClient],
    uploads: Mapping[str, Upload],
    num_dropped: int,
    clock: _Clock,
) -> tuple[Aggregate, int]:
    """One round; the first `num_dropped` clients die after sharing. The sum, and what one client sent."""
    names, alive = sorted(clients), sorted(clients)[num_dropped:]
    watched, up = alive[0], 0

    def each(receivers: Sequence[str], act: Callable[[str], Any], collect: Callable[[str, Any], None]) -> None:
        nonlocal up
        for name in receivers:
            with clock.running(name):
                sent = act(name)
            up += sent.num_bytes if name == watched else 0
            with clock.running("server"):
                collect(name, sent)

    with clock.running("server"):
        opening = server.open_round(round_index, names, NUM_TERMS + 1)
    each(names, lambda name: clients[name].open(opening), server.collect_shares)
    with clock.running("server"):
        routed = server.route()

    def mask(name: str) -> MaskedUpload:
        clients[name].receive_shares(routed[name])
        upload = uploads[name]
        masked = clients[name].mask(Upload(round_index, upload.weight, upload.terms, upload.statistics))
        assert isinstance(masked, MaskedUpload)
        return masked

    each(alive, mask, server.collect_upload)
    with clock.running("server"):
        listed = server.close_uploads()
    each(alive, lambda name: clients[name].sign(listed), server.collect_signature)
    with clock.running("server"):
        request = server.request_shares()
    each(alive, lambda name: clients[name].reveal(request), server.collect_reveal)
    with clock.running("server"):
        total = server.unmask((NUM_TERMS, NUM_PARAMETERS), 0)
    return total, up


def _relative_error(total: Aggregate, expected: Aggregate) -> float:
    """Of the weighted mean, in the Euclidean norm."""
    mean, exact = total.terms / total.total_weight, expected.terms / expected.total_weight
    return float((mean - exact).norm() / exact.norm())


def _ratio_to_raw_prg(num_streams: int, repeats: int) -> dict[str, float]:
    """Expanding and adding `num_streams` masks over the cipher alone on as many bytes, run alternately."""
    randomness = SeededRandomness(0, "bench prg")
    lengths = [NUM_PARAMETERS] * NUM_TERMS + [1]
    vector = np.zeros(sum(lengths), dtype=np.int64)
    seeds = [(randomness.random_bytes(32), 1) for _ in range(num_streams)]
    plain, cipher_text = bytes(1 << 20), bytearray((1 << 20) + 15)
    num_bytes = vector.nbytes

    def raw() -> None:
        for seed, _ in seeds:
            stream = Cipher(AES(seed[:16]), CTR(bytes(16))).encryptor()
            for start in range(0, num_bytes, len(plain)):
                stream.update_into(plain[: min(len(plain), num_bytes - start)], cipher_text)

    seconds = alternate({"masks": lambda: add_masks(vector, seeds, lengths), "raw": raw}, repeats, warmup=1)
    row = ratio_row(seconds["masks"], seconds["raw"])
    return {
        "ratio_to_raw_prg": row["ratio_median"],
        "ratio_to_raw_prg_p10": row["ratio_p10"],
        "ratio_to_raw_prg_p90": row["ratio_p90"],
    }
