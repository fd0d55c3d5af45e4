"""Products modulo 2^64 on the CPU: weights are packed once, work is split over threads, the kernels do the rest.

The number of threads is `torch.get_num_threads()`. The kernels release Python's lock, so ordinary threads do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.protocols.share.ring import fast3x3, kernels
from bilateral.protocols.share.ring.window import Window

WORK_OF_A_THREAD: Final = 1 << 20  # products; less is not worth the hand-over
NARROW_BITS: Final = 32
FAST_CHANNELS: Final = 32  # fewer, and the fast algorithm's additions outweigh the products it saves
FAST_OVERHEAD: Final = 1.4  # measured
FAST_PATIENCE: Final = 8  # samples, for small weights; for others as many as there are channels (measured)


@lru_cache(maxsize=1)
def _pool(_process_id: int) -> ThreadPoolExecutor:
    """The helping threads of this process. A forked child has none of its parent's threads and makes its own."""
    return ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="ring")


def _in_parts(total: int, unit: int, work: int, run: Callable[[int, int], None]) -> None:
    """`run(begin, end)` for parts of `range(total)`, on as many threads as `work` is worth. Parts are whole units."""
    units = -(-total // unit)
    parts = max(1, min(torch.get_num_threads(), work // WORK_OF_A_THREAD, units))
    bounds = [min(total, units * i // parts * unit) for i in range(parts + 1)]
    helpers = [_pool(os.getpid()).submit(run, bounds[i], bounds[i + 1]) for i in range(1, parts)]
    run(bounds[0], bounds[1])
    for helper in helpers:
        helper.result()


def _flat(tensor: Tensor) -> kernels.Words:
    flat: kernels.Words = tensor.contiguous().view(-1).numpy()
    return flat


def _in_tiles(rows: Tensor, height: int) -> Tensor:
    """(groups, rows, depth) -> (groups, tiles, depth, height), the last tile filled up with rows of zeros."""
    missing = -rows.shape[1] % height
    filled = F.pad(rows, (0, 0, 0, missing))
    return filled.reshape(rows.shape[0], -1, height, rows.shape[2]).transpose(2, 3)


def _whole_words(halves: Tensor) -> Tensor:
    """32-bit numbers side by side, filled up to whole words."""
    return F.pad(halves.flatten(), (0, halves.numel() % 2)).view(torch.int64)


def _pack_full(rows: Tensor) -> Tensor:
    """(groups, rows, depth) -> (groups, tiles, depth, words), see the kernel of that name."""
    groups, height, depth = rows.shape
    packed = torch.empty((groups, -(-height // kernels.FULL_TILE), depth, 2 * kernels.FULL_TILE), dtype=torch.int64)
    kernels.pack_full(_flat(rows), groups, height, depth, _flat(packed))
    return packed


def _pack_narrow(rows: Tensor) -> Tensor:
    return _in_tiles(rows, kernels.NARROW_TILE).to(torch.int32)


class KernelLinear:
    """x (batch, in) -> x @ weight.T, modulo 2^64."""

    def __init__(self, weight: Tensor) -> None:
        self._features, self._depth = weight.shape
        self._panels = _flat(_in_tiles(weight[None], kernels.FULL_PANEL))

    def __call__(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        out = torch.empty((batch, self._features), dtype=torch.int64)
        samples, flat = _flat(_pack_full(x[None])), _flat(out)

        def run(begin: int, end: int) -> None:
            kernels.multiply(self._panels, samples, self._depth, batch, self._features, flat, begin, end)

        _in_parts(self._features, kernels.FULL_PANEL, batch * self._features * self._depth, run)
        return out


class KernelConv2d:
    """x (batch, in, height, width) -> the convolution with weight, modulo 2^64.

    Each input gets the faster of two algorithms, by estimate. Weights are packed for one when it is first used, which
    takes as long as many products in the fast one: it is for maps that have been used for a while.
    """

    def __init__(self, weight: Tensor, window: Window, weight_bits: int) -> None:
        self._weight, self._window, self._bits = weight, window, weight_bits
        self._samples = 0
        self._patience = FAST_PATIENCE if _fast3x3_tiling(weight_bits).narrow else max(weight.shape[:2])

    def __call__(self, x: Tensor) -> Tensor:
        size = self._window.output_size(*x.shape[2:])
        self._samples += x.shape[0]
        is_worth_packing = self._samples > self._patience and _fits_fast3x3(self._weight, self._window)
        if is_worth_packing and _fast3x3_saves(x.shape[0], size, self._bits):
            return self._fast(x)
        return self._direct(x)

    @cached_property
    def _fast(self) -> FastConv2d:
        return FastConv2d(self._weight, self._window, self._bits)

    @cached_property
    def _direct(self) -> DirectConv2d:
        return DirectConv2d(self._weight, self._window, self._bits)


def _fits_fast3x3(weight: Tensor, window: Window) -> bool:
    """Whether the fast algorithm can do it, and has enough channels to be worth its additions."""
    plain = window.kernel == (3, 3) and window.stride == window.dilation == (1, 1) and window.groups == 1
    return plain and min(weight.shape[:2]) >= FAST_CHANNELS


def _fast3x3_tiling(weight_bits: int) -> fast3x3.Tiling:
    return fast3x3.NARROW if weight_bits + fast3x3.SPARE_BITS <= NARROW_BITS else fast3x3.FULL


def _fast3x3_saves(batch: int, size: tuple[int, int], weight_bits: int) -> bool:
    """Whether whole panels of whole blocks take less time than the outputs that are wanted."""
    panel = _fast3x3_tiling(weight_bits).panel
    num_panels = -(-batch * -(-size[0] // 3) * -(-size[1] // 3) // panel)
    return num_panels * panel * fast3x3.POINTS * FAST_OVERHEAD < batch * size[0] * size[1] * 9


class FastConv2d:
    """A 3x3 convolution of stride 1 by 36 matrix products for each block of 3x3 outputs (ring_fast3x3.py)."""

    def __init__(self, weight: Tensor, window: Window, weight_bits: int) -> None:
        self._rows, self._channels = weight.shape[:2]
        self._padding = window.padding
        self._tiling = _fast3x3_tiling(weight_bits)
        points = fast3x3.weight_points(weight)
        packed = _pack_narrow(points) if self._tiling.narrow else _pack_full(points)
        packed = packed.transpose(0, 1)  # (tiles, points, channels, ...)
        firsts = range(0, self._channels, self._tiling.chunk)
        chunks = [packed[:, :, first : first + self._tiling.chunk].flatten(1) for first in firsts]
        weights = torch.cat(chunks, dim=1)
        self._weights = _flat(_whole_words(weights) if self._tiling.narrow else weights)

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
        flat_images, flat = _flat(images), _flat(out)

        def run(begin: int, end: int) -> None:
            fast3x3.convolve(flat_images, self._weights, flat, blocks, self._tiling, begin, end)

        total = batch * down * along
        _in_parts(total, self._tiling.panel, total * fast3x3.POINTS * self._rows * channels, run)
        return out


class DirectConv2d:
    """x (batch, in, height, width) -> the convolution with weight, modulo 2^64."""

    def __init__(self, weight: Tensor, window: Window, weight_bits: int) -> None:
        self._window = window
        self._narrow = weight_bits <= NARROW_BITS
        rows = weight.reshape(window.groups, -1, weight[0].numel())
        self._weights = _flat(_whole_words(_pack_narrow(rows)) if self._narrow else _pack_full(rows))
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
        flat_images, flat = _flat(images), _flat(out)
        offsets = _flat(window.offsets(self._group_channels, height, width))

        def run(begin: int, end: int) -> None:
            kernels.convolve(flat_images, offsets, geometry, self._weights, self._narrow, flat, begin, end)

        _in_parts(pixels, kernels.NARROW_PANEL, pixels * rows * self._depth, run)
        return out
