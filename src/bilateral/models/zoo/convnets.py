"""Convolutional networks without residual connections: LeNet, VGG-7 and a small one for quick runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.zoo.layers import (
    ConvUnit,
    image_shape,
    initialize_for_relu,
    require_count,
    require_flag,
)


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pooling; the 5x5 convolutions are padded, so that 8x8 digits fit."""

    def __init__(self, channels: int, height: int, width: int, num_outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5, padding=2)
        self.pool = nn.MaxPool2d(2)
        self.linear1 = nn.Linear(16 * (height // 4) * (width // 4), 120)
        self.linear2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, num_outputs)
        initialize_for_relu(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.linear1(x))
        x = F.relu(self.linear2(x))
        output: Tensor = self.head(x)
        return output


class VGG7(nn.Module):
    """Six 3x3 convolutions, a max pooling after every second one, and one Linear layer (P4, appendix F)."""

    def __init__(
        self, channels: int, height: int, width: int, num_outputs: int, *, base: int, batch_norm: bool
    ) -> None:
        super().__init__()
        widths = (channels, base, base, 2 * base, 2 * base, 4 * base, 4 * base)
        self.convs = nn.ModuleList(ConvUnit(widths[i], widths[i + 1], 3, batch_norm=batch_norm) for i in range(6))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(4 * base * (height // 8) * (width // 8), num_outputs)
        initialize_for_relu(self)

    def forward(self, x: Tensor) -> Tensor:
        for index, conv in enumerate(self.convs):
            x = F.relu(conv(x))
            if index % 2 == 1:
                x = self.pool(x)
        output: Tensor = self.head(torch.flatten(x, 1))
        return output


class ConvNet(nn.Module):
    """Two 3x3 convolutions with stride 2, global average pooling, one Linear layer."""

    def __init__(self, channels: int, num_outputs: int, *, base: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1 = ConvUnit(channels, base, 3, stride=2, batch_norm=batch_norm)
        self.conv2 = ConvUnit(base, 2 * base, 3, stride=2, batch_norm=batch_norm)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * base, num_outputs)
        initialize_for_relu(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        output: Tensor = self.head(torch.flatten(self.pool(x), 1))
        return output


def build_lenet(*, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """LeNet for images of at least 8x8 pixels."""
    return LeNet(*image_shape(input_shape, model="lenet", min_size=8), num_outputs)


def build_vgg7(
    *, input_shape: tuple[int, ...], num_outputs: int, width: int = 64, batch_norm: bool = False
) -> nn.Module:
    """VGG-7 with `width`, 2 `width` and 4 `width` channels; 64 is the network of P4."""
    return VGG7(
        *image_shape(input_shape, model="vgg-7", min_size=8),
        num_outputs,
        base=require_count("width", width),
        batch_norm=require_flag("batch_norm", batch_norm),
    )


def build_convnet(
    *, input_shape: tuple[int, ...], num_outputs: int, width: int = 16, batch_norm: bool = False
) -> nn.Module:
    """The small network: `width` and then 2 `width` channels."""
    channels, _, _ = image_shape(input_shape, model="convnet", min_size=4)
    return ConvNet(
        channels,
        num_outputs,
        base=require_count("width", width),
        batch_norm=require_flag("batch_norm", batch_norm),
    )


BUILDERS: Final[Mapping[str, Callable[..., nn.Module]]] = {
    "convnet": build_convnet,
    "lenet": build_lenet,
    "vgg-7": build_vgg7,
}
