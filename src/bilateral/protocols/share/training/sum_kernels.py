"""Sums with random signs as a compiled loop; `roles` has the tensor expression that it equals, as the oracle.

One word a place has the signs of its number in all 64 sums, so that a number is read once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bilateral.protocols.share.ring.compiled import compiled

Words = npt.NDArray[np.uint64]
_SUMS = 64


@compiled
def signed_sums(groups: Words, signs: Words, out: Words) -> None:
    """`groups` (rows, size), `signs` (size), `out` (rows, 64): a bit of 1 is a minus, the lowest of the first sum."""
    one, zero = np.uint64(1), np.uint64(0)
    for row in range(groups.shape[0]):
        minus = np.zeros(_SUMS, dtype=np.uint64)
        total = zero
        for place in range(groups.shape[1]):
            number, word = groups[row, place], signs[place]
            total += number
            for k in range(_SUMS):
                minus[k] += number & (zero - ((word >> np.uint64(k)) & one))
        for k in range(_SUMS):
            out[row, k] = total - minus[k] - minus[k]
