"""How far numbers may go, and how the first party's limits make sure that none goes farther without a word.

*Random sums.* What a linear layer gives, forward or back, is watched (`Role.watch`): it is cut into groups, and every
group is added up `NUM_SUMS` times with random signs, which no number of the step depends on. Each sum is compared
with a limit T, in size. For a group x of whole numbers:

- if |x_i| > T for some i, each sum is beyond T with probability 1/2 or more (flip that sign: one of the two is);
- if its Euclidean norm is 2T or more, each sum S is beyond T with probability 3/16 or more: by Paley and Zygmund,
  P(S^2 > E S^2 / 4) >= (3/4)^2 (E S^2)^2 / E S^4, where E S^2 = |x|^2 and E S^4 <= 3 |x|^4.

So with 64 independent sums a number above T is missed with probability 2^-64 at most, a group of norm 2T with 2^-19.

*Norms.* Of what makes a gradient, the squared norm of every channel is worked out and compared with a limit: a weight's
gradient is at most the product of two of them (Cauchy and Schwarz). Numbers are cut to `NORM_BITS` fraction bits first,
each off by less than two units then.

`follow` takes both for granted and goes through the network with them, up to the next thing that is watched: no number
wraps around, products that are truncated stay below 2^62, compared numbers below what comparisons take, sums of what is
watched below 2^60, squared norms and the sum of all clients' gradients within their rings. Limits that do not lead
there are refused. So the first numbers of a step that leave their range are found, but with probability 2^-19; what
follows them may be anything, and takes nothing off the count (`Role.settle` adds up bits).

Limits are the first party's secret: it adds them to its shares. What they decide is how a step ends: a first party that
set them too low on purpose would learn how many sums were beyond, and the second would see the step end in an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from bilateral.errors import NumericalRangeError
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.following import (
    COMPARED_BITS,
    PRODUCT_BITS,
    Follower,
    Limits,
    TooLargeError,
)
from bilateral.protocols.share.training.roles import NORM_BITS
from bilateral.protocols.share.training.terms import StepTerms

__all__ = ["LEAST_MARGIN", "PRODUCT_BITS", "Limits", "follow", "limits_for"]

LEAST_MARGIN: Final = 4.0
"""Norms of clients' batches may be at least this many times those of the first party's own examples."""
_DELTA_LIMIT_BITS: Final = (11, 10, 9, 8, 7, 6)


def limits_for(
    terms: StepTerms, layers: Sequence[PrivateLayer], expected: dict[str, float], num_clients: int
) -> Limits:
    """Limits that `follow` accepts, with as much room above the `expected` norms as the ring has.

    `num_clients`: whose gradients are added up.
    """
    norms = _norm_limits(terms, expected, num_clients)
    why = ""
    for bits in _DELTA_LIMIT_BITS:
        limits = Limits(2.0**bits, norms)
        why = follow(terms, layers, limits, num_clients) or ""
        if not why:
            return limits
    raise NumericalRangeError(f"Sealed training has no room for this network: {why}.", remedy=_REMEDY)


_REMEDY: Final = "Normalise the inputs, use smaller batches, weight decay or a smaller learning rate."


def _norm_limits(terms: StepTerms, expected: dict[str, float], num_clients: int) -> dict[str, float]:
    """For the two norms of each layer, so that their product is what its gradient has room for."""
    room: dict[int, float] = {}
    margins: dict[int, float] = {}
    for part in terms.shape_of_step.parts:
        if part.is_bias:
            continue
        source = terms.source_values[part.layer]
        if f"norm of delta {part.layer}" not in expected:
            continue  # the layer leads nowhere
        room[part.layer] = 2.0 ** (PRODUCT_BITS - part.fraction_bits) / num_clients
        product = _at_least(expected[f"norm of value {source}"]) * _at_least(expected[f"norm of delta {part.layer}"])
        margin = math.sqrt(room[part.layer] / product)
        if margin < LEAST_MARGIN:
            raise NumericalRangeError(
                f"The gradient of layer {part.layer} comes too near the limit of sealed training: on the server's own "
                f"examples there is room for batches {margin:.1f} times as large, and {LEAST_MARGIN:.0f} are wanted.",
                remedy=_REMEDY,
            )
        margins[source] = min(margin, margins.get(source, math.inf))
    found = {
        f"norm of value {source}": _at_least(expected[f"norm of value {source}"]) * m for source, m in margins.items()
    }
    for layer, most in room.items():
        found[f"norm of delta {layer}"] = most / found[f"norm of value {terms.source_values[layer]}"]
    largest = 2.0 ** (COMPARED_BITS / 2 - NORM_BITS - 1)
    shifts = dict(terms.shape_of_step.norms)
    return {label: min(limit, largest * 2.0 ** (-shifts[label] / 2)) for label, limit in found.items()}


def _at_least(norm: float) -> float:
    return max(norm, 2.0**-NORM_BITS)


def follow(terms: StepTerms, layers: Sequence[PrivateLayer], limits: Limits, num_clients: int) -> str | None:
    """None if numbers within these limits never leave their range; else which might, and how far."""
    try:
        Follower(terms, layers, limits, num_clients).run()
    except TooLargeError as error:
        return str(error)
    return None
