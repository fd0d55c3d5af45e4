"""Sums with random signs as a compiled loop; `watching` has the tensor expression that it equals, as the oracle.

One word a place has the signs of its number in all 64 sums, so that a number is read once, from where it lies.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bilateral.protocols.share.ring.compiled import compiled

Words = npt.NDArray[np.uint64]
_SUMS = 64


@compiled
def signed_sums(x: Words, signs: Words, together: int, begin: int, end: int, out: Words) -> None:
    """`x` (samples, channels, places), `signs` (size of a group), `out` (groups, 64): of the groups `begin` to `end`.

    A bit of 1 is a minus, the lowest of the first sum. `together`: channels of a group, 0 for parts of one.
    """
    samples, channels, places = x.shape
    length, size = samples * places, signs.size
    parts = (length + size - 1) // size
    one, zero = np.uint64(1), np.uint64(0)
    for group in range(begin, end):
        minus = np.zeros(_SUMS, dtype=np.uint64)
        total = zero
        first = group * together if together else group // parts
        last = min(channels, first + max(together, 1))
        start = 0 if together else group % parts * size
        stop = min(length, start + size)
        sign = 0
        for channel in range(first, last):
            at = start
            while at < stop:
                sample, place = at // places, at % places
                run = min(places - place, stop - at)
                for i in range(run):
                    number, word = x[sample, channel, place + i], signs[sign + i]
                    total += number
                    for k in range(_SUMS):
                        minus[k] += number & (zero - ((word >> np.uint64(k)) & one))
                sign += run
                at += run
        for k in range(_SUMS):
            out[group, k] = total - minus[k] - minus[k]
