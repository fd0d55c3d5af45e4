"""3x3 convolutions of stride 1 modulo 2^64 with 4 products an output pixel and channel instead of 9.

Three neighbouring outputs of a filter with three taps, `y_i = w_0 x_i + w_1 x_(i+1) + w_2 x_(i+2)`, take six products, by
Karatsuba's identity transposed (a "fast FIR"), with additions only. So it is exact in any ring, unlike Winograd's filters,
which divide by two:

    points of w    w_0               w_1                w_2                w_0+w_1   w_0+w_2   w_1+w_2
    points of x    x_0 - x_1 - x_2   x_2 - x_1 - x_3    x_4 - x_2 - x_3    x_1       x_2       x_3
    y_i            the sum of the three products whose point of w has w_i

Applied to rows and columns: blocks of 3x3 outputs, 36 points, one matrix product over the channels for each point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from bilateral.protocols.share.ring_kernels import (
    FULL_PANEL,
    FULL_TILE,
    LONGS,
    NARROW_PANEL,
    NARROW_STEP,
    NARROW_TILE,
    Words,
    aligned,
    compiled,
    full_tile,
    narrow_move,
    narrow_tile,
    pointer,
)

POINTS: Final = 36
CHANNEL_CHUNK: Final = 64  # channels between two writes
FULL_PANELS: Final = 4  # panels that are packed at once: with their 36 points they fill half of the L2 cache
NARROW_PANELS: Final = 1
FULL_TILES: Final = 1  # tiles of rows whose products are kept before they are added up
NARROW_TILES: Final = 4
SPARE_BITS: Final = 2  # a point of w is a sum of up to four weights
_POINTS_OF_WEIGHT: Final = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1))


class Blocks(NamedTuple):
    """Where things lie: padded images of `image_height` x `image_width`, `down` x `along` blocks an image."""

    batch: int
    channels: int
    rows: int
    image_height: int
    image_width: int
    down: int
    along: int
    output_height: int
    output_width: int


def weight_points(weight: Tensor) -> Tensor:
    """(out, in, 3, 3) -> (36, out, in), modulo 2^64."""
    points = torch.tensor(_POINTS_OF_WEIGHT, device=weight.device)
    rows = (points[:, None, None, :, None] * weight[None]).sum(3)  # (6, out, in, 3)
    both = (points[:, None, None, None, :] * rows[None]).sum(4)  # (6, 6, out, in): columns, then rows
    return both.transpose(0, 1).flatten(0, 1)


def _emit_points(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """The six points of five elements, for four lanes."""
    source, source_step, target, target_step = arguments
    x = []
    for _ in range(5):
        x.append(builder.load(pointer(builder, source, 0, LONGS), align=32))
        source = builder.add(source, source_step)
    ends = (builder.sub(x[i], x[j]) for i, j in ((0, 1), (2, 1), (4, 2)))
    points = [builder.sub(end, x[j]) for end, j in zip(ends, (2, 3, 3), strict=True)]
    for point in (*points, x[1], x[2], x[3]):
        builder.store(point, pointer(builder, target, 0, LONGS), align=32)
        target = builder.add(target, target_step)
    return context.get_dummy_value()


def _emit_sums(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """Three outputs from six products, for four lanes."""
    source, source_step, target, target_step = arguments
    p = []
    for _ in range(6):
        p.append(builder.load(pointer(builder, source, 0, LONGS), align=32))
        source = builder.add(source, source_step)
    for i, j, k in ((0, 3, 4), (1, 3, 5), (2, 4, 5)):
        total = builder.add(builder.add(p[i], p[j]), p[k])
        builder.store(total, pointer(builder, target, 0, LONGS), align=32)
        target = builder.add(target, target_step)
    return context.get_dummy_value()


def _lines(emit: Callable[..., Any]) -> Any:
    """A function of four integers: the address and step of the source, and of the target."""
    signature = types.none(*[types.int64] * 4)
    return intrinsic(lambda _typing, _source, _source_step, _target, _target_step: (signature, emit))


_points, _sums = _lines(_emit_points), _lines(_emit_sums)


@compiled
def _pack_points(
    images: Words, starts: Words, shift: int, line_words: int, raw: Words, target: int, point_words: int
) -> None:
    """One step (channel) of the 36 panels of some blocks, from the address `target`; panels lie `point_words` apart."""
    width = starts.size
    for lane in range(width):
        for i in range(5):
            start = starts[lane] + shift + i * line_words
            for j in range(5):
                raw[(5 * i + j) * width + lane] = images[start + j]
    line_bytes = 8 * width
    source = np.int64(raw.ctypes.data)
    lines = source + 25 * line_bytes
    for part in range(0, line_bytes, 32):
        for i in range(5):
            _points(source + part + 5 * i * line_bytes, line_bytes, lines + part + 6 * i * line_bytes, line_bytes)
        for j in range(6):
            _points(
                lines + part + j * line_bytes, 6 * line_bytes, target + part + 8 * j * point_words, 48 * point_words
            )


@compiled
def _add_up(products: int, point_bytes: int, scratch: int, line_bytes: int) -> None:
    """The 3x3 outputs of some blocks from their 36 products, which lie `point_bytes` apart."""
    half = scratch + 9 * line_bytes
    for part in range(0, line_bytes, 32):
        for i in range(6):
            _sums(products + part + 6 * i * point_bytes, point_bytes, half + part + 3 * i * line_bytes, line_bytes)
        for j in range(3):
            _sums(half + part + j * line_bytes, 3 * line_bytes, scratch + part + j * line_bytes, 3 * line_bytes)


@compiled
def _write_block(sums: Words, step: int, block: int, row: int, blocks: Blocks, out: Words, add: bool) -> None:
    """What of a block of 3x3 outputs lies within the output."""
    image, place = divmod(block, blocks.down * blocks.along)
    down, along = divmod(place, blocks.along)
    plane = (image * blocks.rows + row) * blocks.output_height * blocks.output_width
    for i in range(min(3, blocks.output_height - 3 * down)):
        start = plane + (3 * down + i) * blocks.output_width + 3 * along
        for j in range(min(3, blocks.output_width - 3 * along)):
            out[start + j] = sums[(3 * i + j) * step] + (out[start + j] if add else 0)


@compiled
def convolve(images: Words, blocks: Blocks, weights: Words, narrow: bool, out: Words, begin: int, end: int) -> None:
    """Blocks `begin` to `end`, counted over the batch, of all channels."""
    width, step_words = (NARROW_PANEL, NARROW_STEP) if narrow else (FULL_PANEL, FULL_PANEL)
    tile_rows, step_bytes = (NARROW_TILE, 4 * NARROW_TILE) if narrow else (FULL_TILE, 16 * FULL_TILE)
    num_panels, num_tiles = (NARROW_PANELS, NARROW_TILES) if narrow else (FULL_PANELS, FULL_TILES)
    panel_words = CHANNEL_CHUNK * step_words
    point_words = num_panels * panel_words
    panels = aligned(POINTS * point_words)
    tile_words = tile_rows * width
    product_words = num_panels * num_tiles * tile_words
    products, sums, starts = aligned(POINTS * product_words), aligned(27 * width), np.empty(width, np.int64)
    raw = aligned(55 * width)
    tile_bytes = blocks.channels * step_bytes
    tiles = (blocks.rows + tile_rows - 1) // tile_rows
    image_blocks = blocks.down * blocks.along
    image_size = blocks.channels * blocks.image_height * blocks.image_width
    for first in range(begin, end, num_panels * width):
        count = min(num_panels * width, end - first)
        for chunk in range(0, blocks.channels, CHANNEL_CHUNK):
            steps = min(CHANNEL_CHUNK, blocks.channels - chunk)
            for lane in range(0, count, width):
                for i in range(width):
                    image, place = divmod(first + min(lane + i, count - 1), image_blocks)
                    down, along = divmod(place, blocks.along)
                    starts[i] = image * image_size + 3 * down * blocks.image_width + 3 * along
                panel_at = lane // width * panel_words
                for step in range(steps):
                    at = panel_at + step * step_words
                    shift = (chunk + step) * blocks.image_height * blocks.image_width
                    _pack_points(
                        images,
                        starts,
                        shift,
                        blocks.image_width,
                        raw,
                        np.int64(panels.ctypes.data) + 8 * at,
                        point_words,
                    )
                    if narrow:
                        address = np.int64(panels.ctypes.data) + 8 * at
                        for point in range(POINTS):
                            narrow_move(address + 8 * point * point_words, address + 8 * point * point_words)
            for tile in range(0, tiles, num_tiles):
                some = min(num_tiles, tiles - tile)
                for point in range(POINTS):
                    point_weights = (
                        np.int64(weights.ctypes.data) + (point * tiles + tile) * tile_bytes + chunk * step_bytes
                    )
                    for lane in range(0, count, width):
                        panel = np.int64(panels.ctypes.data) + 8 * (point * point_words + lane // width * panel_words)
                        for t in range(some):
                            place = point * product_words + (lane // width * num_tiles + t) * tile_words
                            target = np.int64(products.ctypes.data) + 8 * place
                            if narrow:
                                narrow_tile(panel, point_weights + t * tile_bytes, target, 8 * width, steps, 0)
                            else:
                                full_tile(panel, point_weights + t * tile_bytes, target, 8 * width, steps, 0)
                for t in range(some):
                    for r in range(min(tile_rows, blocks.rows - (tile + t) * tile_rows)):
                        for lane in range(0, count, width):
                            place = (lane // width * num_tiles + t) * tile_words + r * width
                            source = np.int64(products.ctypes.data) + 8 * place
                            _add_up(source, 8 * product_words, np.int64(sums.ctypes.data), 8 * width)
                            row = (tile + t) * tile_rows + r
                            for i in range(min(width, count - lane)):
                                _write_block(sums[i:], width, first + lane + i, row, blocks, out, chunk > 0)
