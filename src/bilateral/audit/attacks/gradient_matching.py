"""Gradient inversion by matching, with cosine distance and total variation (Geiping et al. 2020), many at a time.

A *problem* is a network's parameters, a gradient, and how many samples are behind it (one, or all samples of a sum).
All problems are worked on together (`torch.func.vmap`): these networks are small, and a loop would wait for itself.

Formal guarantees (tests/audit/attacks/test_gradient_matching.py): the vectorised gradients are those of a plain loop;
which start wins is decided by the attacker's own matching loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from bilateral.audit.image_metrics import ValueRange
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.settings import Loss
from bilateral.randomness import Randomness

Progress = Callable[[float], None]


@dataclass(frozen=True)
class MatchingSettings:
    """`starts` a problem; the step shrinks tenfold after 3/8, 5/8 and 7/8 of the steps."""

    steps: int = 600
    starts: int = 1
    step_size: float = 0.05
    total_variation: float = 1e-3


@dataclass(frozen=True, eq=False)
class GradientModel:
    """What turns samples into gradients: an architecture in evaluation mode, its flat order, and the loss."""

    network: nn.Module = field(repr=False)
    graph: ScaleGraph = field(repr=False)
    loss: Loss

    def gradients(self, parameters: Tensor, samples: Tensor, targets: Tensor) -> Tensor:
        """Problems x parameters, differentiable: the mean gradient of each problem's samples.

        parameters: problems x parameters; samples: problems x count x sample; targets: problems x count x outputs.
        """
        found: Tensor = vmap(grad(self._lost), randomness="different")(parameters, samples, targets)
        return found

    def outputs(self, parameters: Tensor, samples: Tensor) -> Tensor:
        """Of one set of parameters."""
        result: Tensor = functional_call(self.network, self.graph.unflatten(parameters), (samples,))
        return result

    def _lost(self, parameters: Tensor, samples: Tensor, targets: Tensor) -> Tensor:
        outputs = self.outputs(parameters, samples)
        return F.cross_entropy(outputs, targets) if self.loss == "ce" else F.mse_loss(outputs, targets)


@dataclass(frozen=True, eq=False)
class Problems:
    """What is matched: parameters and gradients (problems x parameters), targets (problems x count x outputs)."""

    parameters: Tensor
    gradients: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def count(self) -> int:
        """Samples behind one gradient."""
        return int(self.targets.shape[1])

    def repeated(self, times: int) -> Problems:
        """Each problem so many times in a row."""
        return Problems(*(t.repeat_interleave(times, 0) for t in (self.parameters, self.gradients, self.targets)))


@dataclass(frozen=True, eq=False)
class Guesses:
    """Samples (problems x count x sample) and how well their gradients match: small is good."""

    samples: Tensor
    matching_loss: Tensor


def match_gradients(
    model: GradientModel,
    problems: Problems,
    starts: Tensor,
    bounds: ValueRange,
    settings: MatchingSettings,
    on_progress: Progress = lambda _fraction: None,
) -> Guesses:
    """Signed Adam on `1 - cosine + total variation` inside the range of values; the best start by that loss.

    starts: problems x starts x count x sample.
    """
    num_starts = starts.shape[1]
    each = problems.repeated(num_starts)
    low, high = bounds.low.to(starts.dtype), bounds.high.to(starts.dtype)
    guess = torch.clamp(starts.flatten(0, 1), low, high).clone().requires_grad_()
    optimiser = torch.optim.Adam([guess], lr=settings.step_size)
    milestones = [settings.steps * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    lost = torch.zeros(len(guess))
    for step in range(settings.steps):
        found = model.gradients(each.parameters, guess, each.targets)
        lost = 1.0 - F.cosine_similarity(found, each.gradients, dim=1)
        lost = lost + settings.total_variation * total_variation(guess)
        guess.grad = torch.autograd.grad(lost.sum(), guess)[0].sign_()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            guess.copy_(torch.clamp(guess, low, high))
        if step % 10 == 0:
            on_progress(step / settings.steps)
    return best_start(guess.detach(), lost.detach(), num_starts)


def best_start(samples: Tensor, lost: Tensor, num_starts: int) -> Guesses:
    """Of each problem's starts, the one whose loss is least."""
    by_problem = torch.nan_to_num(lost, nan=float("inf")).view(-1, num_starts)
    chosen = by_problem.argmin(1)
    rows = torch.arange(len(chosen))
    return Guesses(samples.view(len(chosen), num_starts, *samples.shape[1:])[rows, chosen], by_problem[rows, chosen])


def total_variation(samples: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, a problem; nothing where samples are no images."""
    if samples.dim() < 5:
        return torch.zeros(len(samples), dtype=samples.dtype)
    down = (samples[..., 1:, :] - samples[..., :-1, :]).abs().flatten(1).mean(1)
    across = (samples[..., 1:] - samples[..., :-1]).abs().flatten(1).mean(1)
    return down + across


def noise_starts(problems: Problems, shape: tuple[int, ...], num_starts: int, randomness: Randomness) -> Tensor:
    """Standard normal numbers, as the papers start."""
    drawn = randomness.normal(len(problems), num_starts, problems.count, *shape)
    return drawn.to(problems.gradients.dtype)


def public_starts(
    model: GradientModel, problems: Problems, samples: Tensor, labels: Tensor, num_starts: int, randomness: Randomness
) -> Tensor:
    """Public samples of the labels that were read, those first whose own gradients point most like the observed one.

    An attacker has samples of the kind (the server its test data). Rectified networks with pooling have many local
    minima, and a start of the right kind is worth more than many random ones.
    """
    rows = []
    for parameters, gradient, targets in zip(problems.parameters, problems.gradients, problems.targets, strict=True):
        likeness = _likeness(model, parameters, gradient, samples, labels, targets.shape[-1])
        rows.append(_starts_of_one(likeness, samples, labels, targets.argmax(-1), num_starts, randomness))
    return torch.stack(rows)


def _likeness(
    model: GradientModel, parameters: Tensor, gradient: Tensor, samples: Tensor, labels: Tensor, num_outputs: int
) -> Tensor:
    targets = F.one_hot(labels, num_outputs).to(samples.dtype)
    with torch.no_grad():
        found = model.gradients(parameters.expand(len(samples), -1), samples[:, None], targets[:, None])
    return F.cosine_similarity(found, gradient[None], dim=1)


def _starts_of_one(
    likeness: Tensor, samples: Tensor, labels: Tensor, wanted: Tensor, num_starts: int, randomness: Randomness
) -> Tensor:
    """starts x count x sample; two samples of one label get different starts."""
    taken: dict[int, int] = {}
    columns = []
    for label in wanted.tolist():
        same = torch.nonzero(labels == label)[:, 0]
        ranked = same[likeness[same].argsort(descending=True)]
        if len(ranked) == 0:  # nothing public of this label
            ranked = randomness.permutation(len(labels))
        first = taken.get(label, 0)
        taken[label] = first + num_starts
        columns.append(samples[ranked[(first + torch.arange(num_starts)) % len(ranked)]])
    return torch.stack(columns, 1)
