"""Gradient inversion by matching, with cosine distance and total variation (Geiping et al. 2020), many at a time.

A *problem* is a network's parameters, a gradient, and how many samples are behind it (one, or all samples of a sum).
All problems are worked on together (`torch.func.vmap`): these networks are small, and a loop would wait for itself.

On a rectified network with pooling one start often ends where the gradients still differ, and another start does not.
So several race: all of them run a little, and those that match best go on.

Formal guarantees (test_gradient_matching.py): the vectorised gradients are those of a plain loop;
which start goes on, and which wins, is decided by the attacker's own matching loss.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
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
class Heat:
    """A part of a race: how many starts of every problem run in it, and how far."""

    starts: int
    steps: int


@dataclass(frozen=True)
class MatchingSettings:
    """The step shrinks tenfold after 3/8, 5/8 and 7/8 of the last heat; before it, starts only have to show promise."""

    heats: tuple[Heat, ...] = (Heat(1, 600),)
    step_size: float = 0.05
    total_variation: float = 1e-3

    @property
    def num_starts(self) -> int:
        return self.heats[0].starts


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

    starts: problems x starts x count x sample, as many as the first heat runs.
    """
    work = sum(heat.starts * heat.steps for heat in settings.heats)
    runners, lost, before = starts, torch.zeros(starts.shape[:2]), 0.0
    for number, heat in enumerate(settings.heats):
        share = heat.starts * heat.steps / work
        sizes = [settings.step_size] * heat.steps
        if number == len(settings.heats) - 1:
            milestones = [heat.steps * eighths // 8 for eighths in (3, 5, 7)]
            sizes = [settings.step_size * 0.1 ** bisect_right(milestones, step) for step in range(heat.steps)]
        runners, lost = _run_heat(
            _Course(model, problems, bounds, settings.total_variation),
            leading(runners, lost, heat.starts),
            sizes,
            _part_of(on_progress, before, share),
        )
        before += share
    return best_start(runners.flatten(0, 1), lost.flatten(), runners.shape[1])


@dataclass(frozen=True, eq=False)
class _Course:
    """What a race is run on."""

    model: GradientModel
    problems: Problems
    bounds: ValueRange
    total_variation: float

    def losses(self, each: Problems, guess: Tensor) -> Tensor:
        found = self.model.gradients(each.parameters, guess, each.targets)
        lost = 1.0 - F.cosine_similarity(found, each.gradients, dim=1)
        return lost + self.total_variation * total_variation(guess)


def _run_heat(
    course: _Course, runners: Tensor, step_sizes: Sequence[float], on_progress: Progress
) -> tuple[Tensor, Tensor]:
    """Where the runners (problems x starts x count x sample) get to, and their losses (problems x starts)."""
    num_starts = runners.shape[1]
    each = course.problems.repeated(num_starts)
    low, high = course.bounds.low.to(runners.dtype), course.bounds.high.to(runners.dtype)
    guess = torch.clamp(runners.flatten(0, 1), low, high).clone().requires_grad_()
    optimiser = torch.optim.Adam([guess])
    lost = torch.zeros(len(guess))
    for number, step_size in enumerate(step_sizes):
        optimiser.param_groups[0]["lr"] = step_size
        lost = course.losses(each, guess)
        guess.grad = torch.autograd.grad(lost.sum(), guess)[0].sign_()
        optimiser.step()
        with torch.no_grad():
            guess.copy_(torch.clamp(guess, low, high))
        if number % 10 == 0:
            on_progress(number / len(step_sizes))
    return guess.detach().view_as(runners), lost.detach().view(-1, num_starts)


def _part_of(on_progress: Progress, before: float, share: float) -> Progress:
    return lambda fraction: on_progress(before + share * fraction)


def leading(samples: Tensor, lost: Tensor, count: int) -> Tensor:
    """Of each problem's starts (problems x starts x ...), those `count` with the least loss (problems x starts)."""
    chosen = torch.nan_to_num(lost, nan=float("inf")).topk(count, dim=1, largest=False, sorted=False).indices
    return samples[torch.arange(len(samples))[:, None], chosen]


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


def noise_starts(
    problems: Problems, shape: tuple[int, ...], num_starts: int, randomness: Randomness, spread: float = 1.0
) -> Tensor:
    """Normal numbers; of spread one, as the papers start."""
    drawn = spread * randomness.normal(len(problems), num_starts, problems.count, *shape)
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
    """starts x count x sample; samples of one label begin differently: equal ones would never part."""
    wished = wanted.tolist()
    alike = Counter(wished)
    taken: Counter[int] = Counter()
    columns = []
    for label in wished:
        same = torch.nonzero(labels == label)[:, 0]
        ranked = same[likeness[same].argsort(descending=True)]
        if len(ranked) == 0:  # nothing public of this label
            ranked = randomness.permutation(len(labels))
        places = taken[label] + alike[label] * torch.arange(num_starts)
        taken[label] += 1
        columns.append(samples[ranked[places % len(ranked)]])
    return torch.stack(columns, 1)
