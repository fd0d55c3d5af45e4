"""Networks that gradient inversion is known to work on: stand-ins for a plan's own, under the plan's own protections.

Named in plans as `bilateral.audit.victims:sigmoid_lenet` and `bilateral.audit.victims:flat_convnet`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIGMOID_LENET = "bilateral.audit.victims:sigmoid_lenet"
CONVNET = "bilateral.audit.victims:flat_convnet"


class SigmoidLeNet(nn.Module):
    """The LeNet of DLG (Zhu et al. 2019): sigmoids, strides instead of pooling, weights uniform on [-0.5, 0.5].

    Matching by L-BFGS needs a network with second derivatives, which ReLU does not have. Sigmoids pin scale factors to
    1, so perturbation hides less of it than of a ReLU network.
    """

    def __init__(self, channels: int, height: int, width: int, num_outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 12, 5, padding=2, stride=2)
        self.conv2 = nn.Conv2d(12, 12, 5, padding=2, stride=2)
        self.conv3 = nn.Conv2d(12, 12, 5, padding=2)
        self.head = nn.Linear(12 * -(-height // 4) * -(-width // 4), num_outputs)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in (self.conv1, self.conv2, self.conv3):
            x = torch.sigmoid(convolution(x))
        output: Tensor = self.head(torch.flatten(x, 1))
        return output


def sigmoid_lenet(*, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """For images of 4x4 pixels and more."""
    channels, height, width = input_shape
    return SigmoidLeNet(channels, height, width, num_outputs)


class FlatConvNet(nn.Module):
    """Three 3x3 convolutions with ReLU, strides 1, 2 and 2, and one Linear over all that is left: no pooling, which
    would forget where things are. Matching with cosine distance works on it (Geiping et al. 2020)."""

    def __init__(self, channels: int, height: int, width: int, num_outputs: int, base: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, base, 3, padding=1)
        self.conv2 = nn.Conv2d(base, 2 * base, 3, padding=1, stride=2)
        self.conv3 = nn.Conv2d(2 * base, 2 * base, 3, padding=1, stride=2)
        self.head = nn.Linear(2 * base * -(-height // 4) * -(-width // 4), num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in (self.conv1, self.conv2, self.conv3):
            x = torch.relu(convolution(x))
        output: Tensor = self.head(torch.flatten(x, 1))
        return output


def flat_convnet(*, input_shape: tuple[int, ...], num_outputs: int, width: int = 16) -> nn.Module:
    """For images of 4x4 pixels and more; `width` channels, then twice as many."""
    channels, height, columns = input_shape
    return FlatConvNet(channels, height, columns, num_outputs, width)
