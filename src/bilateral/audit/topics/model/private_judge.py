"""Who says whether an image shows a class of the private data: a network trained on them, that no attacker ever sees.

As in Zhang et al. (2020) and P3, with one difference: P3 asks the attacked model itself, which accepts whatever was
optimised against it. A network of its own has nothing to do with the attack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.audit.scores import FEATURE_MSE, Metric, Scores
from bilateral.audit.topics.model.attacks.generator import SMALL_PIXELS
from bilateral.data import Split
from bilateral.randomness import Randomness

ATTACK_ACCURACY = Metric("attack accuracy", "high", is_rate=True, digits=2)
CONFIDENCE = Metric("evaluation network's confidence", "high", digits=2)
NEAREST_MSE = Metric("MSE to the nearest private image", "low", digits=3)
_BATCH_SIZE = 64
_NOISE = 0.3
"""Added to training images, in their standard deviations: made images are never quite like real ones."""


@dataclass(frozen=True, eq=False)
class PrivateJudge:
    """The evaluation network, and the private images by class."""

    body: nn.Module = field(repr=False)
    head: nn.Linear = field(repr=False)
    private: Split = field(repr=False)

    @staticmethod
    def train(private: Split, num_classes: int, randomness: Randomness, *, steps: int) -> PrivateJudge:
        """`private.targets` are class numbers."""
        draws = randomness.torch_generator()
        private = Split(private.inputs.float(), private.targets)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(draws.initial_seed())
            body, width = _make_body(tuple(private.inputs.shape[1:]))
            head = nn.Linear(width, num_classes)
        network, noise = nn.Sequential(body, head), _NOISE * float(private.inputs.std())
        optimiser = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
        for _ in range(steps):
            chosen = private.subset(torch.randint(len(private), (_BATCH_SIZE,), generator=draws))
            inputs = chosen.inputs + noise * torch.randn(chosen.inputs.shape, generator=draws)
            optimiser.zero_grad()
            F.cross_entropy(network(inputs), chosen.targets).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        network.eval().requires_grad_(requires_grad=False)
        return PrivateJudge(body, head, private)

    def accuracy(self, split: Split) -> float:
        """How good it is itself, on images that nobody trained on."""
        return float((self.head(self.body(split.inputs.float())).argmax(1) == split.targets).double().mean())

    def scores(self, images: Tensor, classes: Tensor) -> tuple[Scores, ...]:
        """How well each image shows its class, by all four metrics."""
        features = self.body(images.float())
        outputs = self.head(features)
        hits = (outputs.argmax(1) == classes).double()
        confidence = outputs.softmax(1).gather(1, classes[:, None])[:, 0]
        centroids = torch.stack([self.body(self.of_class(int(c))).mean(0) for c in classes])
        nearest = [self.nearest(image, int(c))[1] for image, c in zip(images, classes, strict=True)]
        return (
            Scores(ATTACK_ACCURACY, tuple(hits.tolist())),
            Scores(CONFIDENCE, tuple(confidence.tolist())),
            Scores(FEATURE_MSE, tuple((features - centroids).square().mean(1).tolist())),
            Scores(NEAREST_MSE, tuple(nearest)),
        )

    def of_class(self, number: int) -> Tensor:
        return self.private.inputs[self.private.targets == number]

    def nearest(self, image: Tensor, number: int) -> tuple[Tensor, float]:
        """The private image of the class that is nearest to `image`, and its mean squared distance."""
        mine = self.of_class(number)
        distances = (mine - image.float()).square().flatten(1).mean(1)
        best = int(distances.argmin())
        return mine[best], float(distances[best])


def _make_body(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The layers up to the features, and how many features there are."""
    channels, height, width = shape
    if height * width <= SMALL_PIXELS:
        size = channels * height * width
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()), 64
    widths = (channels, 32, 64, 64)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten()), 64 * 4
