"""How alike two images look to a small network of our own: a distance in the manner of LPIPS, and not LPIPS.

LPIPS (Zhang et al. 2018) compares what AlexNet or VGG, trained on ImageNet, make of two images, with weights fitted to
people's judgements. Nothing is downloaded here: the network is three convolutions, trained for a few hundred steps to
tell the classes of the public samples apart, and there are no such weights. What is kept is the form: at every place of
every layer the channels are brought to length one, squared differences are added up over channels and averaged over
places and layers. Figures of two audits compare only where the public samples are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.data import Split
from bilateral.randomness import Randomness

STEPS: Final = 200
_WIDTHS = (16, 32, 32)
_BATCH_SIZE = 64
_RATE = 3e-3
_SMALLEST = 1e-8
Perception = Callable[[Tensor, Tensor], float]
"""The distance of two images on the data's own scale."""


def train_perception(public: Split, randomness: Randomness, *, steps: int = STEPS) -> Perception:
    """A distance that knows images like the public ones (NCHW, with class numbers or one-hot targets)."""
    targets = public.targets
    labels = targets if targets.dim() == 1 and not targets.is_floating_point() else targets.argmax(1)
    images, draws = public.inputs.float(), randomness.torch_generator()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draws.initial_seed())
        layers, head = _make_layers(images.shape[1]), nn.Linear(_WIDTHS[-1], int(labels.max()) + 1)
    networks = nn.ModuleList([*layers, head])
    optimiser = torch.optim.Adam(networks.parameters(), _RATE)
    for _ in range(steps):
        rows = torch.randint(len(images), (_BATCH_SIZE,), generator=draws)
        seen = images[rows]
        for layer in layers:
            seen = layer(seen)
        optimiser.zero_grad()
        F.cross_entropy(head(seen.mean((2, 3))), labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    networks.eval().requires_grad_(requires_grad=False)
    return lambda guess, truth: _distance(layers, guess, truth)


def _make_layers(channels: int) -> list[nn.Module]:
    sizes = zip((channels, *_WIDTHS[:-1]), _WIDTHS, (1, 2, 2), strict=True)
    return [nn.Sequential(nn.Conv2d(a, b, 3, stride=by, padding=1), nn.ReLU()) for a, b, by in sizes]


def _distance(layers: list[nn.Module], guess: Tensor, truth: Tensor) -> float:
    seen, found = torch.stack([guess, truth]).float(), []
    for layer in layers:
        seen = layer(seen)
        unit = seen / seen.norm(dim=1, keepdim=True).clamp_min(_SMALLEST)
        found.append(float((unit[0] - unit[1]).double().square().sum(0).mean()))
    return sum(found) / len(found)
