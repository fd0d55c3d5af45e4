"""Products modulo 2^64 on the CPU: weights are packed once, work is split over threads, the kernels do the rest.

    kernel    needs                   how
    amx       AMX (Linux)             8-bit digits in tiles (amx.py, amx_kernels.py)
    avx512    AVX-512 with vpmullq    vectors of eight words (kernels.py, fast3x3.py)
    vector    nothing                 vectors of halves of words, as AVX2 has them (the same)

What AMX does not fit, the best of the others does.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.protocols.share.ring import amx, cpu_features, fast3x3, kernels
from bilateral.protocols.share.ring.cpu_features import Kernel
from bilateral.protocols.share.ring.threads import flat, in_parts
from bilateral.protocols.share.ring.window import Window

WORD_BITS: Final = 64
NARROW_BITS: Final = 32
FAST_CHANNELS: Final = 32  # fewer, and the fast algorithm's additions outweigh the products it saves
FAST_OVERHEAD: Final = 1.4  # measured
FAST_PATIENCE: Final = 8  # samples, for small weights; for others as many as there are channels (measured)


def _in_tiles(rows: Tensor, height: int) -> Tensor:
    """(groups, rows, depth) -> (groups, tiles, depth, height), the last tile filled up with rows of zeros."""
    missing = -rows.shape[1] % height
    filled = F.pad(rows, (0, 0, 0, missing)) if missing else rows
    tiles = filled.reshape(rows.shape[0], -1, height, rows.shape[2]).transpose(2, 3)
    return tiles.clone(memory_format=torch.contiguous_format)  # kernels count on where torch begins a tensor


def _whole_words(halves: Tensor) -> Tensor:
    """32-bit numbers side by side, filled up to whole words."""
    flat_halves = halves.flatten()
    return (F.pad(flat_halves, (0, 1)) if halves.numel() % 2 else flat_halves).view(torch.int64)


def _pack_full(rows: Tensor) -> Tensor:
    """(groups, rows, depth) -> (groups, tiles, depth, words), see the kernel of that name."""
    groups, height, depth = rows.shape
    packed = torch.empty((groups, -(-height // kernels.FULL_TILE), depth, 2 * kernels.FULL_TILE), dtype=torch.int64)
    kernels.pack_full(flat(rows), groups, height, depth, flat(packed))
    return packed


def _pack(rows: Tensor, kind: int) -> Tensor:
    """(groups, rows, depth) -> (groups, tiles, depth, numbers of a step)."""
    if kind == kernels.NARROW:
        return _in_tiles(rows, kernels.NARROW_TILE).to(torch.int32)
    if kind == kernels.WIDE:
        return _in_tiles(rows, kernels.WIDE_TILE)
    return _pack_full(rows)


def _flat_words(packed: Tensor) -> kernels.Words:
    return flat(_whole_words(packed) if packed.dtype == torch.int32 else packed)


def _kind(kernel: Kernel, bits: int) -> int:
    """Of tiles, for weights of so many bits."""
    if bits <= NARROW_BITS and not (kernel == "avx512" and cpu_features.multiplies_words_at_once()):
        return kernels.NARROW  # with Intel's AVX-512 too: wide tiles are no faster there (measured)
    return kernels.FULL if kernel == "vector" else kernels.WIDE


def linear(weight: Tensor, weight_bits: int, kernel: Kernel) -> KernelLinear | amx.AmxLinear:
    """x (batch, in) -> x @ weight.T, by this kernel or the best that fits."""
    if kernel == "amx" and amx.fits(weight):
        return amx.AmxLinear(weight, weight_bits)
    return KernelLinear(weight, _without_amx(kernel))


def conv2d(weight: Tensor, window: Window, weight_bits: int, kernel: Kernel) -> KernelConv2d | amx.AmxConv2d:
    """x (batch, in, height, width) -> the convolution with weight, by this kernel or the best that fits."""
    if kernel == "amx" and amx.fits(weight, window.groups):
        return amx.AmxConv2d(weight, window, weight_bits)
    return KernelConv2d(weight, window, weight_bits, _without_amx(kernel))


def _without_amx(kernel: Kernel) -> Kernel:
    if kernel != "amx":
        return kernel
    return "avx512" if cpu_features.supports("avx512") else "vector"


class KernelLinear:
    """x (batch, in) -> x @ weight.T, modulo 2^64."""

    def __init__(self, weight: Tensor, kernel: Kernel = "vector") -> None:
        self._features, self._depth = weight.shape
        self._kind = _kind(kernel, WORD_BITS)
        self._panel = kernels.WIDE_PANEL if self._kind == kernels.WIDE else kernels.FULL_PANEL
        self._panels = flat(_in_tiles(weight[None], self._panel))

    def __call__(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        out = torch.empty((batch, self._features), dtype=torch.int64)
        samples, words = flat(_pack(x[None], self._kind)), flat(out)

        def run(begin: int, end: int) -> None:
            kernels.multiply(self._panels, samples, self._depth, batch, self._features, words, self._kind, begin, end)

        in_parts(self._features, self._panel, batch * self._features * self._depth, run)
        return out


class KernelConv2d:
    """x (batch, in, height, width) -> the convolution with weight, modulo 2^64.

    Each input gets the faster of two algorithms, by estimate. Weights are packed for one when it is first used, which
    takes as long as many products in the fast one: it is for maps that have been used for a while.
    """

    def __init__(self, weight: Tensor, window: Window, weight_bits: int, kernel: Kernel = "vector") -> None:
        self._weight, self._window, self._bits, self._kernel = weight, window, weight_bits, kernel
        self._samples = 0
        self._tiling = _fast3x3_tiling(weight_bits, kernel)
        self._patience = FAST_PATIENCE if self._tiling == fast3x3.NARROW else max(weight.shape[:2])

    def __call__(self, x: Tensor) -> Tensor:
        size = self._window.output_size(*x.shape[2:])
        self._samples += x.shape[0]
        is_worth_packing = self._samples > self._patience and _fits_fast3x3(self._weight, self._window)
        if is_worth_packing and _fast3x3_saves(x.shape[0], size, self._tiling):
            return self._fast(x)
        return self._direct(x)

    @cached_property
    def _fast(self) -> FastConv2d:
        return FastConv2d(self._weight, self._window, self._bits, self._kernel)

    @cached_property
    def _direct(self) -> DirectConv2d:
        return DirectConv2d(self._weight, self._window, self._bits, self._kernel)


def _fits_fast3x3(weight: Tensor, window: Window) -> bool:
    """Whether the fast algorithm can do it, and has enough channels to be worth its additions."""
    plain = window.kernel == (3, 3) and window.stride == window.dilation == (1, 1) and window.groups == 1
    return plain and min(weight.shape[:2]) >= FAST_CHANNELS


def _fast3x3_tiling(weight_bits: int, kernel: Kernel) -> fast3x3.Tiling:
    tilings = {tiling.kind: tiling for tiling in (fast3x3.FULL, fast3x3.NARROW, fast3x3.WIDE)}
    return tilings[_kind(kernel, weight_bits + fast3x3.SPARE_BITS)]


def _fast3x3_saves(batch: int, size: tuple[int, int], tiling: fast3x3.Tiling) -> bool:
    """Whether whole panels of whole blocks take less time than the outputs that are wanted."""
    num_panels = -(-batch * -(-size[0] // 3) * -(-size[1] // 3) // tiling.panel)
    return num_panels * tiling.panel * fast3x3.POINTS * FAST_OVERHEAD < batch * size[0] * size[1] * 9


class FastConv2d:
    """A 3x3 convolution of stride 1 by 36 matrix products for each block of 3x3 outputs (ring_fast3x3.py)."""

    def __init__(self, weight: Tensor, window: Window, weight_bits: int, kernel: Kernel = "vector") -> None:
        self._rows, self._channels = weight.shape[:2]
        self._padding = window.padding
        self._tiling = _fast3x3_tiling(weight_bits, kernel)
        packed = _pack(fast3x3.weight_points(weight), self._tiling.kind).transpose(
            0, 1
        )  # (tiles, points, channels, ...)
        firsts = range(0, self._channels, self._tiling.chunk)
        chunks = [packed[:, :, first : first + self._tiling.chunk].flatten(1) for first in firsts]
        self._weights = _flat_words(torch.cat(chunks, dim=1))

    def __call__(self, x: Tensor) -> Tensor:
        (batch, channels, height, width), (top, left) = x.shape, self._padding
        out_height, out_width = height + 2 * top - 2, width + 2 * left - 2
        down, along = -(-out_height // 3), -(-out_width // 3)
        images = F.pad(x, (left, 3 * along + 2 - width - left, top, 3 * down + 2 - height - top))
        blocks = fast3x3.Blocks(
            channels=channels,
            rows=self._rows,
            image_height=images.shape[2],
            image_width=images.shape[3],
            down=down,
            along=along,
            output_height=out_height,
            output_width=out_width,
        )
        out = torch.empty((batch, self._rows, out_height, out_width), dtype=torch.int64)
        flat_images, words = flat(images), flat(out)

        def run(begin: int, end: int) -> None:
            fast3x3.convolve(flat_images, self._weights, words, blocks, self._tiling, begin, end)

        total = batch * down * along
        in_parts(total, self._tiling.panel, total * fast3x3.POINTS * self._rows * channels, run)
        return out


class DirectConv2d:
    """x (batch, in, height, width) -> the convolution with weight, modulo 2^64."""

    def __init__(self, weight: Tensor, window: Window, weight_bits: int, kernel: Kernel = "vector") -> None:
        self._window = window
        self._kind = _kind(kernel, weight_bits)
        rows = weight.reshape(window.groups, -1, weight[0].numel())
        self._weights = _flat_words(_pack(rows, self._kind))
        self._group_rows, self._depth = rows.shape[1:]
        self._group_channels = weight.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        window, (batch, channels, height, width) = self._window, x.shape
        out_height, out_width = window.output_size(height, width)
        images = F.pad(x, (window.padding[1], window.padding[1], window.padding[0], window.padding[0]))
        height, width = images.shape[2:]
        geometry = kernels.Geometry(
            image_size=channels * height * width,
            channel_size=height * width,
            image_width=width,
            output_height=out_height,
            output_width=out_width,
            stride_height=window.stride[0],
            stride_width=window.stride[1],
            groups=window.groups,
            group_channels=self._group_channels,
            group_rows=self._group_rows,
        )
        rows, pixels = window.groups * self._group_rows, batch * out_height * out_width
        out = torch.empty((batch, rows, out_height, out_width), dtype=torch.int64)
        flat_images, words = flat(images), flat(out)
        offsets = flat(window.offsets(self._group_channels, height, width))

        def run(begin: int, end: int) -> None:
            kernels.convolve(flat_images, offsets, geometry, self._weights, self._kind, words, begin, end)

        in_parts(pixels, kernels.NARROW_PANEL, pixels * rows * self._depth, run)
        return out
