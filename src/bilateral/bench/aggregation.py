"""`bench aggregation`: the cost of summing under masks, per client and for the server, and how exact the mean is.

A client's time is all it does in a round: sharing seeds, opening shares, encoding and masking, signing, revealing. The
expansion of its masks alone is measured alternately with the raw cipher on as many bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from bilateral.bench.clock import alternate, ratio_row
from bilateral.bench.masked_rounds import Shape, make_parties, one_round
from bilateral.protocols.mask.prg import add_masks
from bilateral.protocols.mask.settings import GraphKind, MaskSettings
from bilateral.protocols.mask.widths import WIDTHS, WidthSetting
from bilateral.protocols.messages import Aggregate, Upload, aggregate
from bilateral.randomness import SeededRandomness

NUM_PARAMETERS = 270_000
NUM_TERMS = 3
CLIENTS = (5, 20, 100)
NEIGHBOURS = {5: 2, 20: 5, 100: 10}
"""Partners that each client chooses in the n-out graph."""
WARMUP_ROUNDS = 2
"""The first rounds also fetch the memory that later ones use again."""


def measure_aggregation(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """One row per number of clients, graph and width, without dropouts and with a tenth of the clients dropping."""
    graphs: tuple[GraphKind, ...] = ("complete", "n-out")
    sizes = CLIENTS[:2] if quick else CLIENTS
    settings: tuple[WidthSetting, ...] = (64, "auto")
    every = [
        (n, graph, dropped, width) for n in sizes for graph in graphs for dropped in (0, n // 10) for width in settings
    ]
    cases = list(dict.fromkeys(every))
    rows = []
    for number, (num_clients, graph, num_dropped, width) in enumerate(cases):
        progress(number, len(cases), f"{num_clients} clients, {graph}, {num_dropped} dropped, width {width}")
        repeats = 3 if quick or num_clients >= 100 else 9
        rows.append(_measure(num_clients, graph, num_dropped, width, repeats))
    progress(len(cases), len(cases), "done")
    return rows


def _measure(num_clients: int, graph: GraphKind, num_dropped: int, width: WidthSetting, repeats: int) -> dict[str, Any]:
    settings = MaskSettings(graph, NEIGHBOURS[num_clients] if graph == "n-out" else None, width=width)
    parties = make_parties(num_clients, settings)
    names = sorted(parties.clients)
    uploads, shape = _uploads(names), Shape(NUM_TERMS, NUM_PARAMETERS)
    expected = aggregate({name: uploads[name] for name in names[num_dropped:]}, 0)
    rounds = [
        one_round(number, parties, uploads.__getitem__, shape, num_dropped) for number in range(WARMUP_ROUNDS + repeats)
    ][WARMUP_ROUNDS:]
    alive, last = names[num_dropped:], rounds[-1]
    watched = sorted(parties.watched.intersection(alive))
    client_seconds = statistics.median(s for one in rounds for s in one.clock.of_clients(watched))
    server_seconds = statistics.median(one.clock.seconds["server"] for one in rounds)
    num_streams = 1 + (num_clients - 1 if graph == "complete" else min(2 * NEIGHBOURS[num_clients], num_clients - 1))
    up = last.clock.bytes_up[alive[0]]
    return {
        "clients": num_clients,
        "graph": graph,
        "dropped": num_dropped,
        "width": last.opening.width,
        "parameters": NUM_PARAMETERS,
        "terms": NUM_TERMS,
        "client_seconds": client_seconds,
        "server_seconds": server_seconds,
        "all_parties_seconds_per_term": (client_seconds * len(alive) + server_seconds) / NUM_TERMS,
        "client_megabytes_up": up / 1e6,
        "upload_to_float32": up / (4 * NUM_TERMS * NUM_PARAMETERS),
        **errors_of_the_mean(last.total, expected),
        **_ratio_to_raw_prg(num_streams, last.opening.width, repeats=5 if num_clients < 100 else 3),
    }


def _uploads(names: Sequence[str]) -> dict[str, Upload]:
    randomness = SeededRandomness(0, "bench uploads")
    base = 0.01 * randomness.normal(NUM_TERMS, NUM_PARAMETERS).float()
    shifts = [int(randomness.integer_below(NUM_PARAMETERS)) for _ in names]
    return {
        name: Upload(0, 100 + 7 * k, base.roll(shift, 1), torch.zeros(0))
        for k, (name, shift) in enumerate(zip(names, shifts, strict=True))
    }


def errors_of_the_mean(total: Aggregate, expected: Aggregate) -> dict[str, float]:
    """Of the weighted mean of the plain uploads in float64: in the Euclidean norm, and of the value that is furthest
    off over the largest.
    """
    mean, exact = total.terms / total.total_weight, expected.terms / expected.total_weight
    off = mean - exact
    return {
        "relative_error": float(off.norm() / exact.norm()),
        "largest_error_to_largest": float(off.abs().max() / exact.abs().max()),
    }


def _ratio_to_raw_prg(num_streams: int, width: int, repeats: int) -> dict[str, float]:
    """Expanding and adding `num_streams` masks over the cipher alone on as many bytes, run alternately."""
    randomness = SeededRandomness(0, "bench prg")
    lengths = [NUM_PARAMETERS] * NUM_TERMS + [1]
    vector = np.zeros(sum(lengths), dtype=np.int64)
    seeds = [(randomness.random_bytes(32), 1) for _ in range(num_streams)]
    ring = next(one for one in WIDTHS if one == width)
    plain, cipher_text = bytes(1 << 20), bytearray((1 << 20) + 15)
    num_bytes = len(vector) * width // 8

    def raw() -> None:
        for seed, _ in seeds:
            stream = Cipher(AES(seed[:16]), CTR(bytes(16))).encryptor()
            for start in range(0, num_bytes, len(plain)):
                stream.update_into(plain[: min(len(plain), num_bytes - start)], cipher_text)

    seconds = alternate({"masks": lambda: add_masks(vector, seeds, lengths, ring), "raw": raw}, repeats, warmup=1)
    row = ratio_row(seconds["masks"], seconds["raw"])
    return {
        "ratio_to_raw_prg": row["ratio_median"],
        "ratio_to_raw_prg_p10": row["ratio_p10"],
        "ratio_to_raw_prg_p90": row["ratio_p90"],
    }
