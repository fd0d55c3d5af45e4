"""What training needs of a linear map modulo 2^64, exact: its transpose, and the gradient of its weights.

The gradient is a product of two numbers that nobody prepared: both sides are whole words and new at every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.errors import ProtocolError
from bilateral.protocols.share.ring import cpu_features
from bilateral.protocols.share.ring.arithmetic import WORD_BITS, LinearMap, Path, prepare_conv2d, prepare_linear
from bilateral.protocols.share.ring.threads import flat, in_parts
from bilateral.protocols.share.ring.window import Window

UNFOLDED_WORDS: Final = 1 << 24
"""Of copies of the images, one a tap, at once; where there is no kernel of our own for it."""
COLUMN_WORDS: Final = 1 << 18
"""Of products that are added up at once: they stay in the caches."""
WASTE: Final = 1.5
"""So many times the pixels of delta, and most of a convolution over all of the image's would be products with zeros."""


def prepare_linear_transpose(weight: Tensor, *, weight_bits: int = WORD_BITS, path: Path | None = None) -> LinearMap:
    """`delta (batch, out) -> delta @ weight (batch, in)`. `weight` is (out, in)."""
    return prepare_linear(weight.t().contiguous(), weight_bits=weight_bits, path=path)


def prepare_conv2d_transpose(
    weight: Tensor,
    window: Window,
    size: tuple[int, int],
    *,
    weight_bits: int = WORD_BITS,
    path: Path | None = None,
) -> LinearMap:
    """`delta (batch, out, h', w') -> (batch, in, h, w)`: the transpose of the convolution of images of this `size`.

    Pixels whose distance is a multiple of the stride see the same taps of the window: for each such set of pixels, a
    convolution with those taps, of stride 1. So a stride costs no products with zeros. Where delta is much smaller than
    the images, most of the zeros are around it: then a product for every tap, and sums (`_Columns`).
    """
    if _is_much_smaller(window, size):
        return _Columns(weight, window, size, weight_bits, path)
    outputs, channels = weight.shape[0], weight.shape[1]
    grouped = weight.reshape(window.groups, outputs // window.groups, *weight.shape[1:])
    turned = grouped.transpose(1, 2).reshape(window.groups * channels, -1, *window.kernel)
    lines, columns = (_phases(window, size, axis) for axis in range(2))
    parts = []
    for line in lines:
        for column in columns:
            taps = turned[:, :, line.taps][:, :, :, column.taps].contiguous()
            apply = prepare_conv2d(
                taps,
                stride=(1, 1),
                padding=(0, 0),
                dilation=(line.dilation, column.dilation),
                groups=window.groups,
                weight_bits=weight_bits,
                path=path,
            )
            parts.append((line, column, apply))
    return _Conv2dTranspose(parts, (outputs, *window.output_size(*size)), (len(turned), *size), window.stride)


def _is_much_smaller(window: Window, size: tuple[int, int]) -> bool:
    """Whether sums in memory cost less than products with zeros (measured)."""
    pixels = math.prod(window.output_size(*size))
    return window.groups == 1 and window.stride == (1, 1) and math.prod(size) > WASTE * pixels > 0


class _Columns:
    """All products of delta with a tap's weights, then added up where the taps lie."""

    def __init__(
        self, weight: Tensor, window: Window, size: tuple[int, int], weight_bits: int, path: Path | None
    ) -> None:
        self._window, self._size, self._shape = window, size, (weight.shape[0], *window.output_size(*size))
        self._channels = weight.shape[1]
        rows = weight.flatten(1).t().contiguous()[:, :, None, None]
        self._multiply = prepare_conv2d(rows, stride=(1, 1), padding=(0, 0), weight_bits=weight_bits, path=path)
        self._at_once = max(1, COLUMN_WORDS // (len(rows) * math.prod(self._shape[1:])))

    def __call__(self, x: Tensor) -> Tensor:
        _check_delta(x, self._shape)
        (height, width), (top, left) = self._size, self._window.padding
        found = x.new_zeros((len(x), self._channels, height + 2 * top, width + 2 * left))
        for first in range(0, len(x), self._at_once):
            self._add(x[first : first + self._at_once], found[first : first + self._at_once])
        return found[:, :, top : top + height, left : left + width].contiguous()

    def _add(self, x: Tensor, found: Tensor) -> None:
        kernel, dilation, (height, width) = self._window.kernel, self._window.dilation, self._shape[1:]
        products = self._multiply(x).reshape(len(x), self._channels, *kernel, height, width)
        for u in range(kernel[0]):
            for v in range(kernel[1]):
                down, along = u * dilation[0], v * dilation[1]
                found[:, :, down : down + height, along : along + width] += products[:, :, u, v]


def _check_delta(x: Tensor, shape: tuple[int, ...]) -> None:
    if x.dtype != torch.int64 or tuple(x.shape[1:]) != shape:
        raise ProtocolError(
            f"Expected int64 of shape (any, {', '.join(map(str, shape))}), got {x.dtype} of shape {tuple(x.shape)}."
        )


@dataclass(frozen=True)
class _Phase:
    """Along one axis, the pixels `first, first + stride, ...`: which taps they see, and of which part of delta."""

    first: int
    count: int
    taps: torch.Tensor
    """Last tap first."""
    dilation: int
    start: int
    """Where in delta the window of the first pixel starts; it may be before it."""

    @property
    def reach(self) -> int:
        """How much of delta all windows together cover."""
        return self.count + (len(self.taps) - 1) * self.dilation


def _phases(window: Window, size: tuple[int, int], axis: int) -> list[_Phase]:
    """Of the pixels that any tap reaches."""
    kernel, stride, padding, dilation = (
        setting[axis] for setting in (window.kernel, window.stride, window.padding, window.dilation)
    )
    step = stride // math.gcd(stride, dilation)  # from a tap to the next that the same pixels see
    found = []
    for first in range(min(stride, size[axis])):
        taps = [tap for tap in range(min(step, kernel)) if (first + padding - tap * dilation) % stride == 0]
        if not taps:
            continue
        seen = torch.arange(taps[0], kernel, step).flip(0)
        apart = dilation * step // stride
        start = (first + padding - taps[0] * dilation) // stride - (len(seen) - 1) * apart
        found.append(_Phase(first, -(-(size[axis] - first) // stride), seen, apart, start))
    return found


class _Conv2dTranspose:
    def __init__(
        self,
        parts: list[tuple[_Phase, _Phase, LinearMap]],
        source_shape: tuple[int, ...],
        shape: tuple[int, ...],
        stride: tuple[int, int],
    ) -> None:
        self._parts, self._source_shape, self._shape, self._stride = parts, source_shape, shape, stride

    def __call__(self, x: Tensor) -> Tensor:
        _check_delta(x, self._source_shape)
        if self._stride == (1, 1):
            ((line, column, apply),) = self._parts
            return apply(self._cut(x, line, column))
        found = x.new_zeros((len(x), *self._shape))
        for line, column, apply in self._parts:
            pixels = found[:, :, line.first :: self._stride[0], column.first :: self._stride[1]]
            pixels.copy_(apply(self._cut(x, line, column)))
        return found

    def _cut(self, x: Tensor, line: _Phase, column: _Phase) -> Tensor:
        """The part of delta that the windows cover, zeros where it is beyond."""
        height, width = self._source_shape[1:]
        sides = (
            (-column.start, column.start + column.reach - width),
            (-line.start, line.start + line.reach - height),
        )
        return F.pad(x, (*sides[0], *sides[1]))


def linear_weight_gradient(delta: Tensor, x: Tensor, *, path: Path | None = None) -> Tensor:
    """`delta.T @ x (out, in)` for `delta` (batch, out) and `x` (batch, in)."""
    _check_pair(delta, x, 2)
    if not len(x):
        return x.new_zeros((delta.shape[1], x.shape[1]))
    return prepare_linear(x.t(), path=path)(delta.t())


def conv2d_weight_gradient(delta: Tensor, x: Tensor, window: Window, *, path: Path | None = None) -> Tensor:
    """The gradient (out, in/groups, kh, kw) of a convolution's weights: over the batch and all pixels, the sum of
    `delta` (batch, out, h', w') times what each tap of the window sees of `x` (batch, in, h, w)."""
    _check_pair(delta, x, 4)
    if tuple(delta.shape[2:]) != window.output_size(*x.shape[2:]) or delta.shape[1] % window.groups:
        raise ProtocolError(f"Expected what {window} gives for {tuple(x.shape)}, got {tuple(delta.shape)}.")
    shape = (delta.shape[1], x.shape[1] // window.groups, *window.kernel)
    if not x.numel():
        return x.new_zeros(shape)
    images = F.pad(x, (window.padding[1], window.padding[1], window.padding[0], window.padding[0]))
    if _has_kernel(path, x.device):
        return _by_kernel(delta, images, window).reshape(shape)
    return _by_unfolding(delta, images, window, path).reshape(shape)


def _has_kernel(path: Path | None, device: torch.device) -> bool:
    """Whether `gradient_kernels` does it. AMX would need copies of the images, one a tap: only who asks gets that.

    On a machine with AMX neither was measured.
    """
    if path == "kernel" or path is None:
        return device.type == "cpu" and find_spec("numba") is not None
    return path in ("avx512", "vector") and cpu_features.choose(path) == path


def _by_kernel(delta: Tensor, images: Tensor, window: Window) -> Tensor:
    from bilateral.protocols.share.ring import gradient_kernels as kernels  # noqa: PLC0415 (imports numba)

    batch, channels, height, width = images.shape
    group_channels, rows = channels // window.groups, delta.shape[1] // window.groups
    geometry = kernels.Geometry(
        image_size=channels * height * width,
        group_size=group_channels * height * width,
        image_width=width,
        output_height=delta.shape[2],
        output_width=delta.shape[3],
        stride_height=window.stride[0],
        stride_width=window.stride[1],
        groups=window.groups,
        rows=rows,
    )
    offsets = flat(window.offsets(group_channels, height, width))
    out = torch.zeros((delta.shape[1], len(offsets)), dtype=torch.int64)
    source, seen, words = flat(images), flat(delta), flat(out)

    def run(begin: int, end: int) -> None:
        kernels.convolution_gradient(source, offsets, seen, geometry, batch, words, begin, end)

    lines = window.groups * -(-len(offsets) // kernels.SIDE) * kernels.SIDE
    in_parts(lines, kernels.SIDE, lines * rows * batch * delta[0, 0].numel(), run)
    return out


def _by_unfolding(delta: Tensor, images: Tensor, window: Window, path: Path | None) -> Tensor:
    """By copies of the images, one a tap, and matrix products."""
    batch, channels = images.shape[:2]
    taps, pixels = channels * math.prod(window.kernel), delta[0, 0].numel()
    at_once = max(1, UNFOLDED_WORDS // (taps * pixels))
    total = None
    for first in range(0, batch, at_once):
        part = slice(first, first + at_once)
        columns = _unfolded(images[part], window, (delta.shape[2], delta.shape[3]))
        rows = delta[part].transpose(0, 1).reshape(window.groups, -1, columns.shape[-1])
        products = [
            prepare_linear(column, path=path)(row)
            for column, row in zip(columns.reshape(window.groups, -1, columns.shape[-1]), rows, strict=True)
        ]
        product = torch.cat(products)
        total = product if total is None else total + product
    assert total is not None  # the caller has no empty batches
    return total


def _unfolded(images: Tensor, window: Window, size: tuple[int, int]) -> Tensor:
    """(channels, taps of the window, batch times pixels)."""
    batch, channels, _, _ = images.shape
    image, plane, line, column = images.stride()
    seen = images.as_strided(
        (channels, *window.kernel, batch, *size),
        (
            plane,
            line * window.dilation[0],
            column * window.dilation[1],
            image,
            line * window.stride[0],
            column * window.stride[1],
        ),
        images.storage_offset(),
    )
    return seen.reshape(channels, math.prod(window.kernel), -1)


def _check_pair(delta: Tensor, x: Tensor, dimensions: int) -> None:
    fits = delta.dim() == x.dim() == dimensions and len(delta) == len(x) and delta.device == x.device
    if not fits or delta.dtype != torch.int64 or x.dtype != torch.int64:
        raise ProtocolError(
            f"Expected two batches of int64 of {dimensions} dimensions on one device, got {delta.dtype} of shape "
            f"{tuple(delta.shape)} on {delta.device} and {x.dtype} of shape {tuple(x.shape)} on {x.device}."
        )
