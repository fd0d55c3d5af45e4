"""A lower bound on epsilon from a single run with many canaries (Steinke, Nasr and Jagielski 2023).

Each of m canaries is in the run or not, by a fair coin of its own. Whoever sees the run guesses the coins of some of
them, and abstains from the others. If the run is (epsilon, delta)-differentially private for each canary, then v right
guesses of r have at most the probability (theorem 5.2 there, `chance_of`)

    f(v) + 2 m delta max_i (f(v - i) - f(v)) / i,    f(v) = P(Binomial(r, e^epsilon / (1 + e^epsilon)) >= v).

The bound is the largest epsilon at which what happened has a smaller probability than the risk. How many guesses there
are, and whether only "in" is guessed, is chosen among a few ways that were fixed beforehand; they share the risk.

Formal guarantees (tests/audit/test_one_run_bound.py):
- `chance_of` is no less than the probability of so many right guesses under randomised response that gives a coin away
  with probability delta and is epsilon-private otherwise, by an exact convolution;
- the bound exceeds the true epsilon of randomised response and of Gaussian noise no more often than it says;
- with many canaries and no noise it is large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bilateral.audit.epsilon_bound import CONFIDENCE

SHARES = (3 / 4, 3 / 8, 1 / 8, 1 / 32)
"""Of the canaries that are guessed about. Not all of them: fair coins do not fall half and half, and who guesses as
many "in" as "out" would be wrong about the difference."""
_LARGEST = 64.0
_FEWEST_GUESSES = 4
_HALVINGS = 24


@dataclass(frozen=True)
class OneRunBound:
    """What a run showed: `num_right` of `num_guesses` about `num_canaries`."""

    epsilon: float
    num_guesses: int
    num_right: int
    num_canaries: int

    def __str__(self) -> str:
        return f"{self.num_right} of {self.num_guesses} guesses right, of {self.num_canaries} canaries"


def one_run_epsilon(
    scores: ArrayLike, included: ArrayLike, delta: float, confidence: float = CONFIDENCE
) -> OneRunBound:
    """The bound from a score a canary (large ones speak for "in"; infinite is allowed, NaN is not); at least 0."""
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=bool)
    if values.ndim != 1 or values.shape != inside.shape or len(values) < _FEWEST_GUESSES or np.isnan(values).any():
        raise ValueError(f"expected {_FEWEST_GUESSES} or more scores and as many coins, got {values.shape}")
    if not 0 <= delta < 1 or not 0.5 < confidence < 1:
        raise ValueError(f"expected delta in [0, 1) and a confidence above 1/2, got {delta} and {confidence}")
    order = np.argsort(values, kind="stable")  # coins are fair: whichever of equal scores comes first
    ways = _ways(len(values))
    risk = (1 - confidence) / len(ways)
    found = []
    for low, high in ways:
        right = int((~inside[order[:low]]).sum() + inside[order[len(order) - high :]].sum())
        epsilon = _refuted(len(values), low + high, right, delta, risk)
        found.append(OneRunBound(epsilon, low + high, right, len(values)))
    return max(found, key=lambda one: one.epsilon)


def largest_one_run_bound(num_canaries: int, delta: float, confidence: float = CONFIDENCE, seen: float = 1.0) -> float:
    """What so many canaries show at most, or nearly: an attacker that is never wrong about those that it sees.

    `seen`: of the canaries that are in the run, so many leave a trace (batches are sampled); the others look as if they
    were out.
    """
    ways, shown = _ways(num_canaries), 0.5 * seen * num_canaries
    risk = (1 - confidence) / len(ways)

    def right(low: int, high: int) -> int:
        return int(low * 0.5 / (1 - 0.5 * seen) + min(high, shown) + 0.5 * max(0.0, high - shown))

    return max(_refuted(num_canaries, low + high, right(low, high), delta, risk) for low, high in ways)


def canaries_to_show(epsilon: float, delta: float, most: int, confidence: float = CONFIDENCE, seen: float = 1.0) -> int:
    """How many canaries such an attacker needs to show `epsilon`; no more than `most`.

    If so many cannot show it: as many as show most. (Beyond some number delta costs more than a canary adds.)
    """
    counts = [min(64 << power, most) for power in range(20) if 32 << power < most]
    shown = {count: largest_one_run_bound(count, delta, confidence, seen) for count in counts}
    enough = [count for count, bound in shown.items() if bound > epsilon]
    return min(enough) if enough else max(counts, key=lambda count: shown[count])


def chance_of(num_canaries: int, num_guesses: int, num_right: int, epsilon: float, delta: float) -> float:
    """The most that (epsilon, delta) allows as the probability of so many right guesses, or more."""
    share = 1.0 / (1.0 + np.exp(-epsilon))
    chance = float(stats.binom.sf(num_right - 1, num_guesses, share))
    if delta == 0 or num_right == 0:
        return min(1.0, chance)
    exactly: NDArray[np.float64] = stats.binom.pmf(np.arange(num_right - 1, -1, -1), num_guesses, share)
    steepest = float((np.cumsum(exactly) / np.arange(1, num_right + 1)).max())
    return min(1.0, chance + 2 * num_canaries * delta * steepest)


def _ways(num_canaries: int) -> list[tuple[int, int]]:
    """How many of the lowest scores are taken for "out", and of the highest for "in"."""
    counts = [round(share * num_canaries) for share in SHARES]
    counts = [count for count in counts if count >= _FEWEST_GUESSES]
    return [(count // 2, count - count // 2) for count in counts] + [(0, max(2, count // 2)) for count in counts]


def _refuted(num_canaries: int, num_guesses: int, num_right: int, delta: float, risk: float) -> float:
    """The largest epsilon that this refutes; 0 if none. (More epsilon makes more right guesses likelier.)"""
    if chance_of(num_canaries, num_guesses, num_right, 0.0, delta) > risk:
        return 0.0
    low, high = 0.0, _LARGEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if chance_of(num_canaries, num_guesses, num_right, middle, delta) > risk:
            high = middle
        else:
            low = middle
    return low
