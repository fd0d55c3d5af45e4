"""3x3 convolutions of stride 1 modulo 2^64 with 4 products an output pixel and channel instead of 9.

Three neighbouring outputs of a filter with three taps, `y_i = w_0 x_i + w_1 x_(i+1) + w_2 x_(i+2)`, take six products
by Karatsuba's identity transposed (a "fast FIR"), with additions only. So it is exact in any ring, unlike Winograd's
filters, which divide by two:

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

from bilateral.protocols.share.ring.compiled import compiled
from bilateral.protocols.share.ring.kernels import FULL as FULL_KIND
from bilateral.protocols.share.ring.kernels import (
    FULL_PANEL,
    FULL_TILE,
    LONGS,
    NARROW_PANEL,
    NARROW_STEP,
    NARROW_TILE,
    WIDE_PANEL,
    WIDE_TILE,
    Words,
    address,
    aligned,
    full_tile,
    narrow_move,
    narrow_tile,
    pointer,
    wide_tile,
)
from bilateral.protocols.share.ring.kernels import NARROW as NARROW_KIND
from bilateral.protocols.share.ring.kernels import WIDE as WIDE_KIND

POINTS: Final = 36
SPARE_BITS: Final = 2  # a point of w is a sum of up to four weights


class Blocks(NamedTuple):
    """Where things lie: padded images of `image_height` x `image_width`, `down` x `along` blocks an image."""

    channels: int
    rows: int
    image_height: int
    image_width: int
    down: int
    along: int
    output_height: int
    output_width: int


class Tiling(NamedTuple):
    """What is worked on at once: `chunk` channels are added at a time, their panels fill half of an L2 cache."""

    kind: int  # of tiles
    panel: int  # blocks in a panel
    panels: int  # panels in a strip
    step_words: int  # words of a panel for each channel
    tile: int  # rows of weights in a tile
    tiles: int  # tiles whose products are kept until they are added up
    step_bytes: int  # bytes of a tile for each channel
    chunk: int


FULL: Final = Tiling(FULL_KIND, FULL_PANEL, 4, FULL_PANEL, FULL_TILE, 1, 16 * FULL_TILE, 64)
NARROW: Final = Tiling(NARROW_KIND, NARROW_PANEL, 1, NARROW_STEP, NARROW_TILE, 4, 4 * NARROW_TILE, 64)

WIDE: Final = Tiling(WIDE_KIND, WIDE_PANEL, 2, WIDE_PANEL, WIDE_TILE, 1, 8 * WIDE_TILE, 64)


def weight_points(weight: Tensor) -> Tensor:
    """(out, in, 3, 3) -> (36, out, in), modulo 2^64."""
    rows = _points_of_taps(*weight.unbind(2))  # (6, out, in, 3)
    return _points_of_taps(*rows.unbind(3)).transpose(0, 1).flatten(0, 1)


def _points_of_taps(w0: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return torch.stack((w0, w1, w2, w0 + w1, w0 + w2, w1 + w2))


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
def _locate(first: int, count: int, blocks: Blocks, starts: Words, corners: Words, sizes: Words) -> None:
    """Of `count` blocks from `first`: where inputs start, where outputs go, how many of 3x3 there are."""
    plane = blocks.output_height * blocks.output_width
    for lane in range(starts.size):
        image, place = divmod(first + min(lane, count - 1), blocks.down * blocks.along)  # past the end: the last again
        down, along = divmod(place, blocks.along)
        line = image * blocks.channels * blocks.image_height + 3 * down
        starts[lane] = line * blocks.image_width + 3 * along
        corners[lane] = image * blocks.rows * plane + 3 * down * blocks.output_width + 3 * along
        sizes[2 * lane] = min(3, blocks.output_height - 3 * down)
        sizes[2 * lane + 1] = min(3, blocks.output_width - 3 * along)


@compiled
def _pack_step(images: Words, starts: Words, shift: int, line_words: int, raw: Words, target: int, gap: int) -> None:
    """One channel of the 36 panels of some blocks, from the address `target`. Points lie `gap` bytes apart."""
    width = starts.size
    for lane in range(width):
        for i in range(5):
            start = starts[lane] + shift + i * line_words
            for j in range(5):
                raw[(5 * i + j) * width + lane] = images[start + j]
    line = 8 * width
    source, rows = address(raw, 0), address(raw, 25 * width)
    for part in range(0, line, 32):
        for i in range(5):
            _points(source + part + 5 * i * line, line, rows + part + 6 * i * line, line)
        for j in range(6):
            _points(rows + part + j * line, 6 * line, target + part + j * gap, 6 * gap)


@compiled
def _pack_strip(
    images: Words, starts: Words, first: int, steps: int, blocks: Blocks, tiling: Tiling, raw: Words, panels: Words
) -> None:
    """Channels from `first` of all panels: panels[point, panel, channel, lane]."""
    panel_words = tiling.chunk * tiling.step_words
    gap = 8 * tiling.panels * panel_words
    for lane in range(0, starts.size, tiling.panel):
        for step in range(steps):
            shift = (first + step) * blocks.image_height * blocks.image_width
            target = address(panels, lane // tiling.panel * panel_words + step * tiling.step_words)
            _pack_step(images, starts[lane : lane + tiling.panel], shift, blocks.image_width, raw, target, gap)
            if tiling.kind == NARROW_KIND:
                for point in range(POINTS):
                    narrow_move(target + point * gap, target + point * gap)


@compiled
def _multiply_strip(
    panels: Words,
    num_panels: int,
    weights: int,
    tiles: int,
    tile_bytes: int,
    steps: int,
    tiling: Tiling,
    products: Words,
) -> None:
    """products[point, panel, tile, row, lane] for some tiles, whose weights lie from the address `weights`."""
    tile_words, panel_words = tiling.tile * tiling.panel, tiling.chunk * tiling.step_words
    for point in range(POINTS):
        for panel in range(num_panels):
            source = address(panels, (point * tiling.panels + panel) * panel_words)
            for tile in range(tiles):
                place = (point * tiling.panels + panel) * tiling.tiles + tile
                target, row_bytes = address(products, place * tile_words), 8 * tiling.panel
                w = weights + tile * tile_bytes + point * steps * tiling.step_bytes
                if tiling.kind == NARROW_KIND:
                    narrow_tile(source, w, target, row_bytes, steps, 0)
                elif tiling.kind == WIDE_KIND:
                    wide_tile(source, w, target, row_bytes, steps, 0)
                else:
                    full_tile(source, w, target, row_bytes, steps, 0)


@compiled
def _add_up(products: int, gap: int, scratch: int, line: int) -> None:
    """The 3x3 outputs of some blocks, to `scratch`, from their 36 products, which lie `gap` bytes apart."""
    half = scratch + 9 * line
    for part in range(0, line, 32):
        for i in range(6):
            _sums(products + part + 6 * i * gap, gap, half + part + 3 * i * line, line)
        for j in range(3):
            _sums(half + part + j * line, 3 * line, scratch + part + j * line, 3 * line)


@compiled
def _write_rows(
    products: Words,
    first: int,
    rows: int,
    corners: Words,
    sizes: Words,
    blocks: Blocks,
    tiling: Tiling,
    sums: Words,
    out: Words,
    add: bool,
) -> None:
    """Adds up the products of `rows` rows from `first`, and writes what of each block lies within the output."""
    width, tile_words = tiling.panel, tiling.tile * tiling.panel
    gap = 8 * tiling.panels * tiling.tiles * tile_words
    for begin in range(0, corners.size, width):
        for row in range(rows):
            place = begin // width * tiling.tiles * tile_words + row * width
            _add_up(address(products, place), gap, address(sums, 0), 8 * width)
            shift = (first + row) * blocks.output_height * blocks.output_width
            for lane in range(begin, min(begin + width, corners.size)):
                for i in range(sizes[2 * lane]):
                    start = corners[lane] + shift + i * blocks.output_width
                    for j in range(sizes[2 * lane + 1]):
                        total = sums[(3 * i + j) * width + lane - begin]
                        out[start + j] = total + out[start + j] if add else total


@compiled
def convolve(images: Words, weights: Words, out: Words, blocks: Blocks, tiling: Tiling, begin: int, end: int) -> None:
    """Blocks `begin` to `end`, counted over the batch, of all channels. Weights: [tile][chunk][point][channel][row]."""
    strip, tile_words = tiling.panels * tiling.panel, tiling.tile * tiling.panel
    panels = aligned(POINTS * tiling.panels * tiling.chunk * tiling.step_words)
    products = aligned(POINTS * tiling.panels * tiling.tiles * tile_words)
    raw, sums = aligned(55 * tiling.panel), aligned(27 * tiling.panel)
    starts, corners, sizes = np.empty(strip, np.int64), np.empty(strip, np.int64), np.empty(2 * strip, np.int64)
    tile_bytes = POINTS * blocks.channels * tiling.step_bytes
    rows_at_once = tiling.tiles * tiling.tile
    for first in range(begin, end, strip):
        count = min(strip, end - first)
        num_panels = (count + tiling.panel - 1) // tiling.panel
        _locate(first, count, blocks, starts, corners, sizes)
        for chunk in range(0, blocks.channels, tiling.chunk):
            steps = min(tiling.chunk, blocks.channels - chunk)
            _pack_strip(images, starts[: num_panels * tiling.panel], chunk, steps, blocks, tiling, raw, panels)
            for row in range(0, blocks.rows, rows_at_once):
                rows = min(rows_at_once, blocks.rows - row)
                tiles = (rows + tiling.tile - 1) // tiling.tile
                w = address(weights, 0) + row // tiling.tile * tile_bytes + chunk * POINTS * tiling.step_bytes
                _multiply_strip(panels, num_panels, w, tiles, tile_bytes, steps, tiling, products)
                _write_rows(products, row, rows, corners[:count], sizes, blocks, tiling, sums, out, chunk > 0)
