"""Small networks with known gradients, for tests of gradient inversion."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.audit.topics.inversion.attacks.gradient_matching import GradientModel
from bilateral.audit.victims import sigmoid_lenet
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.settings import Loss


class Bed:
    """A network with random weights, samples, labels, and the gradient of each sample by a plain loop."""

    def __init__(self, network: nn.Module, shape: tuple[int, ...], loss: Loss = "ce", count: int = 3) -> None:
        generator = torch.Generator().manual_seed(0)
        self.network = network.eval()
        self.graph = ScaleGraph.of(network, torch.zeros(2, *shape))
        self.model = GradientModel(self.network, self.graph, loss)
        self.samples = torch.rand(count, *shape, generator=generator)
        self.labels = torch.randint(0, self.graph.num_outputs, (count,), generator=generator)
        self.targets = F.one_hot(self.labels, self.graph.num_outputs).float()
        self.parameters = self.graph.flatten(dict(network.named_parameters()), torch.float32).detach()
        self.gradients = torch.stack([self.gradient(slice(i, i + 1)) for i in range(count)])

    def gradient(self, chosen: slice) -> Tensor:
        """The slow oracle: torch's own backward pass over a batch."""
        outputs, targets = self.network(self.samples[chosen]), self.targets[chosen]
        lost = F.cross_entropy(outputs, targets) if self.model.loss == "ce" else F.mse_loss(outputs, targets)
        own = dict(self.network.named_parameters())
        found = torch.autograd.grad(lost, list(own.values()))
        return self.graph.flatten(dict(zip(own, found, strict=True)), torch.float32)

    def repeated_parameters(self, times: int) -> Tensor:
        return self.parameters.expand(times, -1)


def mlp(*, bias: bool = True) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16, bias=bias), nn.ReLU(), nn.Linear(16, 4, bias=bias))


def smooth(size: int = 8) -> nn.Module:
    torch.manual_seed(2)
    return sigmoid_lenet(input_shape=(1, size, size), num_outputs=4)


def rectified() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 4),
    )
