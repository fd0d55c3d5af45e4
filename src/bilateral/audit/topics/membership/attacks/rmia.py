"""RMIA (Zarifzadeh, Liu and Shokri 2024), offline: is the model's belief in a sample grown more than in others?

How much likelier a sample has become is measured against models that never saw it, and then compared with the same of
samples that nobody trained on (the population):

    LR(x, z) = (p(x | model) / p(x)) / (p(z | model) / p(z)),    score(x) = share of z with LR(x, z) >= gamma.

p(x) is the mean over models with x and without; offline there are only those without, and the mean is taken for
((1 + a) p_out + (1 - a)) / 2 (their equation 10). The population is the same for all samples, so that within one model
the score orders samples as p(x | model) / p(x) does; what the population adds is a scale on which models, and uploads,
compare. Where few samples make it coarse, equal scores are put in the order of the ratio.

LiRA offline measures the same growth in standard deviations, which few shadows tell badly; here no spread is fitted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bilateral.audit.topics.membership.attacks.lira import Shadows

OFFLINE_SHARE = 0.3
"""a; the paper finds 0.3 on CIFAR-10, and says that it matters little."""
GAMMA = 2.0
_TINY = 1e-12


def rmia_scores(observed: Tensor, shadows: Shadows, population: Tensor, *, are_classes: bool) -> Tensor:
    """A score a candidate, from what the model under attack says of the candidates and of the shadows' population.

    `are_classes`: confidences are logits of the right class's probability; otherwise they are minus the log of squared
    errors, which are no probabilities, and are compared as they are (`a` is 1).
    """
    outside = torch.where(shadows.inside, torch.nan, shadows.confidences)
    ours = log_ratio(observed, outside, are_classes=are_classes)
    theirs = log_ratio(population, shadows.population, are_classes=are_classes)
    return share_below(ours, theirs)


def log_ratio(observed: Tensor, outside: Tensor, *, are_classes: bool) -> Tensor:
    """log p(x | model) / p(x); outside (shadows x samples) has NaN where a shadow was trained on the sample."""
    if not are_classes:
        return observed - torch.nanmean(outside, 0)
    out = torch.nanmean(torch.sigmoid(outside), 0)
    usual = 0.5 * ((1 + OFFLINE_SHARE) * out + (1 - OFFLINE_SHARE))
    return torch.sigmoid(observed).clamp_min(_TINY).log() - usual.log()


def share_below(ours: Tensor, theirs: Tensor, gamma: float = GAMMA) -> Tensor:
    """Of the population's log ratios the share that ours exceeds by log gamma; ties in the order of ours."""
    ours, theirs = ours.double(), theirs.double()
    moved = (ours - math.log(gamma)).contiguous()
    share = torch.searchsorted(theirs.sort().values, moved, right=True).double() / len(theirs)
    # Between two steps of the share, and never across one; it may not saturate, for the top is what counts.
    return share + (1 + ours / (1 + ours.abs())) * 0.25 / len(theirs)
