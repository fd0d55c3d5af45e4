"""Gradient inversion in the spaces of a generative prior (GIAS: Jeon et al. 2021; GIFD: Fang et al. 2023).

1. The latents are searched first, from several starts: images are all that the prior can make, and nothing else.
2. Then what comes out of its first part, of its second, ..., and the image itself at last: every space can show more
   than the one before it. Where the search is in such a space, it stays in a ball around where it came from: that is
   what the prior still says.
3. The guess is that of the space whose gradients match best (GIFD). An attacker that knows how noisy the gradients are
   takes the first space that matches as well as the truth would: later ones only fit the noise.

Formal guarantees (test_prior_search.py): every guess of a space is inside its ball; which start and which space wins
is decided by the attacker's own matching loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.audit.image_metrics import ValueRange
from bilateral.audit.topics.inversion.attacks.generative_prior import GenerativePrior
from bilateral.audit.topics.inversion.attacks.gradient_matching import (
    GradientModel,
    Guesses,
    Heat,
    Problems,
    Progress,
    leading,
    total_variation,
)


@dataclass(frozen=True)
class SearchSettings:
    """`latents`: heats of the first space; `steps`: of every other one; `radii`: of their balls, as a share of the
    norm of what they are around; the last is the image's."""

    latents: tuple[Heat, ...] = (Heat(8, 50), Heat(2, 100))
    steps: int = 60
    radii: tuple[float, ...] = (0.3, 0.3, 0.4, 0.5, 0.6)
    latent_rate: float = 0.1
    feature_rate: float = 0.03
    latent_weight: float = 1e-3
    total_variation: float = 1e-3
    noise: float = 0.0
    """How much of a gradient is noise, as its norm over that of the truth, if the attacker knows."""


@dataclass(frozen=True, eq=False)
class _Course:
    """What is searched on; features have a row a sample, the samples of a problem after each other."""

    model: GradientModel
    problems: Problems
    prior: GenerativePrior
    bounds: ValueRange
    settings: SearchSettings

    def images(self, features: Tensor, after: int) -> Tensor:
        """problems x count x image."""
        found = torch.clamp(self.prior.decoded(features, after), self.bounds.low, self.bounds.high)
        return found.view(-1, self.problems.count, *found.shape[1:])

    def mismatch(self, each: Problems, images: Tensor) -> Tensor:
        """1 - cosine of the gradients, a problem."""
        found = self.model.gradients(each.parameters, images, each.targets)
        return 1.0 - F.cosine_similarity(found, each.gradients, dim=1)

    def losses(self, each: Problems, features: Tensor, after: int) -> Tensor:
        images = self.images(features, after)
        return self.mismatch(each, images) + self.settings.total_variation * total_variation(images)

    def measured(self, features: Tensor, after: int) -> Guesses:
        """By the gradients alone."""
        with torch.no_grad():
            images = self.images(features, after)
            return Guesses(images, self.mismatch(self.problems, images))


def search_prior(
    model: GradientModel,
    problems: Problems,
    prior: GenerativePrior,
    starts: Tensor,
    bounds: ValueRange,
    settings: SearchSettings,
    on_progress: Progress = lambda _fraction: None,
) -> Guesses:
    """The guess of every problem, of all spaces. starts: problems x starts x count x latents."""
    course = _Course(model, problems, prior, bounds, settings)
    latents = _searched_latents(course, starts, lambda done: on_progress(0.5 * done))
    found = [course.measured(latents.flatten(0, 1), 0)]
    features, num_spaces = latents.flatten(0, 1), len(settings.radii)
    for number in range(min(num_spaces, len(prior.parts))):
        features = _searched_ball(course, prior.next_features(features, number), number + 1, settings.radii[number])
        found.append(course.measured(features, number + 1))
        on_progress(0.5 + 0.5 * (number + 1) / num_spaces)
    return chosen_space(found, settings.noise)


def chosen_space(found: Sequence[Guesses], noise: float) -> Guesses:
    """Of every problem the space that matches best; with known noise the first that matches as well as the truth."""
    lost = torch.nan_to_num(torch.stack([one.matching_loss for one in found]), nan=float("inf"))
    best = lost.argmin(0)
    if noise > 0:
        good = lost <= 1.0 - (1.0 + noise**2) ** -0.5
        best = torch.where(good.any(0), good.int().argmax(0), best)
    rows = torch.arange(len(best))
    return Guesses(torch.stack([one.samples for one in found])[best, rows], lost[best, rows])


def in_ball(point: Tensor, middle: Tensor, radius: float) -> Tensor:
    """The nearest to `point` (rows) that is no further from `middle` than this share of the norm of `middle`."""
    apart = (point - middle).flatten(1)
    reach = radius * middle.flatten(1).norm(dim=1, keepdim=True)
    factor = (reach / apart.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
    nearest: Tensor = middle + (apart * factor).view_as(middle)
    return nearest


def _searched_latents(course: _Course, starts: Tensor, on_progress: Progress) -> Tensor:
    """problems x count x latents: the best start's."""
    settings = course.settings
    work = sum(heat.starts * heat.steps for heat in settings.latents)
    runners, lost, before = starts, torch.zeros(starts.shape[:2]), 0.0
    for heat in settings.latents:
        runners = leading(runners, lost, heat.starts)
        each = course.problems.repeated(heat.starts)
        point = runners.flatten(0, 2).clone().requires_grad_()
        optimiser = torch.optim.Adam([point])
        for step in range(heat.steps):
            optimiser.param_groups[0]["lr"] = settings.latent_rate * (1 - 0.9 * step / heat.steps)
            found = course.losses(each, point, 0)
            far = point.square().mean(1).view(len(each), -1).mean(1)
            point.grad = torch.autograd.grad((found + settings.latent_weight * far).sum(), point)[0]
            optimiser.step()
            lost = found.detach()
            on_progress((before + heat.starts * step) / work)
        runners, lost = point.detach().view(-1, heat.starts, *starts.shape[2:]), lost.view(-1, heat.starts)
        before += heat.starts * heat.steps
    return leading(runners, lost, 1)[:, 0]


def _searched_ball(course: _Course, middle: Tensor, after: int, radius: float) -> Tensor:
    """What matches best in a space around `middle` (problems * count x features)."""
    point = middle.clone().requires_grad_()
    optimiser = torch.optim.Adam([point])
    size = middle.flatten(1).norm(dim=1).mean().item() / middle[0].numel() ** 0.5
    for step in range(course.settings.steps):
        optimiser.param_groups[0]["lr"] = size * course.settings.feature_rate * (1 - 0.9 * step / course.settings.steps)
        found = course.losses(course.problems, point, after)
        point.grad = torch.autograd.grad(found.sum(), point)[0]
        optimiser.step()
        with torch.no_grad():
            point.copy_(in_ball(point, middle, radius))
    return point.detach()
