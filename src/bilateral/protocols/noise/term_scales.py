"""How to divide the noise between the terms of perturbation.

The server recovers `sum_t c_t term_t`. Noise of deviation `d / s_t` on term t leaves `d sqrt(sum_t (c_t / s_t)^2)` in
that, and the clipping norm, to which `d` is proportional, grows with `sqrt(sum_t (s_t |term_t|)^2)`. The product is
least at `s_t = sqrt(|c_t| / |term_t|)`. Perturbation is calibrated so that all `c_t term_t` are of like size, which
makes that `s_t = |c_t|`, up to a common factor.

The coefficients are secrets, their typical size is not: clients guess it to a factor of 2 from the outputs (leakage
ledger, line 1). Scales are rounded to powers of two, so that they tell less than that. On a digits MLP they lower the
noise of the recovered gradient by a factor of about 25 with activation noise and 2.5 with offset noise (decision 0011).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.calibration import Calibrator
from bilateral.protocols.perturb.scheme import term_names
from bilateral.protocols.perturb.secrets import noise_size
from bilateral.protocols.perturb.settings import PerturbationSettings

_MEAN_SQUARE_DIRECTION = 13 / 12
"""Of output directions, whose size is uniform on [0.5, 1.5] (perturb/secrets.py)."""


def public_term_scales(
    model: nn.Module, graph: ScaleGraph, settings: PerturbationSettings, inputs: Tensor
) -> tuple[float, ...]:
    """Scales for `ClipSettings`, from the server's own `inputs` (never from clients' data) before the first round."""
    measured = Calibrator(model, graph.head, inputs).measure()
    scale = torch.full_like(measured.head_weight_sizes, _mean_factor(*settings.scale_range))
    group_secret = noise_size(settings, measured, scale) / math.sqrt(_MEAN_SQUARE_DIRECTION)
    squared = graph.num_outputs * _MEAN_SQUARE_DIRECTION * group_secret**2  # v = r.r
    return tuple(_power_of_two(_typical(name, group_secret, squared)) for name in term_names(settings))


def _typical(term: str, group_secret: float, squared: float) -> float:
    """The size of a term's recovery coefficient under MSE (scheme.py)."""
    if term == "error":
        return 1.0
    return squared if term == "activation" else group_secret


def _mean_factor(low: float, high: float) -> float:
    """Of scale factors, which are log-uniform."""
    return (high - low) / math.log(high / low) if high > low else low


def _power_of_two(value: float) -> float:
    return 2.0 ** round(math.log2(value))
