"""Products modulo 2^64 on the CPU: weights are packed once, work is split over threads, the kernels do the rest.

The number of threads is `torch.get_num_threads()`. The kernels release Python's lock, so ordinary threads do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.protocols.share import ring_kernels as kernels
from bilateral.protocols.share.ring_window import Window

WORK_OF_A_THREAD: Final = 1 << 20  # products; less is not worth the hand-over
NARROW_BITS: Final = 32


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


def _pack_full(rows: Tensor) -> kernels.Words:
    """Each word, and after it the same word with its halves swapped."""
    words = _in_tiles(rows, kernels.FULL_TILE).contiguous()
    halves = words.view(torch.int32).reshape(*words.shape, 2)
    return _flat(torch.stack((halves, halves.flip(-1)), dim=-2).view(torch.int64))


def _pack_narrow(rows: Tensor) -> kernels.Words:
    """Halves of 32 bits, filled up to whole words."""
    halves = _in_tiles(rows, kernels.NARROW_TILE).to(torch.int32).flatten()
    return _flat(F.pad(halves, (0, halves.numel() % 2)).view(torch.int64))


class KernelLinear:
    """x (batch, in) -> x @ weight.T, modulo 2^64."""

    def __init__(self, weight: Tensor) -> None:
        self._features, self._depth = weight.shape
        self._panels = _flat(_in_tiles(weight[None], kernels.FULL_PANEL))

    def __call__(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        out = torch.empty((batch, self._features), dtype=torch.int64)
        samples, flat = _pack_full(x[None]), _flat(out)

        def run(begin: int, end: int) -> None:
            kernels.multiply(self._panels, samples, self._depth, batch, self._features, flat, begin, end)

        _in_parts(self._features, kernels.FULL_PANEL, batch * self._features * self._depth, run)
        return out


class KernelConv2d:
    """x (batch, in, height, width) -> the convolution with weight, modulo 2^64."""

    def __init__(self, weight: Tensor, window: Window, weight_bits: int) -> None:
        self._window = window
        self._narrow = weight_bits <= NARROW_BITS
        rows = weight.reshape(window.groups, -1, weight[0].numel())
        self._weights = _pack_narrow(rows) if self._narrow else _pack_full(rows)
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
