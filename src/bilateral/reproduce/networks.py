"""Networks that only the papers' tables need."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CryptoNets(nn.Module):
    """CryptoNets with ReLU in place of squares (P4's CNet2): a 5x5 convolution of stride 2, and two Linear layers."""

    def __init__(self, channels: int, size: int, num_outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 5, 5, stride=2, padding=1)
        side = (size - 3) // 2 + 1
        self.linear = nn.Linear(5 * side * side, 100)
        self.head = nn.Linear(100, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(torch.relu(self.conv(x)), 1)
        output: Tensor = self.head(torch.relu(self.linear(x)))
        return output


def cryptonets(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """`--model bilateral.reproduce.networks:cryptonets`."""
    return CryptoNets(input_shape[0], input_shape[-1], num_outputs)


def wide_mlp(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """The MLP of P4's table 4 (Boemer et al. 2019): two hidden layers of 128."""
    inputs = 1
    for size in input_shape:
        inputs *= size
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, num_outputs)
    )
