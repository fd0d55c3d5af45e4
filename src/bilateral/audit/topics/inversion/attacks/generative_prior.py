"""What an attacker learns of images in general: a decoder from a few numbers to an image, trained on public images.

A variational autoencoder (Kingma and Welling 2014) and no adversarial network: a search in its latents must be able to
reach every image, and generators of adversarial networks leave some out. The encoder gives the search its starts. No
labels are used, and no client's samples.

A decoder is a chain of parts. What is between two of them can be searched instead of the latents (`GenerativePrior.
decoded`), as GIFD does (Fang et al. 2023): the nearer to the image, the more it can show, and the less the prior holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bilateral.errors import DataError
from bilateral.randomness import Randomness

SMALL_PIXELS = 16 * 16
_BATCH_SIZE = 64
_RATE = 2e-3
_DIVERGENCE = 2e-3
"""Weight of the divergence from the standard normal, a latent, beside the mean squared error of a pixel on 0 to 1."""


@dataclass(frozen=True, eq=False)
class GenerativePrior:
    """`encoder`: images -> latents; `parts`: latents -> ... -> images, in the range that public images have."""

    encoder: nn.Module = field(repr=False)
    parts: tuple[nn.Module, ...] = field(repr=False)
    latent_size: int

    @property
    def num_parameters(self) -> int:
        """Of the decoder."""
        return sum(p.numel() for part in self.parts for p in part.parameters())

    def encoded(self, images: Tensor) -> Tensor:
        """The latents of images."""
        with torch.no_grad():
            found: Tensor = self.encoder(images)[:, : self.latent_size]
        return found

    def decoded(self, features: Tensor, after: int = 0) -> Tensor:
        """Images from what comes out of the first `after` parts; from latents for 0."""
        for part in self.parts[after:]:
            features = part(features)
        return features

    def next_features(self, features: Tensor, after: int) -> Tensor:
        """One part further."""
        with torch.no_grad():
            found: Tensor = self.parts[after](features)
        return found

    def draw_images(self, count: int, randomness: Randomness) -> Tensor:
        """What the prior says by itself: images of standard normal latents."""
        with torch.no_grad():
            return self.decoded(randomness.normal(count, self.latent_size).float())


def train_generative_prior(
    public: Tensor,
    randomness: Randomness,
    *,
    steps: int,
    on_step: Callable[[int], None] = lambda _: None,
) -> GenerativePrior:
    """Learn from unlabelled images (NCHW)."""
    if public.dim() != 4 or len(public) < 2:
        raise DataError(f"Expected two or more public images (NCHW), got a tensor of shape {list(public.shape)}.")
    public = public.float()
    draws = randomness.torch_generator()
    latent_size = 24 if public[0, 0].numel() <= SMALL_PIXELS else 96
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draws.initial_seed())
        encoder, parts = _make_encoder(public, latent_size), _make_parts(public, latent_size)
    squash = parts[-1][-1]
    assert isinstance(squash, _Range)
    networks = nn.ModuleList([encoder, *parts])
    optimiser = torch.optim.Adam(networks.parameters(), _RATE, fused=True)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = _RATE * min(1.0, 2.5 * (1 - step / steps))
        images = public[torch.randint(len(public), (_BATCH_SIZE,), generator=draws)]
        middle, log_variance = encoder(images).split(latent_size, 1)
        features = middle + torch.exp(0.5 * log_variance) * torch.randn(middle.shape, generator=draws)
        for part in parts:
            features = part(features)
        error = ((features - images) / squash.span).square().mean()
        apart = 0.5 * (middle.square() + log_variance.exp() - 1 - log_variance).mean()
        optimiser.zero_grad()
        (error + _DIVERGENCE * apart).backward()
        optimiser.step()
        on_step(step + 1)
    networks.eval().requires_grad_(requires_grad=False)
    return GenerativePrior(encoder, tuple(parts), latent_size)


class _Range(nn.Module):
    """Squash to the range that public images have, channel by channel."""

    low: Tensor
    span: Tensor

    def __init__(self, public: Tensor) -> None:
        super().__init__()
        low, high = public.amin((0, 2, 3), keepdim=True), public.amax((0, 2, 3), keepdim=True)
        self.register_buffer("low", low)
        self.register_buffer("span", torch.where(high > low, high - low, torch.ones_like(high)))

    def forward(self, x: Tensor) -> Tensor:
        return self.low + self.span * torch.sigmoid(x)


def _make_parts(public: Tensor, latent_size: int) -> list[nn.Sequential]:
    channels, height, width = public.shape[1:]
    sizes = [(-(-height // by), -(-width // by)) for by in (8, 4, 2, 1)]
    first = nn.Sequential(
        nn.Linear(latent_size, 64 * sizes[0][0] * sizes[0][1]), nn.Unflatten(1, (64, *sizes[0])), nn.ReLU()
    )
    widths = ((64, 64), (64, 48), (48, 32))
    rising = [_enlarging(a, b, size) for (a, b), size in zip(widths, sizes[1:], strict=True)]
    return [first, *rising, nn.Sequential(nn.Conv2d(32, channels, 3, padding=1), _Range(public))]


def _enlarging(inputs: int, outputs: int, size: tuple[int, int]) -> nn.Sequential:
    return nn.Sequential(
        nn.Upsample(size), nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()
    )


def _make_encoder(public: Tensor, latent_size: int) -> nn.Module:
    channels, height, width = public.shape[1:]
    body: list[nn.Module] = []
    for inputs, outputs in ((channels, 32), (32, 48), (48, 64)):
        body += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(64 * -(-height // 8) * -(-width // 8), 2 * latent_size))
