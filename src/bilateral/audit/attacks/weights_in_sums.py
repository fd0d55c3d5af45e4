"""Clients' weights from nothing but a sum of weighted uploads.

A float32 is a whole number of steps, so `weight * value` is a whole number of weight times as large steps. Where one
client alone contributes to a coordinate (others have a dead ReLU there, or a pixel that is black in all their samples),
the sum divided by the right weight is a float32 again, and divided by any other number it hardly ever is. The weight
that makes float32s of the most coordinates is a client's, and those coordinates are that client's alone.

A weight is found up to powers of two, which float32 does not notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEAST_HITS: Final = 4
"""Coordinates that must agree on a weight. Of random numbers one in 2^29 is a float32."""
MOST_VALUES: Final = 1 << 15
"""Coordinates that are looked at."""
_CHUNK_CANDIDATES: Final = 16


def odd_part(weight: int) -> int:
    """The weight without its powers of two."""
    return weight // (weight & -weight)


def hits(values: NDArray[np.float64], candidates: Sequence[int]) -> NDArray[np.int64]:
    """By candidate weight, how many values are that weight times a float32."""
    found = np.zeros(len(candidates), dtype=np.int64)
    for start in range(0, len(candidates), _CHUNK_CANDIDATES):
        weights = np.asarray(candidates[start : start + _CHUNK_CANDIDATES], dtype=np.float64)[:, None]
        as_float32 = (values[None] / weights).astype(np.float32).astype(np.float64)
        found[start : start + len(weights)] = (as_float32 * weights == values[None]).sum(1)
    return found


def guess_weight(values: NDArray[np.float64], largest: int) -> int | None:
    """The odd part of some client's weight, up to `largest`; None if nothing points to one.

    One is no candidate: a sum that is a float32 already says nothing about a weight.
    """
    seen = values[values != 0][:MOST_VALUES]
    candidates = range(3, largest + 1, 2)
    if not len(seen) or not candidates:
        return None
    found = hits(seen, candidates)
    best = int(found.argmax())
    return candidates[best] if found[best] >= LEAST_HITS else None
