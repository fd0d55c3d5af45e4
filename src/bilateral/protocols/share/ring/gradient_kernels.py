"""The gradient of a convolution's weights modulo 2^64 on a CPU: inner products over all pixels of a batch.

    gradient[row, k] = sum over pixels of delta[row, pixel] * x[where tap k of the pixel's window lies]

Lanes of a vector are pixels, so that neither side has to be transposed: `SIDE` rows of delta times `SIDE` lines of x,
one line a tap of the window, are `SIDE * SIDE` sums in registers, and their lanes are added up at the end. A line is
copied from the image just before it is used (`_pack_line`), and used for all rows of a block.

Importing this module imports numba. Nothing is compiled before the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic

from bilateral.protocols.share.ring.compiled import compiled
from bilateral.protocols.share.ring.kernels import Words, address, aligned, pointer, wide_move

cgutils: Any = numba_cgutils  # without types

SIDE: Final = 4  # rows, and lines, of a tile
LANES: Final = 8
TILE: Final = SIDE * SIDE
PIXELS: Final = 768  # at once: a tile's lines stay in the L1 cache
ROWS: Final = 48  # of delta at once: they stay in the L2 cache


class Geometry(NamedTuple):
    """Where things lie, in words: padded images, and delta[image, row, pixel]; rows and channels are those of a
    group."""

    image_size: int
    group_size: int  # words of a group's channels
    image_width: int
    output_height: int
    output_width: int
    stride_height: int
    stride_width: int
    groups: int
    rows: int


_I64 = ir.IntType(64)
_OCTET: Final = ir.VectorType(_I64, LANES)
_INDICES: Final = ir.VectorType(ir.IntType(32), LANES)
_PAIRS: Final = (
    ((0, 8, 2, 10, 4, 12, 6, 14), (1, 9, 3, 11, 5, 13, 7, 15)),
    ((0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
    ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
)
"""Level by level, which lanes of two vectors are added: after three, a vector has the sums of eight."""


def _sums_of_lanes(builder: Any, vectors: Sequence[Any]) -> Any:
    """Of eight vectors, the sum of each, side by side."""
    for first, second in _PAIRS:
        vectors = [
            builder.add(
                builder.shuffle_vector(a, b, ir.Constant(_INDICES, first)),
                builder.shuffle_vector(a, b, ir.Constant(_INDICES, second)),
            )
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _emit_inner_tile(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """target[row, line] = sum of rows[row, i] * lines[line, i] over whole vectors. All arguments but `steps` are
    addresses, or bytes from a row or line to the next."""
    rows, row_bytes, lines, line_bytes, steps, target = arguments
    with builder.goto_entry_block():
        slots = [builder.alloca(_OCTET) for _ in range(TILE)]
    for slot in slots:
        builder.store(ir.Constant(_OCTET, [0] * LANES), slot)
    row_starts, line_starts = [rows], [lines]
    for _ in range(SIDE - 1):
        row_starts.append(builder.add(row_starts[-1], row_bytes))
        line_starts.append(builder.add(line_starts[-1], line_bytes))
    with cgutils.for_range(builder, steps) as loop:
        shift = builder.mul(loop.index, ir.Constant(_I64, 8 * LANES))

        def load(start: Any) -> Any:
            return builder.load(pointer(builder, builder.add(start, shift), 0, _OCTET), align=64)

        deltas = [load(start) for start in row_starts]
        for line, start in enumerate(line_starts):
            x = load(start)
            for row, delta in enumerate(deltas):
                slot = slots[row * SIDE + line]
                builder.store(builder.add(builder.load(slot), builder.mul(x, delta)), slot)
    for part in range(0, TILE, LANES):
        total = _sums_of_lanes(builder, [builder.load(slot) for slot in slots[part : part + LANES]])
        builder.store(total, pointer(builder, target, 8 * part, _OCTET), align=64)
    return context.get_dummy_value()


inner_tile: Any = intrinsic(
    lambda _typing, _rows, _row_bytes, _lines, _line_bytes, _steps, _target: (
        types.none(*[types.int64] * 6),
        _emit_inner_tile,
    )
)


@compiled
def _locate(first: int, count: int, geometry: Geometry, sources: Words, together: Words) -> None:
    """Where the windows of `count` pixels from `first` start, and which eight of them are neighbours in the image.

    Those that fill the last eight start where the last one does; delta is zero there.
    """
    pixels = geometry.output_height * geometry.output_width
    lanes = (count + LANES - 1) // LANES * LANES
    for i in range(lanes):
        image, pixel = divmod(first + min(i, count - 1), pixels)
        y, x = divmod(pixel, geometry.output_width)
        line = y * geometry.stride_height * geometry.image_width
        sources[i] = image * geometry.image_size + line + x * geometry.stride_width
    for i in range(0, lanes, LANES):
        neighbours = True
        for lane in range(i + 1, i + LANES):
            neighbours &= sources[lane] - sources[lane - 1] == 1
        together[i // LANES] = neighbours


@compiled
def _pack_line(images: Words, shift: int, sources: Words, together: Words, steps: int, line: Words) -> None:
    """What lies `shift` words behind the start of each pixel's window."""
    start, target = address(images, shift), address(line, 0)
    for step in range(steps):
        lane = step * LANES
        if together[step]:
            wide_move(start + 8 * sources[lane], target + 8 * lane)
        else:
            for i in range(lane, lane + LANES):
                line[i] = images[shift + sources[i]]


@compiled
def _pack_rows(
    delta: Words, first: int, count: int, row: int, rows: int, pixels: int, all_rows: int, found: Words
) -> None:
    """Rows from `row` of `count` pixels from `first`, counted over the batch; zeros fill up rows and the last eight."""
    lanes = (count + LANES - 1) // LANES * LANES
    for i in range((rows + SIDE - 1) // SIDE * SIDE):
        target, pixel = i * PIXELS, first
        while i < rows and pixel < first + count:
            image, begin = divmod(pixel, pixels)
            length = min(pixels - begin, first + count - pixel)
            source = (image * all_rows + row + i) * pixels + begin
            for j in range(length):
                found[target + j] = delta[source + j]
            target, pixel = target + length, pixel + length
        for j in range(target, i * PIXELS + lanes):
            found[j] = 0


@compiled
def convolution_gradient(
    images: Words, offsets: Words, delta: Words, geometry: Geometry, batch: int, out: Words, begin: int, end: int
) -> None:
    """Lines `begin` to `end` of out[group, row, line]; a group has whole tiles of lines, one an offset, counted so."""
    taps, pixels = offsets.size, geometry.output_height * geometry.output_width
    tiles = (taps + SIDE - 1) // SIDE
    all_rows = geometry.groups * geometry.rows
    rows, lines, sums = aligned(ROWS * PIXELS), aligned(SIDE * PIXELS), aligned(TILE)
    sources, together = np.empty(PIXELS, np.int64), np.empty(PIXELS // LANES, np.int64)
    for group in range(begin // SIDE // tiles, (end + SIDE * tiles - 1) // SIDE // tiles):
        first_tile = max(0, begin // SIDE - group * tiles)
        last_tile = min(tiles, (end + SIDE - 1) // SIDE - group * tiles)
        for row in range(0, geometry.rows, ROWS):
            num_rows = min(ROWS, geometry.rows - row)
            for first in range(0, batch * pixels, PIXELS):
                count = min(PIXELS, batch * pixels - first)
                steps = (count + LANES - 1) // LANES
                _locate(first, count, geometry, sources, together)
                _pack_rows(delta, first, count, group * geometry.rows + row, num_rows, pixels, all_rows, rows)
                for tile in range(first_tile, last_tile):
                    num_lines = min(SIDE, taps - tile * SIDE)
                    for i in range(num_lines):
                        shift = group * geometry.group_size + offsets[tile * SIDE + i]
                        _pack_line(images, shift, sources, together, steps, lines[i * PIXELS : (i + 1) * PIXELS])
                    for some in range(0, num_rows, SIDE):
                        inner_tile(
                            address(rows, some * PIXELS), 8 * PIXELS, address(lines, 0), 8 * PIXELS, steps,
                            address(sums, 0),
                        )  # fmt: skip
                        for i in range(min(SIDE, num_rows - some)):
                            place = (group * geometry.rows + row + some + i) * taps + tile * SIDE
                            for j in range(num_lines):
                                out[place + j] += sums[i * SIDE + j]
