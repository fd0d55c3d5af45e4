"""Adaptive clipping: the norm follows a quantile of the norms (Andrew, Thakkar, McMahan, Ramaswamy 2021).

1. client: beside the clipped terms, upload how many units lie at or below the norm, minus one half each, with noise
2. server: `b = sum / expected number of units + 1/2`, and `norm <- norm * exp(-learning_rate * (b - target_quantile))`

The count is an answer about the data and is paid for. With noise of standard deviation `count_noise` on the count
(whose sensitivity is 1/2), terms that carry the multiplier `z_terms = (z^-2 - (2 count_noise)^-2)^(-1/2)` and the count
together spend exactly what a single Gaussian with multiplier z does (Andrew et al., Theorem 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bilateral.errors import NumericalRangeError, PlanError, ProtocolError
from bilateral.protocols.messages import Aggregate, Upload
from bilateral.protocols.noise.clipping import Clipped, ClipSettings


@dataclass(frozen=True)
class AdaptiveClip:
    """`count_noise`: standard deviation of the noise on the count of all clients, in units (samples or clients)."""

    target_quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.target_quantile < 1:
            raise PlanError(f"Expected a target quantile between 0 and 1, got {self.target_quantile}.")
        for name, value in (("learning rate", self.learning_rate), ("count noise", self.count_noise)):
            if not 0 < value < math.inf:
                raise PlanError(f"Expected an adaptive clipping {name} above 0, got {value}.")

    def terms_multiplier(self, noise_multiplier: float) -> float:
        """z of the terms, so that terms and count together spend what `noise_multiplier` alone does."""
        left = noise_multiplier**-2 - (2.0 * self.count_noise) ** -2
        if left <= 0:
            raise PlanError(
                f"Count noise of {self.count_noise} spends more than the noise multiplier {noise_multiplier} allows.",
                remedy=f"Use a count noise above {noise_multiplier / 2:g}; a twentieth of the expected units is usual.",
            )
        return float(left**-0.5)


def upload_of(clipped: Clipped, round_index: int, *, with_count: bool) -> Upload:
    """Clipped terms as an upload of weight 1, with the count as its only statistic if it is wanted."""
    count = [clipped.below_minus_half] if with_count else []
    return Upload(round_index, 1, clipped.terms, torch.tensor(count, dtype=torch.float64))


class AdaptiveNorm:
    """The server's half: holds the current norm and learns from each round's noisy count."""

    def __init__(
        self, settings: AdaptiveClip, clip: ClipSettings, limits: tuple[float, float] = (0.0, math.inf)
    ) -> None:
        """`limits`: the norm stays between these, so that uploads stay in a range that was fixed beforehand."""
        self._settings = settings
        self._clip = clip
        self._limits = limits

    @property
    def clip(self) -> ClipSettings:
        """What clients use in the coming round."""
        return self._clip

    def take(self, total: Aggregate) -> Aggregate:
        """Step 2. Returns the aggregate without the count."""
        if total.statistics.shape != (1,):
            raise ProtocolError(
                f"The aggregate of round {total.round_index} has {total.statistics.numel()} statistics, expected the "
                "count of adaptive clipping alone.",
                remedy="All sides must run the same plan.",
            )
        # Clients already divided by the expected batch size, so the weights count clients in both units.
        share = float(total.statistics[0]) / total.total_weight + 0.5
        norm = self._clip.norm * math.exp(-self._settings.learning_rate * (share - self._settings.target_quantile))
        low, high = self._limits
        norm = min(max(norm, low), high)
        if not 0 < norm < math.inf:
            raise NumericalRangeError(
                f"The clipping norm became {norm} in round {total.round_index}.",
                remedy="Lower the learning rate of adaptive clipping, or raise the expected batch size.",
            )
        self._clip = self._clip.with_norm(norm)
        return replace(total, statistics=total.statistics[:0])

    def state_tensors(self) -> dict[str, Tensor]:
        return {"norm": torch.tensor(self._clip.norm, dtype=torch.float64)}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        if tensors:
            self._clip = self._clip.with_norm(float(tensors["norm"]))
