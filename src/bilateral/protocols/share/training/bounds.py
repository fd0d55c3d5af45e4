"""How far numbers may go, and how the first party's limits make sure that none goes farther without a word.

*Random sums.* What a linear layer gives, forward or back, is watched (`Role.watch`): it is cut into groups, and every
group is added up `NUM_SUMS` times with random signs, which no number of the step depends on. Each sum is compared
with a limit T, in size. For a group x of whole numbers:

- if |x_i| > T for some i, each sum is beyond T with probability 1/2 or more (flip that sign: one of the two is);
- if its Euclidean norm is 2T or more, each sum S is beyond T with probability 3/16 or more: by Paley and Zygmund,
  P(S^2 > E S^2 / 4) >= (3/4)^2 (E S^2)^2 / E S^4, where E S^2 = |x|^2 and E S^4 <= 3 |x|^4.

So with 64 independent sums a number above T is missed with probability 2^-64 at most, a group of norm 2T with 2^-19.
Numbers that are in their range are not to be stopped either. A sum is about as large as the group's norm, and one of
many thousands reaches 4 or 5 times that: so T is `LEAST_SUM_MARGIN` times the largest norm of a group on the first
party's own examples, or more (`limits_for` refuses less, and says where).

*Norms.* Of what makes a gradient, the squared norm of every channel is worked out and compared with a limit: a weight's
gradient is at most the product of two of them (Cauchy and Schwarz). Numbers are cut to a few fraction bits first
(`Norm.kept_bits`), each off by less than two units then.

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
    LARGEST_WATCHED,
    PRODUCT_BITS,
    Follower,
    Limits,
    TooLargeError,
    cut_error,
)
from bilateral.protocols.share.training.terms import DELTA_NORM_BITS, VALUE_NORM_BITS, StepTerms

__all__ = ["LEAST_MARGIN", "LEAST_SUM_MARGIN", "PRODUCT_BITS", "Limits", "follow", "limits_for"]

LEAST_MARGIN: Final = 4.0
"""Norms of clients' batches may be at least this many times those of the first party's own examples."""
LEAST_SUM_MARGIN: Final = 6.0
"""Limits of random sums are at least this many times the norms of groups on those examples."""
_VALUE_LIMITS: Final = tuple(LARGEST_WATCHED * 2.0**-halvings for halvings in range(6))
_DELTA_LIMIT_BITS: Final = (13, 12, 11, 10, 9, 8, 7, 6)


def limits_for(
    terms: StepTerms, layers: Sequence[PrivateLayer], expected: dict[str, float], num_clients: int
) -> Limits:
    """Limits that `follow` accepts, with as much room above the `expected` norms as the ring has.

    `expected`: by label, of channels of what makes a gradient, and of groups of what is watched (where they are known).
    `num_clients`: whose gradients are added up.
    """
    norms = _norm_limits(terms, expected, num_clients)
    found: list[tuple[float, str, Limits]] = []
    why = ""
    for values in _VALUE_LIMITS:
        for bits in _DELTA_LIMIT_BITS:
            limits = Limits(2.0**bits, norms, values)
            why = follow(terms, layers, limits, num_clients) or ""
            if not why:
                found.append((*_least_sum_margin(terms, limits, expected), limits))
                break
        if found and found[-1][0] >= _ENOUGH:
            return found[-1][2]
    if not found:
        raise NumericalRangeError(f"Sealed training has no room for this network: {why}.", remedy=_REMEDY)
    margin, label, limits = max(found, key=lambda one: one[0])
    if margin < LEAST_SUM_MARGIN:
        raise NumericalRangeError(
            f"The numbers of {label!r} come too near the limit of sealed training: on the server's own examples there "
            f"is room for ones {margin:.1f} times as large, and {LEAST_SUM_MARGIN:.0f} are wanted.",
            remedy=_REMEDY,
        )
    return limits


def _least_sum_margin(terms: StepTerms, limits: Limits, expected: dict[str, float]) -> tuple[float, str]:
    """Of all that is watched and expected, how many times as large it may be, and its label."""
    labels = [label for label, _ in terms.shape_of_step.watched if expected.get(label)]
    return min(((limits.of(label) / expected[label], label) for label in labels), default=(math.inf, ""))


_REMEDY: Final = "Normalise the inputs, use smaller batches, weight decay or a smaller learning rate."
_ENOUGH: Final = 4 * LEAST_SUM_MARGIN
"""A margin that needs no other limits to be tried."""


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
        product = _of_value(expected, source) * _of_delta(expected, part.layer)
        margin = math.sqrt(room[part.layer] / product)
        if margin < LEAST_MARGIN:
            raise NumericalRangeError(
                f"The gradient of layer {part.layer} comes too near the limit of sealed training: on the server's own "
                f"examples there is room for batches {margin:.1f} times as large, and {LEAST_MARGIN:.0f} are wanted.",
                remedy=_REMEDY,
            )
        margins[source] = min(margin, margins.get(source, math.inf))
    found = {f"norm of value {source}": _of_value(expected, source) * m for source, m in margins.items()}
    for layer, most in room.items():
        found[f"norm of delta {layer}"] = most / found[f"norm of value {terms.source_values[layer]}"]
    bits = {norm.label: 2 * norm.kept_bits + norm.shift for norm in terms.shape_of_step.norms}
    comparable = {label: 2.0 ** ((COMPARED_BITS - used) / 2 - 1) for label, used in bits.items()}
    return {label: min(limit, comparable[label]) for label, limit in found.items()}


def _of_value(expected: dict[str, float], source: int) -> float:
    """What is cut off before numbers are squared must not be what decides."""
    return max(expected[f"norm of value {source}"], cut_error(VALUE_NORM_BITS))


def _of_delta(expected: dict[str, float], layer: int) -> float:
    return max(expected[f"norm of delta {layer}"], cut_error(DELTA_NORM_BITS))


def follow(terms: StepTerms, layers: Sequence[PrivateLayer], limits: Limits, num_clients: int) -> str | None:
    """None if numbers within these limits never leave their range; else which might, and how far."""
    try:
        Follower(terms, layers, limits, num_clients).run()
    except TooLargeError as error:
        return str(error)
    return None
