"""Residual networks (He et al. 2016) for small images: a 3x3 stem with stride 1, then stages of blocks.

| names | stages | blocks a stage | block | channels (`width`, doubling) |
|---|---|---|---|---|
| resnet-8, 14, 20, 32, 56 | 3 | (depth - 2) / 6 | 3x3, 3x3 | 16, 32, 64 |
| resnet-10, 18 | 4 | 1, 2 | 3x3, 3x3 | 64, 128, 256, 512 |
| resnet-11 | 3 | 1 | 1x1, 3x3, 1x1 | 16, 32, 64, times 4 after the block |

ResNet-11 (P2, section 6.5) is not described in the paper. Blocks of two convolutions give even depths only;
He et al.'s bottleneck blocks of three give 9n + 2, which is 11 for n = 1, so that is what is built.

A 1x1 convolution is the shortcut wherever the shape changes.

`shortcut="concat"` joins branch and shortcut along the channels, as P0 section III-A.2 does, instead of
adding them. Each gives half of the block's channels (so every shortcut is a 1x1 convolution) and all tensors
between blocks have the shapes of the additive network. The inner layers of a block are 11/8 as wide, which
makes up for the thinner last layer: the number of parameters stays within 15 % of the additive network's.

`batch_norm=False` gives the convolutions biases and needs other initial weights, so that logits and gradients
keep their size at any depth. The last convolution of each additive block starts 1/sqrt(number of blocks) as
large (the idea of Fixup, Zhang et al. 2019). The shortcut of a concatenating block that keeps the shape
starts as a copy of the second half of its input, which then reaches the end of the stage unchanged; the
deepest of these networks still want a small learning rate (resnet-56: 0.01 with momentum 0.9, not 0.05).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.errors import ModelError
from bilateral.models.zoo.layers import (
    ConvUnit,
    image_shape,
    initialize_for_relu,
    require_count,
    require_flag,
)

Shortcut = Literal["add", "concat"]

_BASIC: Final = (3, 3)
_BOTTLENECK: Final = (1, 3, 1)
_BOTTLENECK_EXPANSION: Final = 4


class Block(nn.Module):
    """ReLU(branch + shortcut), or ReLU of both concatenated; `kernels` are those of the branch.

    The first 3x3 convolution has the stride.
    """

    def __init__(
        self,
        in_channels: int,
        inner_channels: int,
        out_channels: int,
        *,
        kernels: tuple[int, ...],
        stride: int,
        shortcut: Shortcut,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        self.concatenates = shortcut == "concat"
        if self.concatenates:
            inner_channels = max(1, inner_channels * 11 // 8)
            shortcut_channels = out_channels // 2
            branch_channels = out_channels - shortcut_channels
        else:
            shortcut_channels = branch_channels = out_channels
        widths = (in_channels, *(inner_channels for _ in kernels[1:]), branch_channels)
        strided = kernels.index(3)
        self.branch = nn.ModuleList(
            ConvUnit(
                widths[i],
                widths[i + 1],
                kernel,
                stride=stride if i == strided else 1,
                batch_norm=batch_norm,
            )
            for i, kernel in enumerate(kernels)
        )
        self.keeps_shape = stride == 1 and in_channels == out_channels
        self.projection = (
            None
            if self.keeps_shape and not self.concatenates
            else ConvUnit(in_channels, shortcut_channels, 1, stride=stride, batch_norm=batch_norm)
        )

    def forward(self, x: Tensor) -> Tensor:
        branch = x
        for index, unit in enumerate(self.branch):
            branch = unit(F.relu(branch) if index else branch)
        shortcut = x if self.projection is None else self.projection(x)
        return F.relu(torch.cat([branch, shortcut], dim=1) if self.concatenates else branch + shortcut)


class ResNet(nn.Module):
    """Stem, stages of blocks (the first block of each stage but the first halves the image), mean, head."""

    def __init__(
        self,
        in_channels: int,
        num_outputs: int,
        *,
        blocks_per_stage: tuple[int, ...],
        width: int,
        kernels: tuple[int, ...],
        shortcut: Shortcut,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        expansion = _BOTTLENECK_EXPANSION if kernels == _BOTTLENECK else 1
        self.stem = ConvUnit(in_channels, width, 3, batch_norm=batch_norm)
        blocks: list[Block] = []
        channels = width
        for stage, num_blocks in enumerate(blocks_per_stage):
            inner = width * 2**stage
            for index in range(num_blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(
                    Block(
                        channels,
                        inner,
                        inner * expansion,
                        kernels=kernels,
                        stride=stride,
                        shortcut=shortcut,
                        batch_norm=batch_norm,
                    )
                )
                channels = inner * expansion
        self.blocks = nn.ModuleList(blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, num_outputs)
        initialize_for_relu(self)
        if not batch_norm:
            _start_without_batch_norm(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        output: Tensor = self.head(torch.flatten(self.pool(x), 1))
        return output


def _start_without_batch_norm(blocks: list[Block]) -> None:
    """The initial weights that the module's docstring gives to networks without BatchNorm."""
    with torch.no_grad():
        for block in blocks:
            if not block.concatenates:
                last = block.branch[-1]
                assert isinstance(last, ConvUnit)
                last.conv.weight.div_(len(blocks) ** 0.5)
            elif block.projection is not None and block.keeps_shape:
                out_channels, in_channels = block.projection.conv.weight.shape[:2]
                copy = torch.eye(in_channels)[in_channels - out_channels :]
                block.projection.conv.weight.copy_(copy[:, :, None, None])


def _build(
    name: str,
    blocks_per_stage: tuple[int, ...],
    kernels: tuple[int, ...],
    default_width: int,
    /,
    *,
    input_shape: tuple[int, ...],
    num_outputs: int,
    width: int | None = None,
    batch_norm: bool = True,
    shortcut: Shortcut = "add",
) -> nn.Module:
    """One row of the table at the top. `width` is the number of channels of the first stage."""
    if shortcut not in get_args(Shortcut):
        raise ModelError(f"Expected shortcut to be 'add' or 'concat', got {shortcut!r}.")
    width = require_count("width", default_width if width is None else width)
    if shortcut == "concat" and width % 2:
        raise ModelError(
            f"Expected an even width with shortcut='concat', got {width}.",
            remedy=f"Branch and shortcut give half of the channels each: use width={width + 1}.",
        )
    channels, _, _ = image_shape(input_shape, model=name, min_size=2 ** (len(blocks_per_stage) - 1))
    return ResNet(
        channels,
        num_outputs,
        blocks_per_stage=blocks_per_stage,
        width=width,
        kernels=kernels,
        shortcut=shortcut,
        batch_norm=require_flag("batch_norm", batch_norm),
    )


_ARCHITECTURES: Final[Mapping[str, tuple[tuple[int, ...], tuple[int, ...], int]]] = {
    **{f"resnet-{depth}": (((depth - 2) // 6,) * 3, _BASIC, 16) for depth in (8, 14, 20, 32, 56)},
    "resnet-10": ((1, 1, 1, 1), _BASIC, 64),
    "resnet-11": ((1, 1, 1), _BOTTLENECK, 16),
    "resnet-18": ((2, 2, 2, 2), _BASIC, 64),
}

BUILDERS: Final[Mapping[str, Callable[..., nn.Module]]] = {
    name: partial(_build, name, *architecture) for name, architecture in _ARCHITECTURES.items()
}
