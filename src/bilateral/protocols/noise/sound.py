"""Sound distributed differential privacy: every client clips and adds Gaussian noise, and only the sum is seen.

1. client: clip (`clipping.py`), so that one unit changes the sum of all uploads by at most `sensitivity`
2. client: add N(0, (z * sensitivity)^2 / min_honest) to every coordinate, then mask (`protocols/mask`)
3. server: sees the sum alone

Formal guarantees (tests/protocols/noise/test_sound.py):
- the sum over any `min_honest` or more honest clients carries noise of variance (z * sensitivity)^2 or more, all that
  a trusted server would have added, whatever the other clients do; over K clients it carries K / min_honest times that,
  which is the price of dropouts and colluders;
- clipping and noise act on what is sent, so nothing depends on scale factors, group secrets, or who knows them.

Noise and data are each rounded to a grid (a power of two, about 2^-24 of the noise) before they are added, and the sum
of grid numbers is exact. The noise is therefore independent of the data to the last bit, and what rounding the data
costs is a slightly larger sensitivity, which `effective_multiplier` puts into the accounting (docs/decisions/0011).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from bilateral.errors import NumericalRangeError, PlanError, ProtocolError
from bilateral.protocols.messages import Upload
from bilateral.protocols.noise.adaptive import AdaptiveClip
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.noise.round_counter import MemoryCounter, RoundCounter
from bilateral.randomness import Randomness, SecureRandomness

GRID_BITS: Final = 24
"""The noise of one client is 2^24 to 2^25 grid units wide."""
_RADIUS_BITS: Final = 128
MISSING_TAIL: Final = 2.0**-_RADIUS_BITS
"""Probability of a pair of normal numbers that `standard_normal` cannot draw (13.3 standard deviations)."""


@dataclass(frozen=True)
class SoundNoiseSettings:
    """Privacy settings, public and the same for all clients.

    `noise_multiplier`  z: standard deviation of the noise in the sum, over the sensitivity
    `min_honest`        honest clients in every sum, besides the observer and who colludes with it: the fewest clients
                        of a sum, minus the colluders, minus one (a curious client knows its own noise as well)
    `max_colluders`     clients that may tell the server, or each other, their noise and their masks
    `delta`             at which epsilon is stated
    `adaptive`          the clipping norm follows a quantile; terms and count share the noise multiplier
    """

    clip: ClipSettings
    noise_multiplier: float
    min_honest: int
    max_colluders: int = 0
    delta: float = 1e-5
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        if not 0 < self.noise_multiplier < math.inf:
            raise PlanError(f"Expected a noise multiplier above 0, got {self.noise_multiplier}.", remedy="Try 1.")
        if self.min_honest < 1 or self.max_colluders < 0:
            raise PlanError(
                f"Expected at least 1 honest client in every sum, got {self.min_honest} (and {self.max_colluders} "
                "colluders).",
                remedy="Raise the threshold of the aggregation, or tolerate fewer colluders.",
            )
        if not 0 < self.delta < 1:
            raise PlanError(f"Expected delta between 0 and 1, got {self.delta}.", remedy="Try 1e-5.")
        if self.adaptive is not None:
            self.adaptive.terms_multiplier(self.noise_multiplier)  # refuses a count that spends too much

    @property
    def terms_multiplier(self) -> float:
        """z of the terms alone: more than `noise_multiplier` if a count is sent beside them."""
        if self.adaptive is None:
            return self.noise_multiplier
        return self.adaptive.terms_multiplier(self.noise_multiplier)

    def term_deviations(self, num_terms: int) -> list[float]:
        """Standard deviation of one client's noise on each uploaded term."""
        central = self.terms_multiplier * self.clip.sensitivity
        return [central / scale / math.sqrt(self.min_honest) for scale in self.clip.scales(num_terms).tolist()]

    @property
    def count_deviation(self) -> float:
        """Standard deviation of one client's noise on the count of adaptive clipping."""
        assert self.adaptive is not None
        return self.adaptive.count_noise / self.clip.expected_batch_size / math.sqrt(self.min_honest)


def grid_exponent(deviation: float) -> int:
    """The grid unit is two to this power, between deviation / 2^25 and deviation / 2^24."""
    exponent = math.frexp(deviation)[1] - 1 - GRID_BITS  # deviation is in [2^e, 2^(e+1))
    if not -1000 < exponent < 900:
        raise NumericalRangeError(
            f"Noise of standard deviation {deviation:.3g} has no grid in float64.",
            remedy="Choose a clipping norm nearer to 1.",
        )
    return exponent


def grid_bits(settings: SoundNoiseSettings, num_terms: int) -> tuple[int, ...]:
    """Fraction bits of each row of an upload, statistics last: an encoder with as many keeps every bit of the sum."""
    deviations = settings.term_deviations(num_terms)
    last = [settings.count_deviation] if settings.adaptive is not None else deviations[:1]
    return tuple(-grid_exponent(deviation) for deviation in (*deviations, *last))


def effective_multiplier(settings: SoundNoiseSettings, num_terms: int, num_parameters: int) -> float:
    """z with the sensitivity that rounding leaves: a little less than `noise_multiplier`. Accounting uses this one.

    Two neighbouring sums may be rounded apart by a whole unit a coordinate (half a unit each), so the sensitivity
    grows by at most the norm of a vector of units.
    """
    scales = settings.clip.scales(num_terms).tolist()
    deviations = settings.term_deviations(num_terms)
    units = [scale * _largest_unit(settings, d) for scale, d in zip(scales, deviations, strict=True)]
    sensitivity = settings.clip.sensitivity + math.sqrt(num_parameters * sum(unit**2 for unit in units))
    spent = (sensitivity / (settings.terms_multiplier * settings.clip.sensitivity)) ** 2
    if settings.adaptive is not None:
        size = settings.clip.expected_batch_size
        rounded = 0.5 / size + _largest_unit(settings, settings.count_deviation)
        spent += (rounded * size / settings.adaptive.count_noise) ** 2
    return float(spent**-0.5)


def _largest_unit(settings: SoundNoiseSettings, deviation: float) -> float:
    """The grid's unit; the largest it may be relative to the noise where an adaptive norm moves both."""
    if settings.adaptive is not None:
        return deviation * 2.0**-GRID_BITS
    return math.ldexp(1.0, grid_exponent(deviation))


def missing_tails(num_coordinates: int, num_rounds: int, num_clients: int) -> float:
    """Total variation between the noise as drawn and a noise with full tails, for all draws of a run together."""
    return num_coordinates * num_rounds * num_clients * MISSING_TAIL


def standard_normal(count: int, randomness: Randomness) -> Tensor:
    """Standard normal numbers in float64, by the Box-Muller transform with a 128-bit radius.

    A radius from 53 bits would end at 8.57 and be coarse long before. Here the uniform number under the logarithm keeps
    53 significant bits down to 2^-128: the radius is as fine in the tails as anywhere, and ends at 13.3.
    """
    pairs = (count + 1) // 2
    words = np.frombuffer(randomness.random_bytes(24 * pairs), dtype="<u8").reshape(3, pairs)
    high, low, angle = (row.astype(np.float64) for row in words)
    uniform = np.maximum(high * 2.0**-64 + low * 2.0**-128, 2.0**-_RADIUS_BITS)
    radius = np.sqrt(-2.0 * np.log(np.minimum(uniform, 1.0)))
    turn = 2.0 * np.pi * 2.0**-64 * angle
    both = np.concatenate([radius * np.cos(turn), radius * np.sin(turn)])
    return torch.from_numpy(both[:count])


class DistributedGaussian:
    """One client's noise. `randomness` is this client's own: two clients with one stream would cancel nothing.

    `max_rounds` is what the accounting allows: the client itself refuses to take part more often. `counter` counts its
    rounds; one that outlives the process (`FileCounter`) keeps a restart from starting the budget anew.
    """

    def __init__(
        self,
        name: str,
        settings: SoundNoiseSettings,
        randomness: Randomness | None = None,
        *,
        max_rounds: int | None = None,
        counter: RoundCounter | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self._randomness = randomness or SecureRandomness()
        self._max_rounds = max_rounds
        self._counter = counter or MemoryCounter()
        self._begun: int | None = None

    def set_norm(self, norm: float) -> None:
        """Adaptive clipping: the norm of the coming round."""
        self.settings = replace(self.settings, clip=self.settings.clip.with_norm(norm))

    def begin(self, round_index: int) -> None:
        """Step 0, when the round's model has come: pay. What the client does from here on may say something."""
        self._spend()
        self._begun = round_index

    def add_noise(self, upload: Upload, round_index: int) -> Upload:
        """Step 2. The upload must be clipped; what comes back is on the grid and ready to be masked."""
        if self._begun != round_index:
            self.begin(round_index)
        self._begun = None
        self._check(upload, round_index)
        settings, stream = self.settings, self._randomness.child("noise", round_index)
        deviations = settings.term_deviations(len(upload.terms))
        terms = torch.stack(
            [self._noisy(row, deviation, stream) for row, deviation in zip(upload.terms, deviations, strict=True)]
        )
        statistics = upload.statistics.double()
        if settings.adaptive is not None:
            statistics = self._noisy(statistics, settings.count_deviation, stream)
        return Upload(upload.round_index, upload.weight, terms, statistics)

    def _noisy(self, values: Tensor, deviation: float, stream: Randomness) -> Tensor:
        """round(values) + round(noise) on the grid; both are whole numbers of units below 2^53, so the sum is exact."""
        exponent = grid_exponent(deviation)
        unit, per_unit = math.ldexp(1.0, exponent), math.ldexp(1.0, -exponent)
        noise = standard_normal(values.numel(), stream).mul_(deviation * per_unit).round_().view(values.shape)
        total = (values.double() * per_unit).round_().add_(noise)
        largest = float(total.abs().max()) if total.numel() else 0.0
        if not largest < 2.0**52:
            raise NumericalRangeError(
                f"{self.name}: an upload is {largest / per_unit / deviation:.3g} times as large as its noise.",
                remedy="Its norm is not clipped, or the expected batch size is far too small.",
            )
        return total.mul_(unit)

    def _spend(self) -> None:
        if not self._counter.spend(self._max_rounds):
            raise ProtocolError(
                f"{self.name} has taken part in {self._counter.used} rounds, which is all that its budget allows.",
                remedy="Account for more rounds (that needs more noise), or leave this client out.",
            )

    def _check(self, upload: Upload, round_index: int) -> None:
        num_statistics = 0 if self.settings.adaptive is None else 1
        if upload.round_index != round_index:
            raise ProtocolError(f"{self.name}: the upload is of round {upload.round_index}, not {round_index}.")
        if upload.weight != 1 or upload.statistics.shape != (num_statistics,):
            raise NumericalRangeError(  # with a figure of the data: a site tells it to nobody
                f"{self.name}: expected a clipped upload with weight 1 and {num_statistics} statistics, got weight "
                f"{upload.weight} and {upload.statistics.numel()}.",
                remedy="Give the client's half the clip settings; a weight or statistics that are not clipped are not "
                "covered by the noise.",
            )
        if self.settings.clip.unit == "client":
            scaled = upload.terms.double() * self.settings.clip.scales(len(upload.terms))[:, None]
            norm = float(scaled.norm())
            if not norm <= self.settings.clip.norm:
                raise NumericalRangeError(  # with a figure of the data: a site tells it to nobody
                    f"{self.name}: the upload's norm {norm:.3g} is above {self.settings.clip.norm:.3g}.",
                    remedy="Clip before adding noise.",
                )
