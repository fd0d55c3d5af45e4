"""Whether batches are drawn as claimed: every sample by a coin of its own, and no more often than was said.

Amplification by sampling rests on it that nobody can tell whether a sample is in a round's batch. Who knows that all
batches have one size, that no sample comes twice in an epoch, or that all clients toss one coin, can tell by the
samples that it knows.

Poisson sampling at the claimed rate keeps every limit with probability 1 - `risk`, all looks at it together
(test_batch_sampling.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

Used = Mapping[tuple[str, int], Tensor]
"""By client and round: of every sample of the client, whether it was in the batch."""
_FEWEST_EXPECTED = 5.0
"""Sizes of batches with a smaller variance are no normal numbers, and nothing is made of their spread."""


@dataclass(frozen=True)
class Sampling:
    """`rate`: a sample is in a batch with this probability at least. `known`: how far that can be told, 0 to 1."""

    rate: float
    known: float

    def implied_rate(self, claimed: float) -> float:
        """As if the attacker could tell in a share `known` of the rounds, and knew the claimed rate in the others."""
        return max(self.rate, claimed + self.known * (1 - claimed)) if self.known > 0 else self.rate


def sampling_limits(used: Used, claimed: Mapping[str, float], risk: float) -> Sampling:
    """The largest rate of a client or of all together, and the clearest sign that its coins are not independent."""
    names = list(dict.fromkeys(name for name, _ in used))
    each = risk / 4
    rates = [_rate_limit([used[key] for key in used if key[0] == name], each / 2 / len(names)) for name in names]
    rates.append(_rate_limit(list(used.values()), each / 2))
    known = (
        _known_by_sizes(used, claimed, each),
        _known_by_overlap(used, claimed, _following_rounds(used), each),
        _known_by_overlap(used, claimed, _fellow_clients(used), each),
    )
    return Sampling(max(rates), max(known))


def _rate_limit(batches: list[Tensor], risk: float) -> float:
    """Clopper-Pearson, the lower end."""
    hits, count = sum(int(batch.sum()) for batch in batches), sum(map(len, batches))
    return float(stats.beta.ppf(risk, hits, count - hits + 1)) if hits else 0.0


def _known_by_sizes(used: Used, claimed: Mapping[str, float], risk: float) -> float:
    """How much smaller than claimed the variance of batches' sizes is: sizes that never change tell the last coin."""
    total, count = 0.0, 0
    for (name, _), batch in used.items():
        mean, rate = claimed[name] * len(batch), claimed[name]
        if mean * (1 - rate) >= _FEWEST_EXPECTED:
            total += (float(batch.sum()) - mean) ** 2 / (mean * (1 - rate))
            count += 1
    return max(0.0, 1.0 - total / float(stats.chi2.ppf(risk, count))) if count else 0.0


Pairs = Iterable[tuple[tuple[str, int], tuple[str, int]]]


def _following_rounds(used: Used) -> Pairs:
    """A client's rounds two by two, each in one pair: so their overlaps are independent."""
    return _two_by_two(used, lambda key: key[0])


def _fellow_clients(used: Used) -> Pairs:
    """A round's clients two by two."""
    return _two_by_two(used, lambda key: key[1])


def _two_by_two(used: Used, group: Callable[[tuple[str, int]], str | int]) -> Pairs:
    waiting: dict[str | int, tuple[str, int]] = {}
    for key in used:
        if group(key) in waiting:
            yield waiting.pop(group(key)), key
        else:
            waiting[group(key)] = key


def _known_by_overlap(used: Used, claimed: Mapping[str, float], pairs: Pairs, risk: float) -> float:
    """The correlation of coins of samples with the same number, if chance does not explain it: too many, or too few."""
    both, expected, spread, count = 0, 0.0, 0.0, 0
    for first, second in pairs:
        size = min(len(used[first]), len(used[second]))
        one, other = claimed[first[0]], claimed[second[0]]
        both += int(torch.logical_and(used[first][:size], used[second][:size]).sum())
        expected += size * one * other
        spread += size * (one * (1 - one) * other * (1 - other)) ** 0.5
        count += size
    if not count or spread == 0:
        return 0.0
    chance = expected / count
    low = float(stats.beta.ppf(risk / 2, both, count - both + 1)) if both else 0.0
    high = float(stats.beta.isf(risk / 2, both + 1, count - both)) if both < count else 1.0
    return min(1.0, max(0.0, low - chance, chance - high) * count / spread)
