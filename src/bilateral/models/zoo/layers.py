"""What all networks of the zoo are made of: checked arguments, a convolution unit, initial weights."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from bilateral.errors import ModelError

HEAD: Final = "head"


class ConvUnit(nn.Module):
    """A convolution that keeps the size (or divides it by `stride`), then BatchNorm or else a bias."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, stride: int = 1, batch_norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=not batch_norm
        )
        self.norm = nn.BatchNorm2d(out_channels) if batch_norm else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x if self.norm is None else self.norm(x)


def initialize_for_relu(network: nn.Module) -> None:
    """He et al. (2015) normal weights and zero biases, so that the signal keeps its size through ReLUs.

    The head keeps torch's default (smaller) weights: no ReLU follows it.
    """
    with torch.no_grad():
        for name, module in network.named_modules():
            if name != HEAD and isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def image_shape(input_shape: tuple[int, ...], *, model: str, min_size: int) -> tuple[int, int, int]:
    """`input_shape` as (channels, height, width); ModelError if it is no image or a too small one."""
    expected = f"{model} expected images of shape (channels, height, width)"
    if len(input_shape) != 3:
        raise ModelError(
            f"{expected}, got input shape {input_shape}.",
            remedy="Use an mlp for flat input, or reshape the data to (channels, height, width).",
        )
    channels, height, width = input_shape
    if min(height, width) < min_size:
        raise ModelError(
            f"{expected} of at least {min_size}x{min_size} pixels, got {height}x{width} pixels.",
            remedy="Enlarge the images, or use an mlp.",
        )
    return channels, height, width


def require_count(option: str, value: object) -> int:
    """`value` as a whole number of at least 1, else ModelError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"Expected {option} to be a whole number of at least 1, got {value!r}.")
    return value


def require_flag(option: str, value: object) -> bool:
    """`value` as a boolean, else ModelError."""
    if not isinstance(value, bool):
        raise ModelError(f"Expected {option} to be true or false, got {value!r}.")
    return value
