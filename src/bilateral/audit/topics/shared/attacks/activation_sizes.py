"""The querying party measures how large a layer's numbers are: what the hardened comparison leaves (ledger, line 5).

log2 |u| = log2 |t| + log2 k, in random order, and the distribution of log2 k is public. The naive attacker takes all
factors for equal. The adaptive one knows their distribution and
- subtracts its mean: the mean of log2 |t| of a layer;
- deconvolves (Richardson and Lucy): the distribution of log2 |t|;
- counts what is smaller than any factor: numbers that are zero. Pruned channels, or flat regions before max pooling.

Of several views of the same queries all numbers are pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from torch import Tensor

from bilateral.protocols.share.gates.judged import Blinding, factor_bits
from bilateral.protocols.share.gates.styles import STYLES, ComparisonStyle
from bilateral.protocols.share.ring.streams import SEED_BYTES, Stream

BINS_AN_OCTAVE = 4
LOG_SIZES = np.arange(0, 44 * BINS_AN_OCTAVE) / BINS_AN_OCTAVE
"""Where a distribution of log2 |t| lives: compared numbers are below 2^42."""
_NUM_FACTORS = 1 << 16
_ITERATIONS = 60


@dataclass(frozen=True, eq=False)
class ReadSizes:
    """A guess about the numbers of one layer for one query.

    `distribution`: over `LOG_SIZES`, of those that are not zero. `zeros`: the share of numbers that are zero, give or
    take the unit by which truncation rounds.
    """

    mean_log: float
    distribution: np.ndarray
    zeros: float


def read_naively(blinded: Tensor, fraction_bits: int) -> ReadSizes:
    """All factors taken for 2^(their bits - 1): half of the largest, as their mean is in the published style."""
    logs = log_sizes(blinded) - (factor_bits(fraction_bits) - 1)
    return ReadSizes(float(logs.mean()), histogram(logs), 0.0)


def read_adaptively(blinded: Sequence[Tensor], style: ComparisonStyle, fraction_bits: int) -> ReadSizes:
    """u of one query in one comparison, from one or more views."""
    logs = np.concatenate([log_sizes(view) for view in blinded])
    is_zero = logs < factor_bits(fraction_bits) + 1  # |u| < k (|t| + 1), and |t| <= 1
    others = logs[~is_zero] if not is_zero.all() else logs
    factors = _log_factors(style.name, fraction_bits)
    return ReadSizes(float(others.mean() - factors.mean()), _deconvolved(others, factors), float(is_zero.mean()))


def histogram(logs: np.ndarray) -> np.ndarray:
    """Shares of `logs` over the bins of `LOG_SIZES`; what lies outside counts at the ends."""
    places = np.clip(np.round(logs * BINS_AN_OCTAVE).astype(np.int64), 0, len(LOG_SIZES) - 1)
    counts: np.ndarray = np.bincount(places, minlength=len(LOG_SIZES)) / max(1, len(logs))
    return counts


def log_sizes(numbers: Tensor) -> np.ndarray:
    """log2 of sizes, flat."""
    found: np.ndarray = numbers.double().abs().clamp_min(1.0).log2().reshape(-1).numpy()
    return found


@cache
def _log_factors(style_name: str, fraction_bits: int) -> np.ndarray:
    """log2 of factors as the protocol draws them, from a stream of the attacker's own."""
    stream = Stream.of(bytes(SEED_BYTES), "comparison", 0, 0)
    drawn = Blinding.draw(stream, (1, _NUM_FACTORS), fraction_bits, STYLES[style_name])
    return log_sizes(drawn.factors)


def _deconvolved(logs: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """The distribution of log2 |t| that best explains log2 |u|, by maximum likelihood."""
    num_bins = len(LOG_SIZES)
    span = np.round(factors * BINS_AN_OCTAVE).astype(np.int64)
    kernel = np.bincount(span) / len(span)
    counts = np.bincount(np.round(logs * BINS_AN_OCTAVE).astype(np.int64), minlength=num_bins + len(kernel) - 1)
    seen = counts[: num_bins + len(kernel) - 1] / len(logs)
    guess = np.full(num_bins, 1.0 / num_bins)
    for _ in range(_ITERATIONS):
        explained = np.convolve(guess, kernel)
        ratio = np.divide(seen, explained, out=np.zeros_like(seen), where=explained > 1e-12)
        guess = guess * np.correlate(ratio, kernel, mode="valid")
        guess = guess / guess.sum()
    return guess
