"""Telling two neighbouring worlds apart from a noisy sum: one unit's data in it, or not.

The attacker is the one that differential privacy is about: it knows all other data, so that it can subtract them.
What is left (`residual`) is noise alone, or noise and the unit's contribution (`shift`). A score a trial: large ones
speak for the unit. The last dimension of a residual is the trial.

| score                    | knows                                                                          |
|--------------------------|--------------------------------------------------------------------------------|
| `projection`             | the direction of the unit's contribution (naive)                               |
| `gaussian_log_ratio`     | the deviation of the noise too: the best test there is for Gaussian noise      |
| `outside_support`        | how far the noise can reach: what lies beyond gives the unit away (ledger 4)   |
| `uniform_sum_log_ratio`  | that the noise is a sum of uniform numbers: the best test there is for P2's    |
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.interpolate import BSpline
from torch import Tensor

_MOST_EXACT = 30
"""Up to so many uniform numbers the density of their sum is evaluated exactly; beyond, it is normal inside its ends."""


def projection(residual: Tensor, shift: Tensor) -> Tensor:
    """How much of the unit's contribution the residual (coordinates x trials) holds: about 0 or about 1."""
    return (shift[:, None] * residual).sum(0) / shift.square().sum()


def gaussian_log_ratio(residual: Tensor, shift: Tensor, deviations: Tensor) -> Tensor:
    """log of how much likelier the residual (coordinates x trials) is with the unit, for independent Gaussian noise."""
    precise = shift / deviations.square()
    return (precise[:, None] * residual).sum(0) - 0.5 * (precise * shift).sum()


def sampled_log_ratio(log_ratio: Tensor, rate: float) -> Tensor:
    """The log ratio if the unit is used with probability `rate` only: log(1 - rate + rate * ratio)."""
    if rate >= 1:
        return log_ratio
    return torch.logaddexp(torch.full_like(log_ratio, math.log1p(-rate)), log_ratio + math.log(rate))


def outside_support(residual: Tensor, shift: Tensor, reach: Tensor | float) -> Tensor:
    """Infinite where only the world with the unit can have made the residual, -infinite where it cannot have, else 0.

    `reach`: the largest noise there is. The slack keeps float rounding of a sum from passing for evidence.
    """
    limit = torch.as_tensor(reach, dtype=residual.dtype) * (1 + 1e-6)
    score = torch.zeros_like(residual)
    score[(residual - shift).abs() > limit] = -math.inf
    score[residual.abs() > limit] = math.inf
    return score


def uniform_sum_log_ratio(residual: Tensor, shift: Tensor, half_width: float, num_uniforms: int) -> Tensor:
    """log of how much likelier the residual is with the unit; the noise is a sum of uniforms on +-`half_width`.

    A residual that neither world can make (rounding, at an end of the support) says nothing: 0.
    """
    without = _log_density(residual / half_width, num_uniforms)
    inside = _log_density((residual - shift) / half_width, num_uniforms)
    ratio = inside - without
    return torch.where(torch.isneginf(inside) & torch.isneginf(without), torch.zeros_like(ratio), ratio)


def _log_density(values: Tensor, num_uniforms: int) -> Tensor:
    """log density, up to a constant, of the sum of uniform numbers on (-1, 1): a cardinal B-spline (Irwin-Hall)."""
    place = values.numpy() / 2 + num_uniforms / 2  # as a sum of uniforms on (0, 1)
    inside = (place > 0) & (place < num_uniforms)
    density = np.zeros_like(place)
    if num_uniforms <= _MOST_EXACT:
        spline = BSpline.basis_element(np.arange(num_uniforms + 1), extrapolate=False)
        density[inside] = np.maximum(spline(place[inside]), 0.0)
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log(density))
    centred = (place - num_uniforms / 2) ** 2 * 6 / num_uniforms  # each has variance 1/12
    return torch.from_numpy(np.where(inside, -centred, -np.inf))
