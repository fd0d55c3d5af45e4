"""The networks of `bench sealed-step`, by the names of its rows, and a batch for each.

MLP 20-64-64-1, MLP 784-128-128-10, LeNet 1x28x28 (20, 50, 100), ResNet-8 3x32x32 without BatchNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.zoo import build_model
from bilateral.models.zoo.layers import initialize_for_relu


class PublishedLeNet(nn.Module):
    """The LeNet of the published secret-shared trainings: 5x5 convolutions without padding, 20 and 50 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.pool = nn.MaxPool2d(2)
        self.linear = nn.Linear(800, 100)
        self.head = nn.Linear(100, 10)
        initialize_for_relu(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.linear(torch.flatten(x, 1)))
        output: Tensor = self.head(x)
        return output


def build_published_lenet(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return PublishedLeNet()


@dataclass(frozen=True)
class StepNetwork:
    """A network with random weights, the shape of a sample, the number of outputs, and batches that are measured."""

    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    num_outputs: int
    batch_sizes: tuple[int, ...]


def _mlp(num_inputs: int, width: int, num_outputs: int, batch_size: int) -> StepNetwork:
    shape = (num_inputs,)
    build = partial(build_model, "mlp-3", input_shape=shape, num_outputs=num_outputs, width=width)
    return StepNetwork(build, shape, num_outputs, (batch_size,))


_IMAGE: Final = (3, 32, 32)

NETWORKS: Final[Mapping[str, StepNetwork]] = {
    "mlp-tab": _mlp(20, 64, 1, 64),
    "mlp-a": _mlp(784, 128, 10, 128),
    "lenet": StepNetwork(build_published_lenet, (1, 28, 28), 10, (32, 128)),
    "resnet-8": StepNetwork(
        partial(build_model, "resnet-8", input_shape=_IMAGE, num_outputs=10, batch_norm=False), _IMAGE, 10, (32,)
    ),
}

_SEED: Final = 4
"""With it no ReLU of the MLPs has an input nearer to zero than 1e-4.

Of one that has, a fixed-point number may have the wrong sign; the gradient then lacks a sample, in every system.
"""


def make_batch(network: StepNetwork, batch_size: int) -> tuple[Tensor, Tensor]:
    """Standard normal samples; random classes as one-hot targets, or standard normal ones where there is one output."""
    generator = torch.Generator().manual_seed(_SEED)
    inputs = torch.randn(batch_size, *network.input_shape, generator=generator)
    if network.num_outputs == 1:
        return inputs, torch.randn(batch_size, 1, generator=generator)
    labels = torch.randint(network.num_outputs, (batch_size,), generator=generator)
    return inputs, F.one_hot(labels, network.num_outputs).float()
