"""The equations of model perturbation: which terms a client uploads, and how the server combines them.

Notation (docs/notation.md): `e` noisy error, `alpha` activation sum (the sum of the head's inputs), `r_a` output
directions, `gamma` group secrets, `xi` group blinders, `p*`, `p~` blinded softmax and its correction. A term is the
vector-Jacobian product of (outputs, alpha) with a pair of cotangents; `|_s` restricts to output group s.

MSE, activation noise (P0 section III, spec 1.2)        y_hat = y + alpha r,  r = gamma[group] r_a,  v = r.r

    error        (e, 0)                                  coefficient  1
    direction_s  (alpha r_a|_s, r_a|_s . e)                          -gamma_s
    activation   (0, alpha)                                           v

MSE, offset noise (spec 1.4)                            y_hat = y + r

    error        e                                                    1
    direction_s  r_a|_s                                              -gamma_s

Cross entropy, activation noise (spec 1.3)

    error                (p* - t, 0)                                  1
    direction_s          (0, r_a|_s . (p* - t))                      -gamma_s
    blinded_direction_s  (0, r_a|_s . p~)                             gamma_s xi_s
    blinded_s            (p~|_s, 0)                                  -xi_s

Cross entropy, offset noise

    error        p* - t                                               1
    blinded_s    p~|_s                                               -xi_s

With checked answers (docs/decisions/0017) p* is the softmax itself and p~ is 0: the terms `blinded` are not sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.protocols.perturb.settings import PerturbationSettings


@dataclass(frozen=True)
class Cotangents:
    """Cotangents of all terms: for the outputs (terms x batch x outputs), and for alpha (terms x batch) if used."""

    outputs: Tensor
    activation_sum: Tensor | None


def term_names(settings: PerturbationSettings) -> tuple[str, ...]:
    """The uploaded terms, in order."""
    groups = range(settings.num_partitions)
    directions = tuple(f"direction_{s}" for s in groups)
    blinded = tuple(f"blinded_{s}" for s in groups)
    blinded_directions = tuple(f"blinded_direction_{s}" for s in groups)
    match settings.loss, settings.noise, settings.softmax:
        case "mse", "activation", _:
            return ("error", *directions, "activation")
        case "mse", "offset", _:
            return ("error", *directions)
        case "ce", "activation", "checked":
            return ("error", *directions)
        case "ce", "activation", _:
            return ("error", *directions, *blinded_directions, *blinded)
        case "ce", "offset", "checked":
            return ("error",)
        case _:
            return ("error", *blinded)


def group_masks(partition: Tensor, num_partitions: int, dtype: torch.dtype) -> Tensor:
    """One row per group: 1 where an output belongs to it."""
    return (partition[None, :] == torch.arange(num_partitions)[:, None]).to(dtype)


def mse_cotangents(
    settings: PerturbationSettings,
    error: Tensor,
    activation_sum: Tensor,
    directions: Tensor,
    partition: Tensor,
) -> Cotangents:
    """Terms of the squared error `sum((y - t)^2) / outputs`, averaged over the batch (torch's mse_loss)."""
    scale = 2.0 / error.numel()
    restricted = group_masks(partition, settings.num_partitions, error.dtype) * directions  # groups x outputs
    if settings.noise == "offset":
        constant = restricted[:, None, :].expand(-1, *error.shape)
        return Cotangents(scale * torch.cat([error[None], constant]), None)
    outputs = torch.cat(
        [error[None], activation_sum[None, :, None] * restricted[:, None, :], torch.zeros_like(error)[None]]
    )
    projected = restricted @ error.T  # groups x batch
    inner = torch.cat([torch.zeros_like(activation_sum)[None], projected, activation_sum[None]])
    return Cotangents(scale * outputs, scale * inner)


def cross_entropy_cotangents(
    settings: PerturbationSettings,
    blinded: Tensor,
    corrected: Tensor,
    target: Tensor,
    directions: Tensor,
    partition: Tensor,
) -> Cotangents:
    """Terms of the cross entropy, averaged over the batch, from `p*` (blinded) and `p~` (corrected)."""
    scale = 1.0 / blinded.shape[0]
    masks = group_masks(partition, settings.num_partitions, blinded.dtype)
    error = blinded - target
    per_group = corrected[None] * masks[:, None, :]
    if settings.softmax == "checked":
        if settings.noise == "offset":
            return Cotangents(scale * error[None], None)
        inner = torch.cat([torch.zeros_like(blinded[:, 0])[None], (masks * directions) @ error.T])
        nothing = torch.zeros_like(error)[None].expand(settings.num_partitions, -1, -1)
        return Cotangents(scale * torch.cat([error[None], nothing]), scale * inner)
    if settings.noise == "offset":
        return Cotangents(scale * torch.cat([error[None], per_group]), None)
    restricted = masks * directions
    nothing = torch.zeros_like(per_group)
    outputs = torch.cat([error[None], nothing, nothing, per_group])
    silent = torch.zeros_like(blinded[:, 0]).expand(settings.num_partitions, -1)
    inner = torch.cat([silent[:1], restricted @ error.T, restricted @ corrected.T, silent])
    return Cotangents(scale * outputs, scale * inner)


def recovery_coefficients(
    settings: PerturbationSettings,
    group_secrets: Tensor,
    group_blinders: Tensor,
    directions: Tensor,
    partition: Tensor,
) -> Tensor:
    """What the server multiplies the terms with, in the order of `term_names`."""
    one = torch.ones(1, dtype=torch.float64)
    match settings.loss, settings.noise, settings.softmax:
        case "mse", "activation", _:
            noise = group_secrets[partition] * directions
            return torch.cat([one, -group_secrets, (noise @ noise)[None]])
        case ("mse", "offset", _) | ("ce", "activation", "checked"):
            return torch.cat([one, -group_secrets])
        case "ce", "offset", "checked":
            return one
        case "ce", "activation", _:
            return torch.cat([one, -group_secrets, group_secrets * group_blinders, -group_blinders])
        case _:
            return torch.cat([one, -group_blinders])
