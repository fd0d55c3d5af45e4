"""How well scores tell members from strangers: AUC, balanced accuracy, true positives at few false ones.

A score is one number a candidate; higher means "more likely a member".

Formal guarantees (tests/audit/test_membership_metrics.py): the AUC is the share of (member, stranger) pairs that are
in the right order, ties counting half; no more strangers pass the threshold of `tpr_at_fpr` than its rate allows; no
threshold is chosen on the candidates that it is judged by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from bilateral.audit.scores import AUC, BALANCED_ACCURACY, CONFIDENCE, TPR_AT_1, Scores

Values = NDArray[np.float64]
Statistic = Callable[[Values, Values], float]
NUM_BOOTSTRAPS = 300


def auc(members: Values, strangers: Values) -> float:
    """The chance that a member scores higher than a stranger."""
    _expect_some(members, strangers)
    ranks = stats.rankdata(np.concatenate([members, strangers]))
    count = len(members)
    return float((ranks[:count].sum() - count * (count + 1) / 2) / (count * len(strangers)))


def tpr_at_fpr(members: Values, strangers: Values, rate: float = 0.01) -> float:
    """The share of members above a threshold that at most `rate` of the strangers pass.

    Of fewer than 1 / rate strangers none may pass.
    """
    _expect_some(members, strangers)
    allowed = int(rate * len(strangers) + 1e-9)
    threshold = np.sort(strangers)[::-1][allowed] if allowed < len(strangers) else -np.inf
    return float(np.mean(members > threshold))


def best_threshold(members: Values, strangers: Values) -> float:
    """Whoever scores above it is called a member: the threshold with the highest balanced accuracy."""
    _expect_some(members, strangers)
    values = np.unique(np.concatenate([members, strangers]))
    between = np.concatenate([[-np.inf], (values[:-1] + values[1:]) / 2])
    hits = 1.0 - np.searchsorted(np.sort(members), between, side="right") / len(members)
    alarms = 1.0 - np.searchsorted(np.sort(strangers), between, side="right") / len(strangers)
    return float(between[np.argmax(hits - alarms)])


def balanced_accuracy(members: Values, strangers: Values, threshold: float) -> float:
    """The mean of the shares of members and of strangers that a threshold gets right."""
    _expect_some(members, strangers)
    return float((np.mean(members > threshold) + np.mean(strangers <= threshold)) / 2)


def crossed_balanced_accuracy(members: Values, strangers: Values) -> float:
    """Balanced accuracy at a threshold from one half of the candidates, judged by the other half, both ways round."""
    if min(len(members), len(strangers)) < 2:
        raise ValueError("two members and two strangers are needed, to choose a threshold and to judge it")
    halves = [(members[::2], strangers[::2]), (members[1::2], strangers[1::2])]
    found = [balanced_accuracy(*judged, best_threshold(*chosen)) for chosen, judged in (halves, halves[::-1])]
    return float(np.mean(found))


def bootstrap_interval(
    statistic: Statistic, members: Values, strangers: Values, *, seed: int = 0, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """The interval of a figure inside one run: candidates are drawn anew, with replacement."""
    _expect_some(members, strangers)
    draws = np.random.default_rng(seed)
    found = [statistic(draws.choice(members, len(members)), draws.choice(strangers, len(strangers))) for _ in _COUNT]
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


_COUNT = range(NUM_BOOTSTRAPS)


def membership_scores(trials: Sequence[tuple[Tensor, Tensor]]) -> tuple[Scores, ...]:
    """AUC, balanced accuracy and TPR at 1 % FPR of (members' scores, strangers' scores), one pair a trial."""
    pairs = [(as_values(members), as_values(strangers)) for members, strangers in trials]
    return (
        Scores(AUC, tuple(auc(*pair) for pair in pairs)),
        Scores(BALANCED_ACCURACY, tuple(crossed_balanced_accuracy(*pair) for pair in pairs)),
        Scores(TPR_AT_1, tuple(tpr_at_fpr(*pair) for pair in pairs)),
    )


def as_values(scores: Tensor) -> Values:
    return scores.detach().double().numpy()


def _expect_some(members: Values, strangers: Values) -> None:
    if not len(members) or not len(strangers):
        raise ValueError(f"expected members and strangers, got {len(members)} and {len(strangers)}")
