"""Figures with their uncertainty: metrics, raw scores, intervals, and the test that compares an attack with chance.

Formal guarantees (tests/audit/test_scores.py): intervals cover the truth as often as they say; a comparison of scores
drawn from one distribution calls it a difference no more often than its level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np

from bilateral.audit.permutations import NUM_RESAMPLES, FloatArray, chance_of_a_larger_mean

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Metric:
    """What is measured. `better`: which way is good for the attacker. A `rate` is a mean of zeros and ones."""

    name: str
    better: Literal["high", "low"]
    is_rate: bool = False
    digits: int = 3
    is_share: bool = False
    """Between 0 and 1; an interval does not go beyond."""


PSNR = Metric("PSNR dB", "high", digits=1)
SSIM = Metric("SSIM", "high", digits=2)
RECONSTRUCTED = Metric("images above 20 dB", "high", is_rate=True, digits=2)
INPUT_ERROR = Metric("relative error of the sample", "low", digits=2)
LABEL = Metric("labels read", "high", is_rate=True, digits=2)
TEST_MSE = Metric("test MSE", "low", digits=3)
FEATURE_MSE = Metric("feature MSE", "low", digits=4)
PERCEPTUAL = Metric("perceptual distance (own network)", "low")
AUC = Metric("AUC", "high", is_share=True)
BALANCED_ACCURACY = Metric("balanced accuracy", "high", is_share=True)
TPR_AT_1 = Metric("TPR at 1 % FPR", "high", is_share=True)
AGREEMENT = Metric("agreement with the true model", "high", is_share=True)
"""Of a round, over many samples: no rate of independent zeros and ones, since they share the round's secrets."""
SOFTMAX_ERROR = Metric("largest softmax error", "low", digits=2)
PARAMETER_ERROR = Metric("relative parameter error", "low")
EPSILON_BOUND = Metric("epsilon, lower bound", "high", digits=2)


@dataclass(frozen=True)
class Scores:
    """Raw figures of one metric, one a trial (an image, a seed, a sample), and their interval.

    `interval` is given where it does not come from the spread of the values (a bound that holds with confidence).
    """

    metric: Metric
    values: tuple[float, ...]
    given_interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"{self.metric.name}: no scores")
        if any(math.isnan(value) for value in self.values):
            raise ValueError(f"{self.metric.name}: a score is not a number")

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def interval(self) -> tuple[float, float]:
        """95 %: Clopper-Pearson for rates, Student's t for means."""
        if self.given_interval is not None:
            return self.given_interval
        low, high = rate_interval(self.values) if self.metric.is_rate else mean_interval(self.values)
        return (max(0.0, low), min(1.0, high)) if self.metric.is_share else (low, high)


def rate_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Clopper-Pearson."""
    count = len(values)
    hits = round(sum(values))
    if any(value not in (0.0, 1.0) for value in values):
        raise ValueError("a rate is made of zeros and ones")
    found = _stats().binomtest(hits, count).proportion_ci(confidence, method="exact")
    return float(found.low), float(found.high)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's t; of one value nothing is known."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = float(_stats().sem(values)) * float(_stats().t.ppf(0.5 + confidence / 2, len(values) - 1))
    middle = float(np.mean(values))
    return middle - half, middle + half


@lru_cache(maxsize=4096)
def p_value(target: Scores, control: Scores, *, paired: bool) -> float:
    """How likely a difference in the attacker's favour this large is if the target is no better than the control.

    Permutation test on the means: signs of differences are flipped if paired, otherwise scores change sides. The same
    scores are asked about many times, when an audit ends and whenever it is shown, and always get the same draws.
    """
    _expect_comparable(target, control, paired=paired)
    sign = 1.0 if target.metric.better == "high" else -1.0
    ours, theirs = sign * np.asarray(target.values), sign * np.asarray(control.values)
    ours, theirs = _without_infinities(ours, theirs)
    if paired and not np.any(ours - theirs):
        return 1.0
    return chance_of_a_larger_mean(ours, theirs, paired=paired)


def smallest_p_value(target: Scores, control: Scores, *, paired: bool) -> float:
    """What the test could say at best: with fewer trials than it needs, it can never call anything a difference."""
    if paired:
        exact = 0.5 ** len(target.values)
    else:
        exact = 1.0 / math.comb(len(target.values) + len(control.values), len(target.values))
    return exact if exact * NUM_RESAMPLES >= 1.0 else 1.0 / (NUM_RESAMPLES + 1)


def _without_infinities(ours: FloatArray, theirs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """An infinite score (a perfect reconstruction, one that diverged) counts as a little beyond all finite ones.

    Means of infinities cannot be compared: one of them would decide the test, whichever side it is on.
    """
    finite = np.concatenate([ours, theirs])
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    margin = max(1e-3 * abs(high), 1e-3 * abs(low), high - low, 1e-3)
    low, high = low - margin, high + margin
    return np.clip(ours, low, high), np.clip(theirs, low, high)


def _expect_comparable(target: Scores, control: Scores, *, paired: bool) -> None:
    if target.metric.name != control.metric.name:
        raise ValueError(f"{target.metric.name} cannot be compared with {control.metric.name}")
    if paired and len(target.values) != len(control.values):
        raise ValueError(f"{len(target.values)} scores cannot be paired with {len(control.values)}")


@cache
def _stats() -> Any:
    """SciPy's statistics, loaded when there is something to judge: every command would wait for it otherwise."""
    from scipy import stats  # noqa: PLC0415

    return stats
