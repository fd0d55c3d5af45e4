"""How many partners a participant of the n-out graph needs (in the manner of Bell et al. 2020).

Each of K participants chooses n others uniformly; an edge stands if either end chose it. By symmetry the neighbourhood
of a participant, given its size d, is a uniformly random set of d others, so colluders and dropouts in it follow
hypergeometric laws. d itself is n plus a Binomial(K-1-n, n/(K-1)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

TOLERATED_COLLUSION = 0.2
TOLERATED_DROPOUT = 0.1
LARGEST_PRIVACY_FAILURE = 2.0**-40
LARGEST_ROUND_FAILURE = 2.0**-20


def threshold_of(threshold: float, size: int) -> int:
    """The smallest number above `threshold * size`, at most `size`; 2/3 of 3 is 2, whatever floats make of it."""
    return min(math.floor(Fraction(threshold).limit_denominator(1_000_000) * size) + 1, size)


@dataclass(frozen=True)
class FailureProbabilities:
    """Upper bounds (by union over participants and over cuts) for one round with a random graph.

    `privacy`  some participant has a threshold of colluders around it, or the honest survivors fall apart into parts
               whose separate sums would show
    `round`    some participant has fewer surviving neighbours than the threshold, so the round must be given up
    """

    privacy: float
    round: float


def failure_probabilities(
    num_participants: int, num_chosen: int, threshold: float, *, collusion: float, dropout: float
) -> FailureProbabilities:
    """For a set of colluders and one of dropouts that were fixed before the graph was drawn."""
    others = num_participants - 1
    colluders, dropouts = math.floor(collusion * num_participants), math.floor(dropout * num_participants)
    degrees, probability, left_out = _degrees(num_participants, num_chosen)
    needed = np.array([threshold_of(threshold, degree + 1) for degree in degrees.tolist()])
    # The owner's own share does not help: a curious server does not have it, and a dropped owner does not send it.
    among = np.arange(int(degrees.max()) + 1)
    colluding = _hypergeometric(among, others, colluders, degrees[:, None])
    surviving = _hypergeometric(among, others, others - dropouts, degrees[:, None])
    captured = probability @ np.where(among >= needed[:, None], colluding, 0.0).sum(1) + left_out
    lost = probability @ np.where(among < needed[:, None], surviving, 0.0).sum(1) + left_out
    honest = num_participants - colluders - dropouts
    privacy = num_participants * captured + _disconnection(num_participants, num_chosen, honest)
    return FailureProbabilities(min(1.0, float(privacy)), min(1.0, float(num_participants * lost)))


@lru_cache(maxsize=64)
def default_num_neighbours(num_participants: int, threshold: float) -> int:
    """The smallest n that tolerates 20 % colluders and 10 % dropouts.

    With it, a round's privacy fails with probability at most 2^-40 and a round is lost with probability at most 2^-20,
    over the choice of the graph, if colluders and dropouts do not depend on the graph. Where no smaller n does (few
    participants, a threshold close to 1) it is K - 1, the complete graph.
    """
    for num_chosen in range(1, num_participants - 1):
        failure = failure_probabilities(
            num_participants, num_chosen, threshold, collusion=TOLERATED_COLLUSION, dropout=TOLERATED_DROPOUT
        )
        if failure.privacy <= LARGEST_PRIVACY_FAILURE and failure.round <= LARGEST_ROUND_FAILURE:
            return num_chosen
    return max(1, num_participants - 1)


def _degrees(num_participants: int, num_chosen: int) -> tuple[_Integers, _Floats, float]:
    """Likely degrees and their probabilities; the rest of the probability is returned, and counted as failure."""
    others = num_participants - 1
    degrees = np.arange(num_chosen, others + 1)
    chosen_by, choosers, rate = degrees - num_chosen, others - num_chosen, num_chosen / others
    if choosers == 0:
        return degrees, np.ones(1), 0.0
    log_probability = (
        _log_binomial(choosers, chosen_by) + chosen_by * math.log(rate) + (choosers - chosen_by) * math.log1p(-rate)
    )
    probability = np.exp(log_probability)
    likely = probability > 1e-22
    return degrees[likely], probability[likely], float(probability[~likely].sum())


def _disconnection(num_participants: int, num_chosen: int, honest: int) -> float:
    """Bound on the probability that the graph on the `honest` participants is not connected.

    It is not iff a set of s <= honest/2 of them has no edge to the others: none of the s chose one of the others, and
    none of the others chose one of the s. Choices of different participants are independent.
    """
    if honest < 2:
        return 1.0
    size = np.arange(1, honest // 2 + 1)
    total = num_participants - 1
    inside_only = size * _log_avoid(total, honest - size, num_chosen)
    outside_only = (honest - size) * _log_avoid(total, size, num_chosen)
    bounds = _log_binomial(honest, size) + inside_only + outside_only
    return float(np.exp(np.minimum(bounds, 0.0)).sum())  # what is above 1 bounds nothing


def _log_avoid(total: int, avoided: _Integers, drawn: int) -> _Floats:
    """log of the probability that `drawn` of `total` include none of the `avoided` ones."""
    return _log_binomial(total - avoided, drawn) - _log_binomial(total, drawn)


def _hypergeometric(count: _Integers, total: int, marked: int, drawn: _Integers) -> _Floats:
    """Probability of `count` marked ones among `drawn` of `total`."""
    ways = _log_binomial(marked, count) + _log_binomial(total - marked, drawn - count)
    return np.exp(ways - _log_binomial(total, drawn))


def _log_binomial(total: int | _Integers, chosen: int | _Integers) -> _Floats:
    """log of total over chosen; -inf where there is no way to choose."""
    total, chosen = np.broadcast_arrays(np.asarray(total), np.asarray(chosen))
    possible = (chosen >= 0) & (chosen <= total)
    kept = np.where(possible, chosen, 0)
    table = _log_factorials(int(total.max()))
    return np.where(possible, table[total] - table[kept] - table[total - kept], -np.inf)


@lru_cache(maxsize=64)
def _log_factorials(largest: int) -> _Floats:
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, largest + 1, dtype=np.float64)))))
