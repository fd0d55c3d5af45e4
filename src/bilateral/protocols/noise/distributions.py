"""Random numbers whose product is normal: the distributions of P2, Theorem 3.

A normal number is split into a factor that the server draws and one that the client draws. With `G` gamma distributed:

    DN(sigma, n) = sign * exp(log(sqrt2 sigma) / n - G(1/n))                    `split_noise`, `uniform_noise` for n = 1
    DN*(m)       = sign * exp(-sum_l [G_l(1/m) / (2l + 1) - log(1 + 1/l) / 2m])  `scale_factors`, positive, no sign

Closed forms, which the paper does not give: DN(sigma, 1) is uniform on (-sqrt2 sigma, sqrt2 sigma), and |DN*(1)| is
chi_3 / sqrt2. All moments are known,  E |DN*(m)|^s = (Gamma((3 + s) / 2) / Gamma(3 / 2))^(1/m),  and as a function of a
complex s they are the Mellin transform of the density. So |DN*(2)| needs no truncated series: its distribution function
is one contour integral, whose integrand falls off like exp(-pi |t| / 8), and a quantile table is made from it once a
process.

Formal guarantees (tests/protocols/noise/test_distributions.py):
- the product of a scale factor DN*(1), or of two DN*(2), with uniform noise is normal (Kolmogorov-Smirnov, 10^6 draws);
- the tabulated quantiles of DN*(1) agree with chi_3's, and the moments of DN*(2) with theory, to 1e-9 relatively.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import CubicHermiteSpline
from scipy.special import gammaincinv, loggamma
from torch import Tensor

from bilateral.errors import PlanError
from bilateral.randomness import Randomness

_Array = NDArray[np.float64]

_LOGIT_END: Final = 37.5
"""The largest logit of a 54-bit probability: log(2^54)."""
_TABLE_POINTS: Final = 2048
_START_POINTS: Final = 1024
_LEFT_TILT: Final = -2.0
"""Where the contour crosses the real axis for the lower tail, which falls like x^3: relative precision to the end."""
_RIGHT_TILT: Final = 16.0
"""And for the upper tail, which falls faster than any power."""
_STEP: Final = 0.2
"""Wrong by exp(-2 pi / step) times the distance to the next pole (s = -3 or 0): 1e-13."""
_TAIL: Final = 40.0
"""The contour ends where the integrand is about exp(-40) of its largest value."""


def uniform_noise(sigma: float, count: int, randomness: Randomness) -> Tensor:
    """DN(sigma, 1): uniform on (-sqrt2 sigma, sqrt2 sigma). Its variance is 2/3 sigma^2; a scale factor adds to it."""
    _check_sigma(sigma)
    bound = math.sqrt(2.0) * sigma
    return randomness.uniform(count, low=-bound, high=bound)


def split_noise(sigma: float, parts: int, count: int, randomness: Randomness) -> Tensor:
    """DN(sigma, n): the product of n independent draws is uniform noise. `parts` is the paper's n."""
    _check_sigma(sigma)
    _check_count("parts", parts)
    gamma = gammaincinv(1.0 / parts, _open_uniform(count, randomness))
    size = torch.from_numpy(np.exp(math.log(math.sqrt(2.0) * sigma) / parts - gamma))
    return randomness.signs(count) * size


def scale_factors(parts: int, count: int, randomness: Randomness) -> Tensor:
    """|DN*(m)|: the product of m independent draws and of uniform noise is normal. `parts` is the paper's m."""
    _check_count("parts", parts)
    if parts == 1:  # chi_3 / sqrt2: half the sum of three squares, two of which make an exponential
        exponential = -torch.log1p(-randomness.uniform(count))
        return torch.sqrt(exponential + 0.5 * randomness.normal(count).square())
    table = quantile_table(parts)
    return torch.from_numpy(np.exp(table.log_quantile(_open_uniform(count, randomness))))


@dataclass(frozen=True)
class QuantileTable:
    """log x as a function of the logit of the probability: values and slopes on an even grid, cubic in between."""

    values: _Array
    slopes: _Array

    def log_quantile(self, probability: _Array) -> _Array:
        """log of the number below which a draw falls with `probability`, in (0, 1)."""
        width = 2.0 * _LOGIT_END / (len(self.values) - 1)
        place = (np.log(probability) - np.log1p(-probability) + _LOGIT_END) / width
        index = np.clip(place.astype(np.int64), 0, len(self.values) - 2)
        t = place - index
        low, high = self.values[index], self.values[index + 1]
        rise_low, rise_high = width * self.slopes[index], width * self.slopes[index + 1]
        jump = high - low
        return low + t * (rise_low + t * (3 * jump - 2 * rise_low - rise_high + t * (rise_low + rise_high - 2 * jump)))


@cache
def quantile_table(parts: int) -> QuantileTable:
    """The table of |DN*(parts)|: the logit of the distribution function on a grid of log x, turned around.

    A spline through the turned-around grid is a start to several digits; two Newton steps make it exact.
    """
    start = np.linspace(-16.0, 3.0, _START_POINTS)
    logit, slope = _logit_of_log(start, parts)
    usable = np.isfinite(logit) & np.isfinite(slope) & (np.abs(logit) < _LOGIT_END + 3.0) & (slope > 0)
    turned = CubicHermiteSpline(logit[usable], start[usable], 1.0 / slope[usable])
    goal = np.linspace(-_LOGIT_END, _LOGIT_END, _TABLE_POINTS)
    values = np.asarray(turned(goal), dtype=np.float64)
    for _ in range(2):
        logit, slope = _logit_of_log(values, parts)
        values = values - (logit - goal) / slope
    return QuantileTable(values, 1.0 / slope)


def _logit_of_log(log_x: _Array, parts: int) -> tuple[_Array, _Array]:
    """The logit of P(DN* < x) and its derivative by log x.

    With M(s) = E x^s,   P(X < x) = -1/(2 pi i) integral of M(s) x^-s / s over Re s = c < 0,   P(X > x) the same without
    the sign over Re s = c > 0, and the density of log x has no 1/s. The trapezoid rule converges exponentially here.
    """
    growth = (2.0 + _RIGHT_TILT) / (2.0 * parts)  # |M| is about |t|^growth exp(-pi |t| / (4 parts))
    t = np.arange(0.0, 4.0 * parts * (_TAIL + growth * 4.7) / math.pi, _STEP)
    waves = np.exp(-1j * np.outer(log_x, t))
    lower, density = _contour(log_x, parts, _LEFT_TILT, t, waves)
    upper, density_above = _contour(log_x, parts, _RIGHT_TILT, t, waves)
    below = -lower < 0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        smaller = np.where(below, -lower, upper)
        logit = np.log(smaller) - np.log1p(-smaller)
        slope = np.where(below, density, density_above) / (smaller * (1.0 - smaller))
    return np.where(below, logit, -logit), slope


def _contour(log_x: _Array, parts: int, tilt: float, t: _Array, waves: NDArray[np.complex128]) -> tuple[_Array, _Array]:
    """(1 / 2 pi i) of the integrals of M(s) x^-s / s and of M(s) x^-s over Re s = tilt."""
    s = tilt + 1j * t
    transform = np.exp((loggamma((3.0 + s) / 2.0) - loggamma(1.5)) / parts) * (_STEP / math.pi)
    transform[0] *= 0.5  # the lower half of the line is the conjugate of the upper one
    size = np.exp(-tilt * log_x)
    return (waves @ (transform / s)).real * size, (waves @ transform).real * size


def _open_uniform(count: int, randomness: Randomness) -> _Array:
    """Uniform on (0, 1), without the end that a 53-bit uniform can take."""
    return randomness.uniform(count).numpy() + 2.0**-54


def _check_sigma(sigma: float) -> None:
    if not 0 <= sigma < math.inf:
        raise PlanError(f"Expected a noise level sigma of 0 or more, got {sigma}.", remedy="Give a finite number.")


def _check_count(name: str, value: int) -> None:
    if not 1 <= value <= 8:
        raise PlanError(f"Expected {name} between 1 and 8, got {value}.", remedy="The protocol uses 1 and 2.")
