"""Poisson batches: what the accounting of differential privacy assumes about sampling."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilateral.errors import PlanError
from bilateral.randomness import Randomness


@dataclass(frozen=True)
class PoissonSchedule:
    """Every sample is in a round's batch with probability `rate`, independently of all others and of other rounds.

    A batch may be empty. Who must not learn which samples were used must not know `randomness`.
    """

    num_samples: int
    rate: float
    randomness: Randomness

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise PlanError(f"Expected a sampling rate above 0 and at most 1, got {self.rate}.")

    def batch(self, round_index: int) -> Tensor:
        """Indices of the round's samples, ascending."""
        drawn = self.randomness.child("poisson", round_index).uniform(self.num_samples)
        return (drawn < self.rate).nonzero().reshape(-1)
