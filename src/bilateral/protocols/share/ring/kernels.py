"""Exact products modulo 2^64 on a CPU: register tiles in LLVM IR, packing and blocking in numba.

A 64-bit product splits into halves: `x*w = lo*w_lo + 2^32 (lo*w_hi + hi*w_lo)`, and of the cross terms only the low 32
bits count. AVX2 multiplies no 64-bit numbers, but two of its multiplications do for four products:

    full    lanes of 32 bits `[lo, hi]` times `[w_hi, w_lo]` are both cross terms at once (vpmulld), vpmuludq the rest.
    narrow  a weight that fits 32 bits signed has one cross term, `hi*w`, and eight of them fill one vpmulld. The low
            half of x is then read as signed (vpmuldq), and the high half is rounded to make good for it.
    wide    AVX-512 does multiply 64-bit numbers, eight at a time (vpmullq).

The IR is generic vector code: right on any CPU that LLVM knows, if slower. A panel is a few elements of x side by side,
the lanes of a vector, for each step of the sum; a tile of rows of weights is multiplied with it in registers. Tiles are
as large as the registers allow.

Importing this module imports numba. Nothing is compiled before the first call, and numba caches the machine code on
disk. That cache notices changes in the called function's own file only: who edits this one touches ring_fast3x3.py too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bilateral.protocols.share.ring.compiled import compiled, inlined

Words = npt.NDArray[np.int64]

FULL_PANEL: Final = 4  # elements of x in a panel
FULL_TILE: Final = 4  # rows of weights in a tile
NARROW_PANEL: Final = 8
NARROW_TILE: Final = 3
NARROW_STEP: Final = 12  # words of a panel for each step: eight elements, then their eight rounded high halves
WIDE_PANEL: Final = 8
WIDE_TILE: Final = 8
FULL, NARROW, WIDE = 0, 1, 2  # kinds of tiles
DEPTH_CHUNK: Final = 256  # steps of a sum between two writes: what a tile reads again then stays in the L1 cache
STRIP: Final = 64  # elements of x that are packed at once: they stay in the L2 cache
LINE: Final = 8  # words of a cache line


class Geometry(NamedTuple):
    """Where the elements of a convolution lie: sizes and strides in words, `rows` are output channels of one group."""

    image_size: int
    channel_size: int
    image_width: int
    output_height: int
    output_width: int
    stride_height: int
    stride_width: int
    groups: int
    group_channels: int
    group_rows: int


# --- register tiles, as LLVM IR ---

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
LONGS, _INTS, _QUAD = ir.VectorType(_I64, 4), ir.VectorType(_I32, 8), ir.VectorType(_I32, 4)
_OCTET: Final = ir.VectorType(_I64, 8)
_BITS_OF_HALF: Final = ir.Constant(LONGS, [32] * 4)
_HALF_UNIT: Final = ir.Constant(LONGS, [1 << 31] * 4)
_LOW: Final = ir.Constant(LONGS, [0xFFFFFFFF] * 4)
_HIGH: Final = ir.Constant(LONGS, [0xFFFFFFFF << 32] * 4)


def pointer(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    start = builder.inttoptr(address, _I8.as_pointer())
    return builder.bitcast(builder.gep(start, [ir.Constant(_I64, offset)]), kind.as_pointer())


def _broadcast(builder: Any, scalar: Any) -> Any:
    """`scalar`, of 32 or 64 bits, repeated over a vector; as eight lanes of 32 bits."""
    vector = ir.VectorType(scalar.type, 256 // scalar.type.width)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0))
    everywhere = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.bitcast(builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), everywhere), _INTS)


def _signed_low(builder: Any, longs: Any) -> Any:
    return builder.ashr(builder.shl(longs, _BITS_OF_HALF), _BITS_OF_HALF)


def _zeros(builder: Any, kind: Any, count: int) -> list[Any]:
    """Accumulators. LLVM turns these stack slots into registers."""
    with builder.goto_entry_block():
        slots = [builder.alloca(kind) for _ in range(count)]
    for slot in slots:
        builder.store(ir.Constant(kind, [0] * kind.count), slot)
    return slots


def _accumulate(builder: Any, slot: Any, product: Any) -> None:
    builder.store(builder.add(builder.load(slot), product), slot)


def _write_row(builder: Any, total: Any, target: Any, offset: int, kept: Any) -> None:
    """Adds to what lies at the target, if `kept` is all ones; replaces it, if `kept` is zero."""
    place = pointer(builder, target, offset, LONGS)
    before = builder.and_(builder.load(place, align=8), builder.bitcast(_broadcast(builder, kept), LONGS))
    builder.store(builder.add(before, total), place, align=8)


def _emit_full_tile(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """target[row, lane] = sum of panel[step, lane] * weights[step, row]. After each weight come its halves, swapped."""
    panel, weights, target, row_bytes, steps, kept = arguments
    low_sums, cross_sums = _zeros(builder, LONGS, FULL_TILE), _zeros(builder, _INTS, FULL_TILE)
    with cgutils.for_range(builder, steps) as loop:
        panel = builder.add(panel, builder.mul(loop.index, ir.Constant(_I64, 8 * FULL_PANEL)))
        weights = builder.add(weights, builder.mul(loop.index, ir.Constant(_I64, 16 * FULL_TILE)))
        x = builder.load(pointer(builder, panel, 0, LONGS), align=32)
        for row in range(FULL_TILE):
            w = _broadcast(builder, builder.load(pointer(builder, weights, 16 * row, _I32), align=8))
            swapped = _broadcast(builder, builder.load(pointer(builder, weights, 16 * row + 8, _I64), align=8))
            low = builder.mul(builder.and_(x, _LOW), builder.and_(builder.bitcast(w, LONGS), _LOW))
            _accumulate(builder, low_sums[row], low)
            _accumulate(builder, cross_sums[row], builder.mul(builder.bitcast(x, _INTS), swapped))
    for row in range(FULL_TILE):
        cross = builder.bitcast(builder.load(cross_sums[row]), LONGS)
        cross = builder.add(builder.shl(cross, _BITS_OF_HALF), builder.and_(cross, _HIGH))
        _write_row(builder, builder.add(builder.load(low_sums[row]), cross), target, 0, kept)
        target = builder.add(target, row_bytes)
    return context.get_dummy_value()


def _emit_narrow_tile(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """The same for weights of 32 bits: a panel's step is eight elements, then their high halves."""
    panel, weights, target, row_bytes, steps, kept = arguments
    low_sums, cross_sums = _zeros(builder, LONGS, 2 * NARROW_TILE), _zeros(builder, _INTS, NARROW_TILE)
    with cgutils.for_range(builder, steps) as loop:
        panel = builder.add(panel, builder.mul(loop.index, ir.Constant(_I64, 8 * NARROW_STEP)))
        weights = builder.add(weights, builder.mul(loop.index, ir.Constant(_I64, 4 * NARROW_TILE)))
        x = [builder.load(pointer(builder, panel, 32 * i, LONGS), align=32) for i in range(2)]
        high = builder.load(pointer(builder, panel, 64, _INTS), align=32)
        for row in range(NARROW_TILE):
            w = _broadcast(builder, builder.load(pointer(builder, weights, 4 * row, _I32), align=4))
            signed = _signed_low(builder, builder.bitcast(w, LONGS))
            for i in range(2):
                _accumulate(builder, low_sums[2 * row + i], builder.mul(_signed_low(builder, x[i]), signed))
            _accumulate(builder, cross_sums[row], builder.mul(high, w))
    for row in range(NARROW_TILE):
        cross = builder.load(cross_sums[row])
        for i in range(2):
            quad = builder.shuffle_vector(cross, cross, ir.Constant(_QUAD, [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3]))
            shifted = builder.shl(builder.zext(quad, LONGS), _BITS_OF_HALF)
            _write_row(builder, builder.add(builder.load(low_sums[2 * row + i]), shifted), target, 32 * i, kept)
        target = builder.add(target, row_bytes)
    return context.get_dummy_value()


def _emit_wide_tile(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """The same for vectors of eight words; nothing is prepared."""
    panel, weights, target, row_bytes, steps, kept = arguments
    sums = _zeros(builder, _OCTET, WIDE_TILE)
    with cgutils.for_range(builder, steps) as loop:
        panel = builder.add(panel, builder.mul(loop.index, ir.Constant(_I64, 8 * WIDE_PANEL)))
        weights = builder.add(weights, builder.mul(loop.index, ir.Constant(_I64, 8 * WIDE_TILE)))
        x = builder.load(pointer(builder, panel, 0, _OCTET), align=64)
        for row in range(WIDE_TILE):
            w = _octet(builder, builder.load(pointer(builder, weights, 8 * row, _I64), align=8))
            _accumulate(builder, sums[row], builder.mul(x, w))
    mask = _octet(builder, kept)
    for row in range(WIDE_TILE):
        place = pointer(builder, target, 0, _OCTET)
        before = builder.and_(builder.load(place, align=8), mask)
        builder.store(builder.add(before, builder.load(sums[row])), place, align=8)
        target = builder.add(target, row_bytes)
    return context.get_dummy_value()


def _octet(builder: Any, word: Any) -> Any:
    first = builder.insert_element(ir.Constant(_OCTET, ir.Undefined), word, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, ir.Constant(_OCTET, ir.Undefined), ir.Constant(_INTS, [0] * 8))


def _emit_wide_move(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """One step of a panel: eight neighbouring elements."""
    source, target = arguments
    x = builder.load(pointer(builder, source, 0, _OCTET), align=8)
    builder.store(x, pointer(builder, target, 0, _OCTET), align=64)
    return context.get_dummy_value()


def _emit_full_move(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """One step of a panel: four neighbouring elements."""
    source, target = arguments
    x = builder.load(pointer(builder, source, 0, LONGS), align=8)
    builder.store(x, pointer(builder, target, 0, LONGS), align=32)
    return context.get_dummy_value()


def _emit_narrow_move(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """One step of a panel: eight neighbouring elements and their high halves, rounded to the nearest."""
    source, target = arguments
    elements = [builder.load(pointer(builder, source, 32 * i, LONGS), align=8) for i in range(2)]
    for i, x in enumerate(elements):
        builder.store(x, pointer(builder, target, 32 * i, LONGS), align=32)
        high = builder.lshr(builder.add(x, _HALF_UNIT), _BITS_OF_HALF)
        builder.store(builder.trunc(high, _QUAD), pointer(builder, target, 64 + 16 * i, _QUAD), align=16)
    return context.get_dummy_value()


def _tile(emit: Callable[..., Any]) -> Any:
    """A function of six integers: addresses of panel, weights and target; bytes of a row, steps; and `kept`."""
    signature = types.none(*[types.int64] * 6)
    return intrinsic(lambda _typing, _p, _w, _t, _r, _s, _k: (signature, emit))


def _move(emit: Callable[..., Any]) -> Any:
    """A function of two integers, the addresses of source and target."""
    return intrinsic(lambda _typing, _source, _target: (types.none(types.int64, types.int64), emit))


full_tile, narrow_tile, wide_tile = _tile(_emit_full_tile), _tile(_emit_narrow_tile), _tile(_emit_wide_tile)
full_move, narrow_move, wide_move = _move(_emit_full_move), _move(_emit_narrow_move), _move(_emit_wide_move)


# --- blocking ---


@inlined
def _sizes(kind: int) -> tuple[int, int, int, int]:
    """Elements in a panel, rows in a tile; words of a panel for each step, bytes of a tile."""
    if kind == NARROW:
        return NARROW_PANEL, NARROW_TILE, NARROW_STEP, 4 * NARROW_TILE
    if kind == WIDE:
        return WIDE_PANEL, WIDE_TILE, WIDE_PANEL, 8 * WIDE_TILE
    return FULL_PANEL, FULL_TILE, FULL_PANEL, 16 * FULL_TILE


@compiled
def aligned(words: int) -> Words:
    """Scratch that starts a cache line."""
    scratch = np.empty(words + LINE, np.int64)
    start = (-(scratch.ctypes.data // 8)) % LINE
    return scratch[start : start + words]


@compiled
def address(words: Words, start: int) -> int:
    return words.ctypes.data + 8 * start


@compiled
def _scatter(
    tile: Words, width: int, rows: int, out: Words, first: int, row_stride: int, places: Words, add: bool
) -> None:
    """A tile to places that are not neighbours, or too few: lane `i` of its first row goes to `first + places[i]`."""
    for row in range(rows):
        for lane in range(places.size):
            place = first + row * row_stride + places[lane]
            out[place] = tile[row * width + lane] + (out[place] if add else 0)


@compiled
def _multiply_strip(
    panels: int,
    panel_bytes: int,
    weights: int,
    tile_bytes: int,
    steps: int,
    rows: int,
    out: Words,
    first: int,
    row_stride: int,
    places: Words,
    add: bool,
    kind: int,
) -> None:
    """All rows times the panels of a strip, over `steps` of the sum. `panels` and `weights` are addresses.

    A full tile reads more weights than elements of x, a narrow one fewer: whichever is more stays in L1.
    """
    width, tile_rows, _, _ = _sizes(kind)
    scratch = aligned(WIDE_PANEL * WIDE_TILE)
    resident = STRIP if kind == FULL else width
    for begin in range(0, places.size, resident):
        for row in range(0, rows, tile_rows):
            tile_weights = weights + row // tile_rows * tile_bytes
            for lane in range(begin, min(begin + resident, places.size), width):
                panel = panels + lane // width * panel_bytes
                last = lane + width - 1
                direct = row + tile_rows <= rows and last < places.size and places[last] - places[lane] == width - 1
                tile_first = first + row * row_stride
                if direct:
                    target, stride = out.ctypes.data + 8 * (tile_first + places[lane]), 8 * row_stride
                else:
                    target, stride = scratch.ctypes.data, 8 * width
                kept = -1 if direct and add else 0
                if kind == NARROW:
                    narrow_tile(panel, tile_weights, target, stride, steps, kept)
                elif kind == WIDE:
                    wide_tile(panel, tile_weights, target, stride, steps, kept)
                else:
                    full_tile(panel, tile_weights, target, stride, steps, kept)
                if not direct:
                    lanes = places[lane : lane + width]
                    _scatter(scratch, width, min(tile_rows, rows - row), out, tile_first, row_stride, lanes, add)


# --- convolution: x is packed into panels as it is needed, the weights once ---


@compiled
def _locate(first: int, count: int, geometry: Geometry, sources: Words, places: Words) -> None:
    """Of `count` output pixels from `first`: where their windows start in the images, and where their sums go."""
    pixels = geometry.output_height * geometry.output_width
    for i in range(sources.size):
        image, pixel = divmod(first + min(i, count - 1), pixels)  # past the end: the last once more, never written
        y, x = divmod(pixel, geometry.output_width)
        line = y * geometry.stride_height * geometry.image_width
        sources[i] = image * geometry.image_size + line + x * geometry.stride_width
        places[i] = image * geometry.groups * geometry.group_rows * pixels + pixel


@compiled
def _pack(images: Words, sources: Words, shift: int, offsets: Words, kind: int, panel: Words) -> None:
    """One panel: for each step the elements whose windows start at `sources`, `shift + offset` further on."""
    width, _, step_words, _ = _sizes(kind)
    together = True
    for lane in range(1, width):
        together &= sources[lane] - sources[lane - 1] == 1
    start, target = images.ctypes.data + 8 * (sources[0] + shift), panel.ctypes.data
    for step in range(offsets.size):
        source = start + 8 * offsets[step]
        if not together:
            for lane in range(width):
                panel[step * step_words + lane] = images[sources[lane] + shift + offsets[step]]
            source = target
        if kind == NARROW:
            narrow_move(source, target)
        elif kind == WIDE:
            wide_move(source, target)
        else:
            full_move(source, target)
        target += 8 * step_words


@compiled
def convolve(
    images: Words, offsets: Words, geometry: Geometry, weights: Words, kind: int, out: Words, begin: int, end: int
) -> None:
    """Output pixels `begin` to `end`, counted over the batch, of all channels. A window's elements lie at `offsets`."""
    width, tile_rows, step_words, step_bytes = _sizes(kind)
    panels = aligned(STRIP // width * step_words * DEPTH_CHUNK)
    all_sources, all_places = np.empty(STRIP, np.int64), np.empty(STRIP, np.int64)
    pixels, depth = geometry.output_height * geometry.output_width, offsets.size
    tile_bytes = depth * step_bytes
    group_bytes = (geometry.group_rows + tile_rows - 1) // tile_rows * tile_bytes
    for start in range(begin, end, STRIP):
        count = min(STRIP, end - start)
        _locate(start, count, geometry, all_sources, all_places)
        for group in range(geometry.groups):
            for chunk in range(0, depth, DEPTH_CHUNK):
                steps = min(DEPTH_CHUNK, depth - chunk)
                panel_words = steps * step_words
                for lane in range(0, count, width):
                    shift = group * geometry.group_channels * geometry.channel_size
                    panel = panels[lane // width * panel_words : (lane // width + 1) * panel_words]
                    sources = all_sources[lane : lane + width]
                    _pack(images, sources, shift, offsets[chunk : chunk + steps], kind, panel)
                _multiply_strip(
                    address(panels, 0),
                    panel_words * 8,
                    weights.ctypes.data + group * group_bytes + chunk * step_bytes,
                    tile_bytes,
                    steps,
                    geometry.group_rows,
                    out,
                    group * geometry.group_rows * pixels,
                    pixels,
                    all_places[:count],
                    chunk > 0,
                    kind,
                )


# --- matrix product: here the weights are the panels, so that few samples still fill the lanes ---


@compiled
def multiply(
    panels: Words, samples: Words, depth: int, batch: int, features: int, out: Words, kind: int, begin: int, end: int
) -> None:
    """Output features `begin` to `end`, whole panels, of all samples, which are packed as weights of this kind are."""
    _, _, step_words, step_bytes = _sizes(kind)
    places = np.empty(features, np.int64)
    for i in range(features):
        places[i] = i
    first: Any = np.int64(
        0
    )  # to numba a bare constant is a type of its own, for which it would compile everything again
    for start in range(begin, min(end, features), STRIP):
        for chunk in range(0, depth, DEPTH_CHUNK):
            _multiply_strip(
                panels.ctypes.data + (start * depth + chunk * step_words) * 8,
                depth * step_words * 8,
                samples.ctypes.data + chunk * step_bytes,
                depth * step_bytes,
                min(DEPTH_CHUNK, depth - chunk),
                batch,
                out,
                first,
                features,
                places[start : min(start + STRIP, end, features)],
                chunk > 0,
                kind,
            )


@compiled
def pack_full(rows: Words, groups: int, height: int, depth: int, packed: Words) -> None:
    """(groups, height, depth) -> (groups, tiles, depth, FULL_TILE, 2): each word, and it again with its halves swapped.

    The last tile is filled up with rows of zeros.
    """
    at = 0
    for group in range(groups):
        for first in range(0, height, FULL_TILE):
            for step in range(depth):
                for row in range(first, first + FULL_TILE):
                    word = rows[(group * height + row) * depth + step] if row < height else 0
                    packed[at] = word
                    packed[at + 1] = (word << 32) | ((word >> 32) & 0xFFFFFFFF)
                    at += 2
