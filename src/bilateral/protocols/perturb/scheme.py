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

Cross entropy, local softmax (docs/decisions/0017): the client knows r, and p = softmax(y_hat - alpha r), or
softmax(y_hat - r) with offset noise, where the second cotangent is not needed

    error        (p - t, -r . (p - t))                                1

Cross entropy as published, activation noise (spec 1.3)

    error                (p* - t, 0)                                  1
    direction_s          (0, r_a|_s . (p* - t))                      -gamma_s
    blinded_direction_s  (0, r_a|_s . p~)                             gamma_s xi_s
    blinded_s            (p~|_s, 0)                                  -xi_s

Cross entropy as published, offset noise

    error        p* - t                                               1
    blinded_s    p~|_s                                               -xi_s
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
    if settings.tells_noise:
        return ("error",)
    match settings.loss, settings.noise:
        case "mse", "activation":
            return ("error", *directions, "activation")
        case "mse", "offset":
            return ("error", *directions)
        case "ce", "activation":
            return ("error", *directions, *blinded_directions, *blinded)
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


def local_cross_entropy_cotangents(
    settings: PerturbationSettings, noisy_outputs: Tensor, activation_sum: Tensor, target: Tensor, noise: Tensor
) -> Cotangents:
    """The one term of the cross entropy by who knows the noise r, averaged over the batch; `target` is one-hot."""
    carrier = activation_sum if settings.noise == "activation" else torch.ones_like(activation_sum)
    error = torch.softmax(noisy_outputs - carrier[:, None] * noise, 1) - target
    scale = 1.0 / len(error)
    inner = None if settings.noise == "offset" else -scale * (error @ noise)[None]
    return Cotangents(scale * error[None], inner)


def cross_entropy_cotangents(
    settings: PerturbationSettings,
    blinded: Tensor,
    corrected: Tensor,
    target: Tensor,
    directions: Tensor,
    partition: Tensor,
) -> Cotangents:
    """Terms of the published cross entropy, averaged over the batch, from `p*` (blinded) and `p~` (corrected)."""
    scale = 1.0 / blinded.shape[0]
    masks = group_masks(partition, settings.num_partitions, blinded.dtype)
    error = blinded - target
    per_group = corrected[None] * masks[:, None, :]
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
    if settings.tells_noise:
        return one
    match settings.loss, settings.noise:
        case "mse", "activation":
            noise = group_secrets[partition] * directions
            return torch.cat([one, -group_secrets, (noise @ noise)[None]])
        case "mse", "offset":
            return torch.cat([one, -group_secrets])
        case "ce", "activation":
            return torch.cat([one, -group_secrets, group_secrets * group_blinders, -group_blinders])
        case _:
            return torch.cat([one, -group_blinders])
