"""A lower bound on epsilon from a distinguishing game: what the outcomes of many trials refute, with confidence.

A game has two worlds, with one unit (a sample, a client) and without it, and a score a trial: large scores speak for
the unit. If a mechanism is (epsilon, delta)-differentially private, every event E has

    P(E | with) <= e^epsilon P(E | without) + delta,    and the same with the worlds exchanged.

The events are `score >= t` (where the unit is more likely) and `score < t` (where it is less). Threshold and event
are chosen on the first half of the trials; on the other half both probabilities get a Clopper-Pearson bound, and

    epsilon >= log((lower bound of the likelier - delta) / upper bound of the other).

Formal guarantees (tests/audit/test_epsilon_bound.py):
- the bound exceeds the true epsilon with probability at most 1 - confidence, for every mechanism and every score (the
  two bounds share the risk, so that the two worlds of a trial may even use the same noise);
- it comes close to the true epsilon of randomised response and of Gaussian noise when there are many trials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import brentq

CONFIDENCE = 0.99
_TAIL_CANDIDATES = 200
_EVEN_CANDIDATES = 300
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class EpsilonBound:
    """What a game showed. `event`: on which side of `threshold`; the rates are those of the second half, as counted."""

    epsilon: float
    threshold: float
    event: Literal["score >= threshold", "score < threshold"]
    likelier_rate: float
    other_rate: float
    num_trials: int
    """Of one world, both halves together."""


def epsilon_lower_bound(
    with_unit: ArrayLike, without_unit: ArrayLike, delta: float, confidence: float = CONFIDENCE
) -> EpsilonBound:
    """The bound from the scores of both worlds, one a trial; at least 0. Scores may be infinite, not NaN."""
    inside, outside = _scores(with_unit), _scores(without_unit)
    if not 0 <= delta < 1 or not 0.5 < confidence < 1:
        raise ValueError(f"expected delta in [0, 1) and a confidence above 1/2, got {delta} and {confidence}")
    (choosing_in, judging_in), (choosing_out, judging_out) = _halves(inside), _halves(outside)
    threshold, above = _best_event(choosing_in, choosing_out, delta, confidence)
    likelier = judging_in >= threshold if above else judging_out < threshold
    other = judging_out >= threshold if above else judging_in < threshold
    found = _log_ratio(likelier.sum(), len(likelier), other.sum(), len(other), delta, confidence)
    return EpsilonBound(
        max(0.0, float(found)),
        threshold,
        "score >= threshold" if above else "score < threshold",
        float(likelier.mean()),
        float(other.mean()),
        len(inside),
    )


def largest_bound(num_trials: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """What a game of so many trials a world can show at most: an attacker that is never wrong."""
    judging = num_trials - num_trials // 2
    return float(_log_ratio(judging, judging, 0, judging, delta, confidence))


def num_trials_to_show(epsilon: float, delta: float, confidence: float = CONFIDENCE) -> int:
    """The trials a world with which an attacker that is never wrong shows `epsilon`."""
    count = 16
    while largest_bound(count, delta, confidence) <= epsilon:
        count *= 2
    return count


def gaussian_delta(epsilon: float, separation: float) -> float:
    """delta of Gaussian noise at `epsilon`, exactly; `separation`: how far a unit moves it, in standard deviations."""
    high = stats.norm.cdf(separation / 2 - epsilon / separation)
    log_low = stats.norm.logcdf(-separation / 2 - epsilon / separation)
    return float(high - math.exp(epsilon + log_low))


def gaussian_separation(epsilon: float, delta: float) -> float:
    """The separation at which Gaussian noise has exactly (epsilon, delta)."""
    return float(brentq(lambda separation: gaussian_delta(epsilon, separation) - delta, 1e-6, 1e4))


def _best_event(inside: _Array, outside: _Array, delta: float, confidence: float) -> tuple[float, bool]:
    """The threshold and side with the largest bound on these trials. Only here are many of them looked at."""
    candidates = _candidates(np.concatenate([inside, outside]))
    below_in = np.searchsorted(np.sort(inside), candidates, side="left")
    below_out = np.searchsorted(np.sort(outside), candidates, side="left")
    num_in, num_out = len(inside), len(outside)
    above = _log_ratio(num_in - below_in, num_in, num_out - below_out, num_out, delta, confidence)
    below = _log_ratio(below_out, num_out, below_in, num_in, delta, confidence)
    best_above, best_below = int(np.argmax(above)), int(np.argmax(below))
    if above[best_above] >= below[best_below]:
        return float(candidates[best_above]), True
    return float(candidates[best_below]), False


def _candidates(values: _Array) -> _Array:
    """Thresholds to choose from: all of both tails, and evenly spaced ranks in between."""
    ordered = np.unique(values)
    ranks = np.linspace(0, len(ordered) - 1, _EVEN_CANDIDATES).astype(np.int64)
    tail = np.arange(min(_TAIL_CANDIDATES, len(ordered)))
    chosen: _Array = ordered[np.unique(np.concatenate([ranks, tail, len(ordered) - 1 - tail]))]
    return chosen


def _log_ratio(
    likelier: ArrayLike, num_likelier: int, other: ArrayLike, num_other: int, delta: float, confidence: float
) -> _Array:
    """log((p - delta) / q) with p at its lower and q at its upper Clopper-Pearson bound; each takes half the risk."""
    risk = (1 - confidence) / 2
    hits, misses = np.asarray(likelier, dtype=np.float64), np.asarray(other, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(hits > 0, stats.beta.ppf(risk, hits, num_likelier - hits + 1), 0.0)
        high = np.where(misses < num_other, stats.beta.isf(risk, misses + 1, num_other - misses), 1.0)
        return np.asarray(np.where(low > delta, np.log(np.maximum(low - delta, 0.0) / high), -np.inf))


def _scores(values: ArrayLike) -> _Array:
    found = np.asarray(values, dtype=np.float64).reshape(-1)
    if len(found) < 4 or bool(np.isnan(found).any()):
        raise ValueError(f"expected four or more scores a world, none of them NaN, got {len(found)}")
    return found


def _halves(values: _Array) -> tuple[_Array, _Array]:
    middle = len(values) // 2
    return values[:middle], values[middle:]
