"""A small DenseNet-BC (Huang et al. 2017) for small images.

Every layer reads all earlier outputs of its stage, concatenated along the channels: a 1x1 convolution to
4 `growth` channels, then a 3x3 convolution to `growth` channels. Between stages a 1x1 convolution halves the
channels and average pooling halves the image. With BatchNorm the order is BatchNorm, ReLU, convolution, as
published; without it convolution, ReLU, and the convolutions have biases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.errors import ModelError
from bilateral.models.zoo.layers import image_shape, initialize_for_relu, require_count, require_flag

_BOTTLENECK_FACTOR: Final = 4


class ActivatedConv(nn.Module):
    """BatchNorm, ReLU, convolution; or convolution, ReLU where `batch_norm` is false."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, batch_norm: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels) if batch_norm else None
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=not batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm is None:
            return F.relu(self.conv(x))
        output: Tensor = self.conv(F.relu(self.norm(x)))
        return output


class DenseLayer(nn.Module):
    """Appends `growth` channels to its input."""

    def __init__(self, in_channels: int, growth: int, *, batch_norm: bool) -> None:
        super().__init__()
        inner = _BOTTLENECK_FACTOR * growth
        self.reduce = ActivatedConv(in_channels, inner, 1, batch_norm=batch_norm)
        self.grow = ActivatedConv(inner, growth, 3, batch_norm=batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.grow(self.reduce(x))], dim=1)


class DenseNet(nn.Module):
    """Stem with 2 `growth` channels, stages of dense layers with transitions between them, mean, head."""

    def __init__(
        self, in_channels: int, num_outputs: int, *, growth: int, layers: tuple[int, ...], batch_norm: bool
    ) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Conv2d(in_channels, channels, 3, padding=1, bias=not batch_norm)
        body: list[nn.Module] = []
        for stage, num_layers in enumerate(layers):
            if stage:
                body += [ActivatedConv(channels, channels // 2, 1, batch_norm=batch_norm), nn.AvgPool2d(2)]
                channels //= 2
            for _ in range(num_layers):
                body.append(DenseLayer(channels, growth, batch_norm=batch_norm))
                channels += growth
        self.body = nn.ModuleList(body)
        self.norm = nn.BatchNorm2d(channels) if batch_norm else None
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, num_outputs)
        initialize_for_relu(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.norm is None:
            x = F.relu(x)
        for module in self.body:
            x = module(x)
        if self.norm is not None:
            x = F.relu(self.norm(x))
        output: Tensor = self.head(torch.flatten(self.pool(x), 1))
        return output


def build_densenet(
    *,
    input_shape: tuple[int, ...],
    num_outputs: int,
    growth: int = 12,
    layers: Sequence[int] = (4, 4, 4),
    batch_norm: bool = True,
) -> nn.Module:
    """A stage for every number in `layers`, with as many dense layers as it says."""
    if isinstance(layers, str) or not isinstance(layers, Sequence) or not layers:
        raise ModelError(f"Expected layers to be a list of whole numbers, one a stage, got {layers!r}.")
    counts = tuple(require_count("every number in layers", count) for count in layers)
    channels, _, _ = image_shape(input_shape, model="densenet", min_size=2 ** (len(counts) - 1))
    return DenseNet(
        channels,
        num_outputs,
        growth=require_count("growth", growth),
        layers=counts,
        batch_norm=require_flag("batch_norm", batch_norm),
    )


BUILDERS: Final[Mapping[str, Callable[..., nn.Module]]] = {"densenet": build_densenet}
