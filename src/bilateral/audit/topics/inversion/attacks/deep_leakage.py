"""DLG (Zhu et al. 2019) and iDLG (Zhao et al. 2020): L-BFGS on the squared distance of gradients.

DLG finds the label together with the image, iDLG reads it first (`labels`). Both need a network with second
derivatives. In float64: near the image the distance is a small difference of large numbers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bilateral.audit.image_metrics import ValueRange
from bilateral.audit.topics.inversion.attacks.batched_lbfgs import minimise
from bilateral.audit.topics.inversion.attacks.gradient_matching import (
    GradientModel,
    Guesses,
    Problems,
    Progress,
    best_start,
)


def deep_leakage(
    model: GradientModel,
    problems: Problems,
    starts: Tensor,
    bounds: ValueRange,
    steps: int,
    *,
    label_starts: Tensor | None = None,
    on_progress: Progress = lambda _fraction: None,
) -> Guesses:
    """The best start of each problem by its matching loss. starts: problems x starts x count x sample.

    With `label_starts` (problems x starts x count x outputs) the targets are variables too (DLG); otherwise they are
    those of the problems (iDLG).
    """
    num_starts, shape = starts.shape[1], starts.shape[2:]
    each = problems.repeated(num_starts)
    size = each.gradients.norm(dim=1, keepdim=True).clamp(min=1e-12)
    each = replace(each, gradients=(each.gradients / size).double(), parameters=each.parameters.double())
    variables = starts.flatten(0, 1).flatten(1).double()
    num_pixels = variables.shape[1]
    if label_starts is not None:
        variables = torch.cat([variables, label_starts.flatten(0, 1).flatten(1).double()], 1)

    def distance(point: Tensor) -> Tensor:
        images, rest = point[:, :num_pixels].view(-1, *shape), point[:, num_pixels:]
        targets = each.targets.double()
        if label_starts is not None:
            logits = rest.view_as(targets)
            targets = logits.softmax(-1) if model.loss == "ce" else logits
        found = model.gradients(each.parameters, images, targets)
        apart: Tensor = found / size - each.gradients
        return apart.square().sum(1)

    point, lost = minimise(distance, variables, steps, on_progress)
    samples = bounds.clamp(point[:, :num_pixels].view(-1, *shape).to(starts.dtype))
    return best_start(samples, lost, num_starts)
