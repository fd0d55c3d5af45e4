"""Model inversion with a generator (GMI, Zhang et al. 2020; P3, table IV): what does a class look like inside a model?

The attacker has a model's outputs as a function of images, and an `ImagePrior` that it trained on public images. For a
class it searches the generator's latent space for an image that the model assigns to that class and the critic finds
real:

    minimise over z   -log softmax_class(scale * outputs(G(z))) - a * critic(G(z)) + b * |z|^2 / 2

The outputs' scale is set by the attacker, to the same spread over what its generator draws, for every model: logits of
a network trained with squared error are small numbers, and those under perturbation have noise on them. Several latents
are tried for a class, and the one with the least loss is the guess: the attacker sees that loss, and no private image.

A naive attacker inverts the outputs as they come (`naive_outputs`), an adaptive one those that it fitted to samples of
its own (`fit_outputs`); the search is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.audit.topics.model.attacks.generator import ImagePrior
from bilateral.randomness import Randomness

Outputs = Callable[[Tensor], Tensor]
"""Images -> outputs, sample by sample and differentiable."""


@dataclass(frozen=True)
class SearchSettings:
    """How hard the attacker looks; the same against every model."""

    steps: int = 200
    restarts: int = 8
    learning_rate: float = 0.05
    logit_spread: float = 3.0
    realism_weight: float = 0.1
    latent_weight: float = 0.1
    num_scale_draws: int = 256


@dataclass(frozen=True, eq=False)
class Inversion:
    """One guess a class: `images` (classes x CHW), and what the attacker knows of each: its loss and confidence."""

    images: Tensor
    losses: Tensor
    confidences: Tensor


def invert_classes(
    outputs: Outputs,
    classes: Tensor,
    prior: ImagePrior,
    randomness: Randomness,
    settings: SearchSettings = SearchSettings(),  # noqa: B008 (frozen)
    on_step: Callable[[int], None] = lambda _: None,
) -> Inversion:
    """An image of each of `classes`, as the model sees them."""
    scale = _scale(outputs, prior, randomness.child("scale"), settings)
    wanted = classes.repeat_interleave(settings.restarts)
    latents = prior.draw_latents(len(wanted), randomness.child("latents")).requires_grad_()
    optimiser = torch.optim.Adam([latents], settings.learning_rate)
    for step in range(settings.steps):
        optimiser.zero_grad()
        losses, _, _ = _judge(latents, wanted, outputs, scale, prior, settings)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        on_step(step + 1)
    with torch.no_grad():
        losses, confidences, images = _judge(latents, wanted, outputs, scale, prior, settings)
    best = losses.view(len(classes), -1).argmin(1) + torch.arange(len(classes)) * settings.restarts
    return Inversion(images[best], losses[best], confidences[best])


def _scale(outputs: Outputs, prior: ImagePrior, randomness: Randomness, settings: SearchSettings) -> float:
    """What brings the outputs to the wanted spread around each sample's mean; 1 for a model that says nothing."""
    with torch.no_grad():
        drawn = outputs(prior.generator(prior.draw_latents(settings.num_scale_draws, randomness)))
    spread = float((drawn - drawn.mean(1, keepdim=True)).square().mean().sqrt())
    return settings.logit_spread / spread if spread > 0 else 1.0


def _judge(
    latents: Tensor, wanted: Tensor, outputs: Outputs, scale: float, prior: ImagePrior, settings: SearchSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """What the attacker thinks of latents: loss, the model's confidence in the wanted class, and the images."""
    images = prior.generator(latents)
    unlikely = F.cross_entropy(scale * outputs(images), wanted, reduction="none").to(latents.dtype)
    realism = prior.critic(images)
    losses = unlikely - settings.realism_weight * realism + settings.latent_weight * latents.square().sum(1) / 2
    return losses, (-unlikely).exp(), images
