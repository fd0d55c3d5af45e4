"""What an attacker learns of images in general: a generator and a critic, trained against each other on public images.

A generative adversarial network with the hinge loss and spectrally normalised critic (Miyato et al. 2018): one backward
pass each a step, where a gradient penalty would need two. Labels are not used, and no client's samples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from bilateral.errors import DataError
from bilateral.randomness import Randomness

LATENT_SIZE = 32
_WIDTH = 128
SMALL_PIXELS = 16 * 16
"""Up to this size layers without convolutions learn faster than those with."""
_BATCH_SIZE = 64
_GENERATOR_RATE = 5e-4
_CRITIC_RATE = 1e-3
_BETAS = (0.5, 0.9)
_AVERAGING = 0.99


@dataclass(frozen=True, eq=False)
class ImagePrior:
    """What images look like. `generator`: latents -> images; `critic`: images -> how real they look."""

    generator: nn.Module = field(repr=False)
    critic: nn.Module = field(repr=False)
    input_shape: tuple[int, ...]

    def draw_latents(self, count: int, randomness: Randomness) -> Tensor:
        """Standard normal, as in training."""
        return randomness.normal(count, LATENT_SIZE).float()


def train_prior(
    public: Tensor,
    randomness: Randomness,
    *,
    steps: int,
    on_step: Callable[[int], None] = lambda _: None,
) -> ImagePrior:
    """Learn from unlabelled images (NCHW). The generator returned is the running mean of the one that is trained."""
    if public.dim() != 4 or len(public) < 2:
        raise DataError(f"Expected two or more public images (NCHW), got a tensor of shape {list(public.shape)}.")
    public = public.float()
    shape = tuple(public.shape[1:])
    draws = randomness.torch_generator()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draws.initial_seed())
        generator, critic = _make_generator(public), _make_critic(shape)
    averaged = copy.deepcopy(generator)
    makers = torch.optim.Adam(generator.parameters(), _GENERATOR_RATE, _BETAS, fused=True)
    judges = torch.optim.Adam(critic.parameters(), _CRITIC_RATE, _BETAS, fused=True)
    for step in range(steps):
        real = public[torch.randint(len(public), (_BATCH_SIZE,), generator=draws)]
        made = generator(torch.randn(_BATCH_SIZE, LATENT_SIZE, generator=draws))
        verdicts = critic(torch.cat([real, made.detach()]))
        judged = F.relu(1.0 - verdicts[:_BATCH_SIZE]).mean() + F.relu(1.0 + verdicts[_BATCH_SIZE:]).mean()
        judges.zero_grad()
        judged.backward()  # type: ignore[no-untyped-call]
        judges.step()
        makers.zero_grad()
        (-critic(made).mean()).backward()
        makers.step()
        _average(averaged, generator)
        on_step(step + 1)
    for network in (averaged, critic):
        network.eval().requires_grad_(requires_grad=False)
    return ImagePrior(averaged, critic, shape)


@torch.no_grad()
def _average(averaged: nn.Module, latest: nn.Module) -> None:
    for mean, value in zip(averaged.parameters(), latest.parameters(), strict=True):
        mean.lerp_(value, 1.0 - _AVERAGING)


class _Range(nn.Module):
    """Squash to the range that public images have, channel by channel."""

    low: Tensor
    span: Tensor

    def __init__(self, public: Tensor) -> None:
        super().__init__()
        low, high = public.amin((0, 2, 3), keepdim=True), public.amax((0, 2, 3), keepdim=True)
        self.register_buffer("low", low)
        self.register_buffer("span", high - low)

    def forward(self, x: Tensor) -> Tensor:
        return self.low + self.span * torch.sigmoid(x)


def _make_generator(public: Tensor) -> nn.Module:
    channels, height, width = public.shape[1:]
    if height * width <= SMALL_PIXELS:
        body: list[nn.Module] = [
            nn.Linear(LATENT_SIZE, _WIDTH),
            nn.ReLU(),
            nn.Linear(_WIDTH, _WIDTH),
            nn.ReLU(),
            nn.Linear(_WIDTH, channels * height * width),
            nn.Unflatten(1, (channels, height, width)),
        ]
    else:
        start = (-(-height // 8), -(-width // 8))
        body = [
            nn.Linear(LATENT_SIZE, 64 * start[0] * start[1]),
            nn.Unflatten(1, (64, *start)),
            nn.ReLU(),
            *_enlarging(64, 48, (-(-height // 4), -(-width // 4))),
            *_enlarging(48, 32, (-(-height // 2), -(-width // 2))),
            *_enlarging(32, 16, (height, width)),
            nn.Conv2d(16, channels, 3, padding=1),
        ]
    return nn.Sequential(*body, _Range(public))


def _enlarging(inputs: int, outputs: int, size: tuple[int, int]) -> tuple[nn.Module, ...]:
    return nn.Upsample(size), nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()


def _make_critic(shape: tuple[int, ...]) -> nn.Module:
    channels, height, width = shape
    layers: list[nn.Module]
    if height * width <= SMALL_PIXELS:
        sizes = (channels * height * width, 2 * _WIDTH, _WIDTH, 1)
        layers = [spectral_norm(nn.Linear(a, b)) for a, b in pairwise(sizes)]
        return nn.Sequential(nn.Flatten(), *_with_slopes(layers), nn.Flatten(0))
    widths = (channels, 16, 32, 64)
    layers = [spectral_norm(nn.Conv2d(a, b, 4, stride=2, padding=1)) for a, b in pairwise(widths)]
    size = 64 * (height // 8) * (width // 8)
    return nn.Sequential(
        *_with_slopes(layers), nn.LeakyReLU(0.2), nn.Flatten(), spectral_norm(nn.Linear(size, 1)), nn.Flatten(0)
    )


def _with_slopes(layers: list[nn.Module]) -> list[nn.Module]:
    """A leaky ReLU between every two layers."""
    between = [part for layer in layers for part in (layer, nn.LeakyReLU(0.2))]
    return between[:-1]
