"""Squared norms of channels as compiled loops; `norms` has the tensor expressions that they equal, as the oracle.

Numbers lie as samples x channels x places. Words are cut (shifted right, as unsigned) before they are multiplied, and
all is modulo 2^64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bilateral.protocols.share.ring.compiled import compiled

Words = npt.NDArray[np.uint64]


@compiled
def squares_of_difference(a: Words, b: Words, shift: int, out: Words) -> None:
    """out[c]: the sum of ((a >> shift) - (b >> shift))^2."""
    cut = np.uint64(shift)
    out[:] = 0
    for sample in range(a.shape[0]):
        for channel in range(a.shape[1]):
            total = np.uint64(0)
            for place in range(a.shape[2]):
                part = (a[sample, channel, place] >> cut) - (b[sample, channel, place] >> cut)
                total += part * part
            out[channel] += total


@compiled
def products(a: Words, b: Words, shift: int, out: Words) -> None:
    """out[c]: the sum of (a >> shift) (b >> shift)."""
    cut = np.uint64(shift)
    out[:] = 0
    for sample in range(a.shape[0]):
        for channel in range(a.shape[1]):
            total = np.uint64(0)
            for place in range(a.shape[2]):
                total += (a[sample, channel, place] >> cut) * (b[sample, channel, place] >> cut)
            out[channel] += total


@compiled
def squares_and_products(told: Words, part: Words, shift: int, out: Words) -> None:
    """out[c]: the sum of 2 (told >> shift) (part >> shift) + (part >> shift)^2."""
    cut = np.uint64(shift)
    out[:] = 0
    for sample in range(told.shape[0]):
        for channel in range(told.shape[1]):
            total = np.uint64(0)
            for place in range(told.shape[2]):
                own = part[sample, channel, place] >> cut
                total += (((told[sample, channel, place] >> cut) << np.uint64(1)) + own) * own
            out[channel] += total
