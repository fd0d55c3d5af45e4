"""`bench growth`: masked rounds with 10, 100 and 1,000 clients, a twentieth of whom drop out, and what counting gives.

Real rounds of the real protocol in one process, on the n-out graph with as many neighbours as 20 % colluders and 10 %
dropouts need. A client's time is all it does in a round (median of those that are watched); the server's is all between
its messages. Bytes are those of the messages' fields. *Counted* is what `counted` says from the number of clients,
neighbours and values alone, so that it can be carried on to numbers that no machine here holds (docs/growth.md).
"""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilateral.bench.masked_rounds import RUN_ID, MaskedRound, Shape, make_parties, one_round
from bilateral.protocols.mask.sealing import DIGEST_BYTES, SEALED_BYTES, SEED_BYTES, TAG_BYTES
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.shamir import SHARE_BYTES
from bilateral.protocols.mask.widths import WIDTHS, packed_length
from bilateral.protocols.messages import Upload
from bilateral.randomness import SeededRandomness

CLIENTS = (10, 100, 1000)
QUICK_CLIENTS = (10, 50)
NUM_PARAMETERS = 100_000
DROPPING = 0.05
_SIGNATURE_BYTES = 64
_INT_BYTES = 8
_BOUND_BITS = 12


def measure_growth(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """One row per number of clients, measured and counted."""
    sizes = QUICK_CLIENTS if quick else CLIENTS
    rows = []
    for number, num_clients in enumerate(sizes):
        progress(number, len(sizes), f"{num_clients} clients")
        rows.append(measure(num_clients, NUM_PARAMETERS // 10 if quick else NUM_PARAMETERS))
    progress(len(sizes), len(sizes), "done")
    return rows


@dataclass(frozen=True)
class Counted:
    """What a round costs by counting: exact where a row says bytes, and numbers of operations."""

    neighbours: float
    client_bytes_up: float
    client_bytes_down: float
    client_streams: float
    """Masks that a client expands, each as long as an upload."""
    server_streams: float
    server_reconstructions: int
    client_verifications: int


def counted(num_clients: int, num_chosen: int, num_dropped: int, shape: Shape, width: int) -> Counted:
    """Of a client that stays, on average over the graph; names are the benchmark's, of ten letters."""
    others = num_clients - 1
    degree = num_chosen + (others - num_chosen) * num_chosen / others
    alive, held = num_clients - num_dropped, degree + 1
    name = len("client-000")
    head = 2 * _INT_BYTES
    known = next(one for one in WIDTHS if one == width)
    upload = packed_length(shape.num_values, known) * (8 if width == 64 else 4)
    shares = degree * (name + SEALED_BYTES) + 2 * held * DIGEST_BYTES + DIGEST_BYTES + SEED_BYTES * degree + TAG_BYTES
    up = 4 * head + shares + upload + _SIGNATURE_BYTES + held * (name + SHARE_BYTES)
    opening = _INT_BYTES * (shape.num_terms + 1) + _INT_BYTES + num_clients * name
    routed = degree * (name + SEALED_BYTES + 2 * DIGEST_BYTES)
    down = 4 * head + opening + routed + (num_clients + alive) * name + alive * (name + _SIGNATURE_BYTES)
    return Counted(
        neighbours=degree,
        client_bytes_up=up,
        client_bytes_down=down,
        client_streams=1 + degree,
        server_streams=alive + num_dropped * degree * alive / num_clients,
        server_reconstructions=num_clients,
        client_verifications=alive,
    )


def measure(num_clients: int, num_parameters: int) -> dict[str, Any]:
    """One round, with pair secrets agreed on in it, in a range as if a round had been before."""
    settings, shape = MaskSettings("n-out", width="auto"), Shape(1, num_parameters)
    before = peak_megabytes()
    parties = make_parties(num_clients, settings, agree=False)
    uploads = _Uploads(num_parameters)
    num_dropped = round(DROPPING * num_clients)
    parties.server.load_state_tensors(_known_range(shape))
    with_parties = peak_megabytes()
    done = one_round(0, parties, uploads, shape, num_dropped)
    chosen = settings.num_chosen(num_clients)
    expected = counted(num_clients, chosen, num_dropped, shape, done.opening.width)
    return {
        "clients": num_clients,
        "dropped": num_dropped,
        "parameters": num_parameters,
        "width": done.opening.width,
        "neighbours_chosen": chosen,
        **_of_round(done, parties.watched, num_dropped),
        "counted_client_megabytes_up": expected.client_bytes_up / 1e6,
        "counted_client_megabytes_down": expected.client_bytes_down / 1e6,
        "counted_client_streams": expected.client_streams,
        "counted_server_streams": expected.server_streams,
        "keys_client_milliseconds": 1e3 * parties.key_seconds,
        "peak_megabytes_before": before,
        "peak_megabytes_parties": with_parties,
        "peak_megabytes": peak_megabytes(),
        "relative_error": _error(done, uploads, num_dropped),
    }


def _known_range(shape: Shape) -> dict[str, Tensor]:
    """What a server goes on with, as if these uploads had been summed once: their sums are below 2^8."""
    rows = shape.num_terms + 1
    return {
        "bound_bits": torch.full((rows,), _BOUND_BITS),
        "latest": torch.full((3,), -1),
        "range_known": torch.ones(rows, dtype=torch.int64),
    }


def _of_round(done: MaskedRound, watched: Collection[str], num_dropped: int) -> dict[str, float]:
    clock = done.clock
    alive = sorted(clock.bytes_down)[num_dropped:]
    return {
        "client_milliseconds": 1e3 * statistics.median(clock.of_clients(sorted(set(watched).intersection(alive)))),
        "server_seconds": clock.seconds["server"],
        "client_megabytes_up": statistics.mean(clock.bytes_up[name] for name in alive) / 1e6,
        "client_megabytes_down": statistics.mean(clock.bytes_down[name] for name in alive) / 1e6,
    }


class _Uploads:
    """One base vector, rolled by a number of each client's own: no two uploads are held at once."""

    def __init__(self, num_parameters: int) -> None:
        self._base = 0.01 * SeededRandomness(0, "bench growth", str(RUN_ID)).normal(1, num_parameters).float()
        self._empty = self._base[0, :0]

    def __call__(self, name: str) -> Upload:
        number = int(name.removeprefix("client-"))
        return Upload(0, 100 + number % 300, self._base.roll(97 * number + 1, 1), self._empty)


def _error(done: MaskedRound, uploads: _Uploads, num_dropped: int) -> float:
    """Of the mean, in the Euclidean norm, against float64."""
    total = weight = None
    for name in sorted(done.clock.bytes_down)[num_dropped:]:
        upload = uploads(name)
        own = upload.terms.double() * upload.weight
        total, weight = (
            (own, upload.weight) if total is None or weight is None else (total + own, weight + upload.weight)
        )
    assert total is not None
    assert weight == done.total.total_weight
    return float((done.total.terms - total).norm() / total.norm())


def peak_megabytes() -> float:
    """The most memory that this process has had at once."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
