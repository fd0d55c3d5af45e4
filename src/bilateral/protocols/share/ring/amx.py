"""Products modulo 2^64 by AMX: what is prepared for the kernels, and when they are worth it."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.protocols.share.ring import amx_kernels
from bilateral.protocols.share.ring.kernels import LINE, Words
from bilateral.protocols.share.ring.threads import flat, in_parts
from bilateral.protocols.share.ring.window import Window

CHANNELS: Final = 8  # channels are filled up to a multiple of it
DIGIT_WORDS: Final = 1 << 18
"""Words of x that are split into digits at once: they stay in the caches."""
_BEYOND: Final = 1 << 40  # no image is so high


def fits(weight: Tensor, groups: int = 1) -> bool:
    """Whether AMX can do it, and enough of its tiles is used that it is faster (weights: out, in, and a window's)."""
    rows, channels, taps = weight.shape[0], weight.shape[1], weight[0, 0].numel()
    room = _rounded(taps * _rounded(channels, CHANNELS), amx_kernels.DEPTH)
    used = 4 * taps * channels >= room and 2 * rows >= amx_kernels.SIDE
    return used and groups == 1 and room <= amx_kernels.MAX_DEPTH


def num_digits(weight_bits: int) -> int:
    """Digits that hold every weight below 2^(weight_bits - 1) in size; the top one is signed, so a bit is to spare."""
    return next((count for count in amx_kernels.DIGIT_COUNTS if weight_bits < 8 * count), amx_kernels.DIGITS)


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def split_rows(rows: Tensor, depth: int) -> Words:
    """(rows, channels) as panels of digits, `depth` tiles deep."""
    count, channels = rows.shape
    panels = _aligned(_rounded(count, amx_kernels.SIDE) * depth * amx_kernels.DEPTH)
    source = flat(rows)

    def split(begin: int, end: int) -> None:
        amx_kernels.split_rows(source, channels, depth, panels, begin, end)

    in_parts(count, amx_kernels.SIDE, rows.numel(), split)
    return panels


class _Weights:
    """Weights (rows, taps, channels) as tiles, and how tiles are made of the digits of x."""

    def __init__(self, weight: Tensor, weight_bits: int) -> None:
        self.rows, taps, channels = weight.shape
        self.channels = _rounded(channels, CHANNELS)
        self.granule = next(size for size in (64, 32, 16, 8) if self.channels % size == 0)
        self.depth = -(-taps * self.channels // amx_kernels.DEPTH)
        self.digits = num_digits(weight_bits)
        filled = F.pad(weight, (0, self.channels - channels)).reshape(self.rows, -1)
        panels = split_rows(filled, self.depth)
        size = len(panels) // amx_kernels.DIGITS * self.digits
        self.packed = _aligned(size)
        amx_kernels.arrange_weights(panels.view("int32"), self.rows, self.depth, self.digits, self.packed.view("int32"))

    def taps(self, places: Tensor) -> Words:
        """For each granule of depth: how far down and along its tap (`places`) lies, and its first channel."""
        first = torch.arange(0, self.channels, self.granule)
        granules = torch.cat([places.repeat_interleave(len(first), 0), first.repeat(len(places))[:, None]], dim=1)
        missing = self.depth * amx_kernels.DEPTH // self.granule - len(granules)
        return flat(torch.cat([granules, torch.tensor([[_BEYOND, 0, 0]]).expand(missing, 3)]))


def _aligned(words: int) -> Words:
    """Memory that starts a cache line."""
    found = torch.empty(words + LINE, dtype=torch.int64)
    start = -(found.data_ptr() // 8) % LINE
    return flat(found[start : start + words])


def _multiply(
    digits: Words, taps: Words, geometry: amx_kernels.Geometry, weights: Words, out: Words, batch: int
) -> None:
    def run(begin: int, end: int) -> None:
        scratch = _aligned(amx_kernels.SCRATCH_WORDS)
        amx_kernels.multiply(digits, taps, geometry, weights, scratch, out, begin, end)

    pixels = batch * geometry.output_height * geometry.output_width
    work = pixels * geometry.rows * geometry.depth * amx_kernels.DEPTH // 8  # it takes an eighth of the time or less
    in_parts(pixels, amx_kernels.SIDE, work, run)


class AmxLinear:
    """x (batch, in) -> x @ weight.T, modulo 2^64."""

    def __init__(self, weight: Tensor, weight_bits: int) -> None:
        self._channels = weight.shape[1]
        self._weights = _Weights(weight[:, None], weight_bits)
        self._taps = self._weights.taps(torch.zeros((1, 2), dtype=torch.int64))

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((x.shape[0], self._weights.rows), dtype=torch.int64)
        strip = amx_kernels.SIDE * amx_kernels.STRIP
        at_once = _rounded(max(1, DIGIT_WORDS // self._channels), strip)
        for first in range(0, x.shape[0], at_once):
            self._multiply(x[first : first + at_once], out[first : first + at_once])
        return out

    def _multiply(self, x: Tensor, out: Tensor) -> None:
        batch, weights = x.shape[0], self._weights
        panels = split_rows(x, weights.depth)
        geometry = amx_kernels.Geometry(
            height=batch,
            width=1,
            image_bytes=0,
            line_bytes=0,
            pixel_bytes=0,
            digit_bytes=0,
            block_bytes=0,
            granule=weights.granule,
            output_height=batch,
            output_width=1,
            stride_height=1,
            stride_width=1,
            pad_height=0,
            pad_width=0,
            rows=weights.rows,
            depth=weights.depth,
            digits=weights.digits,
            samples_first=True,
            in_place=False,
        )
        _multiply(panels, self._taps, geometry, weights.packed, flat(out), 1)


class AmxConv2d:
    """x (batch, in, height, width) -> the convolution with weight, modulo 2^64. One group."""

    def __init__(self, weight: Tensor, window: Window, weight_bits: int) -> None:
        self._window = window
        self._weights = _Weights(weight.permute(0, 2, 3, 1).flatten(1, 2), weight_bits)
        lines = torch.arange(window.kernel[0]) * window.dilation[0]
        columns = torch.arange(window.kernel[1]) * window.dilation[1]
        self._taps = self._weights.taps(torch.cartesian_prod(lines, columns))

    def __call__(self, x: Tensor) -> Tensor:
        size = self._window.output_size(*x.shape[2:])
        out = torch.empty((x.shape[0], self._weights.rows, *size), dtype=torch.int64)
        at_once = max(1, DIGIT_WORDS // x[0].numel())
        for first in range(0, x.shape[0], at_once):
            self._convolve(x[first : first + at_once], out[first : first + at_once])
        return out

    def _convolve(self, images: Tensor, out: Tensor) -> None:
        batch, channels = images.shape[:2]
        geometry = self._geometry(images.shape, out.shape)
        source, digits = flat(images), _aligned(batch * geometry.image_bytes // 8)
        if geometry.in_place and max(self._window.padding):
            digits.fill(0)

        def split(begin: int, end: int) -> None:
            groups = self._weights.channels // CHANNELS
            amx_kernels.split_planes(source, channels, groups, geometry, digits, begin, end)

        in_parts(batch * geometry.height * geometry.width, 8, images.numel(), split)
        _multiply(digits, self._taps, geometry, self._weights.packed, flat(out), batch)

    def _geometry(self, images: torch.Size, out: torch.Size) -> amx_kernels.Geometry:
        (height, width), window, weights = images[2:], self._window, self._weights
        in_place = weights.granule == amx_kernels.DEPTH and out[3] % amx_kernels.SIDE == 0
        if in_place:  # digits[image, digit, block, line, pixel, channel of the block]
            lines, pixels = height + 2 * window.padding[0], width + 2 * window.padding[1]
            pixel_bytes = amx_kernels.DEPTH
            block_bytes = lines * pixels * pixel_bytes
            digit_bytes = weights.channels // amx_kernels.DEPTH * block_bytes
        else:  # digits[image, line, pixel, digit, channel]
            lines, pixels = height, width
            pixel_bytes = amx_kernels.DIGITS * weights.channels
            block_bytes, digit_bytes = amx_kernels.DEPTH, weights.channels
        return amx_kernels.Geometry(
            height=height,
            width=width,
            image_bytes=lines * pixels * amx_kernels.DIGITS * weights.channels,
            line_bytes=pixels * pixel_bytes,
            pixel_bytes=pixel_bytes,
            digit_bytes=digit_bytes,
            block_bytes=block_bytes,
            granule=weights.granule,
            output_height=out[2],
            output_width=out[3],
            stride_height=window.stride[0],
            stride_width=window.stride[1],
            pad_height=window.padding[0],
            pad_width=window.padding[1],
            rows=weights.rows,
            depth=weights.depth,
            digits=weights.digits,
            samples_first=False,
            in_place=in_place,
        )
