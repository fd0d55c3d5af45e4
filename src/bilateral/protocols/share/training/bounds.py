"""How far numbers may go, and how the first party's limits make sure that none goes farther without a word.

What is watched (`Role.watch`) is cut into groups, and every group is added up `NUM_SUMS` times with random signs that
no number of the step depends on. Each sum is compared with a limit T, in size. For a group x:

- if |x_i| > T for some i, each sum is beyond T with probability 1/2 or more (flip that sign: one of the two is);
- if its Euclidean norm is 2T or more, each sum S is beyond T with probability 3/16 or more: by Paley and Zygmund,
  P(S^2 > E S^2 / 4) >= (3/4)^2 (E S^2)^2 / E S^4, where E S^2 = |x|^2 and E S^4 <= 3 |x|^4.

So with 64 sums a number above T is missed with probability 2^-64, a group of norm 2T with 2^-19: at most, for the
signs of different sums are independent. `follow` takes both for granted ("no number above T, no group of norm 2T or
more") and follows them through the network, forward and backward, up to the next thing that is watched: no number wraps
around, every product that is truncated stays below 2^62, every compared number below what comparisons take, every sum
of what is watched below 2^60, every client's gradient below its part of 2^62. It refuses limits that do not lead there.
So the first numbers of a step that leave their range are found, but with probability 2^-19; what follows them may be
anything, and counts nothing off (`Role.settle` adds up bits).

Nothing here is told to anybody: limits are added to the first party's shares. What they stand for is how a step ends: a
first party that set them too low on purpose would learn how many sums were beyond, once, and the second party would
see the step end in an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from bilateral.errors import NumericalRangeError
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.following import PRODUCT_BITS, Follower, TooLargeError
from bilateral.protocols.share.training.tape import LARGEST
from bilateral.protocols.share.training.terms import StepTerms

__all__ = ["LEAST_MARGIN", "PRODUCT_BITS", "follow", "limits_for"]

LEAST_MARGIN: Final = 6.0
"""Limits are at least this many times the norms that the first party's own examples show: random sums go up to five."""
_MOST_MARGIN: Final = 2.0**24
_LEAST_LIMIT: Final = 1 << 10
_MOST_LIMIT: Final = 1 << 58
_SPARE: Final = 1 << 10
"""Units of the last place that what is compared stays below `LARGEST`: roundings on the way there."""


def limits_for(
    terms: StepTerms, layers: Sequence[PrivateLayer], group_norms: dict[str, float], num_clients: int
) -> dict[str, int]:
    """Limits in units of the last place, as far above `group_norms` as the network allows, all by one factor.

    `group_norms`: what the first party expects of a batch of this size (`sizing`). `num_clients`: whose gradients are
    added up in the ring.
    """
    found = follow(terms, layers, _limits(terms, group_norms, LEAST_MARGIN), num_clients)
    if found is not None:
        raise NumericalRangeError(
            "Numbers of this network come too near the limits of sealed training: on the server's own examples there "
            f"is no room for {LEAST_MARGIN:.0f} times their size, where {found}.",
            remedy="Normalise the inputs, use smaller batches, weight decay or a smaller learning rate.",
        )
    low, high = math.log2(LEAST_MARGIN), math.log2(_MOST_MARGIN)
    for _ in range(24):
        middle = (low + high) / 2
        if follow(terms, layers, _limits(terms, group_norms, 2.0**middle), num_clients) is None:
            low = middle
        else:
            high = middle
    return _limits(terms, group_norms, 2.0**low)


def _limits(terms: StepTerms, group_norms: dict[str, float], margin: float) -> dict[str, int]:
    """Never below a few units, never beyond what comparisons take."""
    found = {}
    for label, _ in terms.shape_of_step.watched:
        most = _MOST_LIMIT
        if label.startswith(("layer", "value")):
            most = (LARGEST << FRACTION_BITS) - _SPARE  # what is watched there is whole (`StepTerms`)
        found[label] = min(int(max(group_norms[label] * margin, _LEAST_LIMIT)), most)
    return found


def follow(terms: StepTerms, layers: Sequence[PrivateLayer], limits: dict[str, int], num_clients: int) -> str | None:
    """None if numbers within these limits never leave their range; else which might, and where."""
    try:
        Follower(terms, layers, limits, num_clients).run()
    except TooLargeError as error:
        return str(error)
    return None
