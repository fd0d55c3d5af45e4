"""Exact products modulo 2^64 by AMX: sums of products of 8-bit digits, sixteen by sixteen at a time.

A word is eight signed digits, `x = sum_i x_i 2^(8 i)` modulo 2^64 with -128 <= x_i < 128. So

    x w = sum_s 2^(8 s) (sum over i + j = s of x_i w_j),   s < 8,

and each inner sum, over all steps of a matrix product, is made by TDPBSSD: 16 x 64 digits times 64 x 16 into 16 x 16
sums of 32 bits. That is 36 of its products for full words; weights of three digits take 21, of four 26.

Guarantee: exact for sums of up to `MAX_DEPTH` products. The sums s < 4 have up to four products of digits a step, each
at most 2^14 in size: 2^31 is not reached before 2^15 steps. Those above may wrap: 2^32 times 2^(8 s) is nothing then.

Eight tiles are all there are. Four hold the sums s, s + 1, s + 2, s + 3, one a digit w_j, three the digits x_i: going
from j to j + 1 only one new x_i is needed, and it takes the place of one that is not needed any more. So a product of
tiles takes two thirds of a load, and loads from the L2 cache are fast enough.

Machine code from here runs only where `cpu_features` allows it. Importing this module imports numba; nothing is
compiled before the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic

from bilateral.protocols.share.ring.compiled import compiled
from bilateral.protocols.share.ring.kernels import Words, pointer

cgutils: Any = numba_cgutils  # without types
Halves = npt.NDArray[np.int32]

DIGITS: Final = 8
SIDE: Final = 16  # rows and columns of sums
DEPTH: Final = 64  # steps of a sum in a tile
TILE_BYTES: Final = 1024
MAX_DEPTH: Final = (1 << 15) - DEPTH
DIGIT_COUNTS: Final = (3, 4, 8)
"""Of weights, for which there is code."""
SUMS_WORDS: Final = DIGITS * TILE_BYTES // 8
BLOCK_WORDS: Final = SIDE * SIDE
STRIP: Final = 8  # panels that are packed at once
CHUNK: Final = 18  # tiles of depth that are packed at once: with a strip's they fill half of an L2 cache
SCRATCH_WORDS: Final = SUMS_WORDS + STRIP * CHUNK * DIGITS * TILE_BYTES // 8


class Geometry(NamedTuple):
    """Where things lie: digits of images, summed to out[image, row, pixel].

    Digits of up to 64 channels stand side by side, a block; channel c of a pixel is in block c // 64. If `in_place`,
    there are zeros around each image, and whole tiles of neighbouring pixels are loaded from it; else they are packed
    before, with a look at where the image ends.
    """

    height: int
    width: int
    image_bytes: int
    line_bytes: int
    pixel_bytes: int
    digit_bytes: int
    block_bytes: int
    granule: int  # bytes that are copied at once; channels are a multiple of it, and it divides `DEPTH`
    output_height: int
    output_width: int
    stride_height: int
    stride_width: int
    pad_height: int
    pad_width: int
    rows: int
    depth: int  # in tiles
    digits: int  # of weights
    samples_first: bool  # a matrix product: the digits are panels (`split_rows`), and sums go to out[pixel, row]
    in_place: bool


# --- tiles and vectors, as LLVM IR ---

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LONGS, _INTS, _BYTES = ir.VectorType(_I64, 8), ir.VectorType(_I32, 8), ir.VectorType(_I8, 64)
_QUADS: Final = ir.VectorType(_I32, 16)
_BIAS: Final = ir.Constant(_LONGS, [0x8080808080808080] * 8)
_FIRST_OF_X: Final = 5  # tiles 0 to 3: sums, 4: a digit of the weights, 5 to 7: digits of x
_OF_WEIGHT: Final = 4


def _call(builder: Any, name: str, *arguments: Any) -> None:
    function_type = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.{name}"), arguments)


def _tile(number: int) -> Any:
    return ir.Constant(_I8, number)


def _load_tile(builder: Any, number: int, address: Any, row_bytes: Any) -> None:
    _call(builder, "tileloadd64", _tile(number), pointer(builder, address, 0, _I8), row_bytes)


def _emit_configure(context: Any, builder: Any, _signature: Any, _arguments: Sequence[Any]) -> Any:
    """Eight tiles of sixteen rows of 64 bytes, for this thread."""
    setting = bytearray(64)
    setting[0] = 1  # the palette
    for tile in range(8):
        setting[16 + 2 * tile] = DEPTH
        setting[48 + tile] = SIDE
    place = cgutils.global_constant(builder, "ring_tiles", cgutils.make_bytearray(setting))
    _call(builder, "ldtilecfg", builder.bitcast(place, _I8.as_pointer()))
    return context.get_dummy_value()


def _emit_release(context: Any, builder: Any, _signature: Any, _arguments: Sequence[Any]) -> Any:
    _call(builder, "tilerelease")
    return context.get_dummy_value()


def multiply_tiles(builder: Any, sums: int, x: int, weights: int) -> None:
    """Adds a product of two tiles to a third."""
    _call(builder, "tdpbssd", _tile(sums), _tile(x), _tile(weights))


def _emit_half(builder: Any, x: Sequence[Any], row_bytes: Any, weights: Any, first: int, digits: int) -> None:
    """One tile of depth of the sums `first` to `first + 3`. `x`: where the tiles of its digits lie."""
    resident: dict[int, int] = {}  # digit of x -> tile
    for j in range(min(digits, first + 4)):
        place = builder.add(weights, ir.Constant(_I64, j * TILE_BYTES))
        _load_tile(builder, _OF_WEIGHT, place, ir.Constant(_I64, DEPTH))
        for i in range(first + 3 - j, max(0, first - j) - 1, -1):
            if i not in resident:
                tile = _FIRST_OF_X + len(resident) if len(resident) < 3 else resident.pop(max(resident))
                _load_tile(builder, tile, x[i], row_bytes)
                resident[i] = tile
            multiply_tiles(builder, i + j - first, resident[i], _OF_WEIGHT)


def _sums_of(digits: int) -> Callable[..., Any]:
    def emit(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        """sums[s, row, column]: row of a panel of x, column of a panel of weights, over `steps` tiles of depth.

        The digits of x of each step lie `digit_bytes` apart, from `panel` plus what stands for it at `offsets` on.
        """
        panel, offsets, row_bytes, digit_bytes, weights, sums, steps = arguments
        for first in (0, 4):
            for tile in range(4):
                _call(builder, "tilezero", _tile(tile))
            with cgutils.for_range(builder, steps) as loop:
                place = builder.add(offsets, builder.mul(loop.index, ir.Constant(_I64, 8)))
                x = [builder.add(panel, builder.load(pointer(builder, place, 0, _I64)))]
                for _ in range(1, DIGITS):
                    x.append(builder.add(x[-1], digit_bytes))
                w = builder.add(weights, builder.mul(loop.index, ir.Constant(_I64, digits * TILE_BYTES)))
                _emit_half(builder, x, row_bytes, w, first, digits)
            for tile in range(4):
                place = pointer(builder, sums, (first + tile) * TILE_BYTES, _I8)
                _call(builder, "tilestored64", _tile(tile), place, ir.Constant(_I64, DEPTH))
        return context.get_dummy_value()

    return emit


def _shifted(builder: Any, vector: Any, bits: int) -> Any:
    return builder.shl(vector, ir.Constant(vector.type, [bits] * vector.type.count)) if bits else vector


def _transposed(builder: Any, vectors: list[Any]) -> list[Any]:
    """Eight vectors of eight words: lane i of vector k becomes lane k of vector i."""
    found = list(vectors)
    for step in (4, 2, 1):
        low = [lane if not lane & step else 8 + lane - step for lane in range(8)]
        high = [lane + step if not lane & step else 8 + lane for lane in range(8)]
        for i in range(8):
            if not i & step:
                a, b = found[i], found[i + step]
                found[i] = builder.shuffle_vector(a, b, ir.Constant(_INTS, low))
                found[i + step] = builder.shuffle_vector(a, b, ir.Constant(_INTS, high))
    return found


def _words_of(builder: Any, sums: Any, offset: int) -> Any:
    """Eight words from the eight sums of each."""
    parts = [builder.load(pointer(builder, sums, s * TILE_BYTES + offset, _INTS), align=32) for s in range(DIGITS)]
    low = builder.sext(parts[0], _LONGS)
    for s in range(1, 4):
        low = builder.add(low, _shifted(builder, builder.sext(parts[s], _LONGS), 8 * s))
    high = parts[4]
    for s in range(5, 8):
        high = builder.add(high, _shifted(builder, parts[s], 8 * (s - 4)))
    return builder.add(low, _shifted(builder, builder.zext(high, _LONGS), 32))


def _combine(transpose: bool) -> Callable[..., Any]:
    def emit(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        """target[row, column], or [column, row]: added to what lies there if `kept` is all ones, replacing it if 0."""
        sums, target, line_bytes, kept = arguments
        mask = builder.insert_element(ir.Constant(_LONGS, ir.Undefined), kept, ir.Constant(_I32, 0))
        mask = builder.shuffle_vector(mask, ir.Constant(_LONGS, ir.Undefined), ir.Constant(_INTS, [0] * 8))
        for row in (0, 8):
            for column in (0, 8):
                words = [_words_of(builder, sums, 64 * (row + i) + 4 * column) for i in range(8)]
                line, place = row, column
                if transpose:
                    words, line, place = _transposed(builder, words), column, row
                for i, word in enumerate(words):
                    start = builder.add(target, builder.mul(line_bytes, ir.Constant(_I64, line + i)))
                    address = pointer(builder, start, 8 * place, _LONGS)
                    before = builder.and_(builder.load(address, align=8), mask)
                    builder.store(builder.add(before, word), address, align=8)
        return context.get_dummy_value()

    return emit


def _split_words(builder: Any, words: Any) -> Any:
    """Eight words as digits: digit d of word k is byte k of word d."""
    digits = builder.bitcast(builder.xor(builder.add(words, _BIAS), _BIAS), _BYTES)
    by_digit = ir.Constant(ir.VectorType(_I32, 64), [8 * k + d for d in range(8) for k in range(8)])
    return builder.bitcast(builder.shuffle_vector(digits, ir.Constant(_BYTES, ir.Undefined), by_digit), _LONGS)


def _emit_split(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """Eight channels, `channel_bytes` apart, of eight neighbouring pixels: one line of digits a pixel."""
    source, channel_bytes, target, pixel_bytes = arguments
    words = []
    for channel in range(8):
        start = builder.add(source, builder.mul(channel_bytes, ir.Constant(_I64, channel)))
        words.append(builder.load(pointer(builder, start, 0, _LONGS), align=8))
    for pixel, channels in enumerate(_transposed(builder, words)):
        start = builder.add(target, builder.mul(pixel_bytes, ir.Constant(_I64, pixel)))
        builder.store(_split_words(builder, channels), pointer(builder, start, 0, _LONGS), align=8)
    return context.get_dummy_value()


def _emit_split_row(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """Eight neighbouring channels of one pixel: one line of digits."""
    source, target = arguments
    words = builder.load(pointer(builder, source, 0, _LONGS), align=8)
    builder.store(_split_words(builder, words), pointer(builder, target, 0, _LONGS), align=8)
    return context.get_dummy_value()


def _emit_gather(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
    """Eight lines of digits, of eight channels each, as one line of 64 channels a digit, `digit_bytes` apart."""
    source, target, digit_bytes = arguments
    lines = [builder.load(pointer(builder, source, 64 * i, _LONGS), align=8) for i in range(8)]
    for digit, line in enumerate(_transposed(builder, lines)):
        start = builder.add(target, builder.mul(digit_bytes, ir.Constant(_I64, digit)))
        builder.store(line, pointer(builder, start, 0, _LONGS), align=8)
    return context.get_dummy_value()


def _copy(granule: int) -> Callable[..., Any]:
    def emit(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        """A granule of each digit into a row of its tile."""
        source, digit_bytes, target = arguments
        kind = ir.VectorType(_I8, granule)
        for digit in range(DIGITS):
            start = builder.add(source, builder.mul(digit_bytes, ir.Constant(_I64, digit)))
            line = builder.load(pointer(builder, start, 0, kind), align=8)
            builder.store(line, pointer(builder, target, digit * TILE_BYTES, kind), align=8)
        return context.get_dummy_value()

    return emit


def _of_integers(count: int, emit: Callable[..., Any]) -> Any:
    """A function of so many integers."""
    signature = types.none(*[types.int64] * count)
    typings: dict[int, Any] = {
        0: lambda _typing: (signature, emit),
        2: lambda _typing, _a, _b: (signature, emit),
        3: lambda _typing, _a, _b, _c: (signature, emit),
        4: lambda _typing, _a, _b, _c, _d: (signature, emit),
        7: lambda _typing, _a, _b, _c, _d, _e, _f, _g: (signature, emit),
    }
    return intrinsic(typings[count])


configure, release = _of_integers(0, _emit_configure), _of_integers(0, _emit_release)
_sums3, _sums4, _sums8 = (_of_integers(7, _sums_of(digits)) for digits in DIGIT_COUNTS)
_by_row, _by_column = (_of_integers(4, _combine(transpose)) for transpose in (False, True))
_split, _split_row = _of_integers(4, _emit_split), _of_integers(2, _emit_split_row)
_gather = _of_integers(3, _emit_gather)
_copy8, _copy16, _copy32, _copy64 = (_of_integers(3, _copy(granule)) for granule in (8, 16, 32, 64))


# --- digits ---


@compiled
def _store_lines(lines: Words, groups: int, to: int, digit_bytes: int, digits: Words) -> None:
    """Up to eight lines of digits, of eight channels each, to digits[to + digit * digit_bytes]."""
    if groups == 8:
        _gather(lines.ctypes.data, digits.ctypes.data + to, digit_bytes)
    else:
        for digit in range(DIGITS):
            for group in range(groups):
                digits[(to + digit * digit_bytes) // 8 + group] = lines[8 * group + digit]


@compiled
def split_planes(
    images: Words, channels: int, groups: int, geometry: Geometry, digits: Words, begin: int, end: int
) -> None:
    """images[image, channel, pixel] to the places of their digits, for pixels `begin` to `end` counted over the batch.

    The channels are filled up to so many groups of eight.
    """
    lines, corner = np.zeros(8 * 64, np.int64), np.zeros(64, np.int64)
    pixels = geometry.height * geometry.width
    origin = 0
    if geometry.in_place:
        origin = geometry.pad_height * geometry.line_bytes + geometry.pad_width * geometry.pixel_bytes
    at = begin
    while at < end:
        image, pixel = divmod(at, pixels)
        count = min(8, end - at, pixels - pixel)
        for first in range(0, groups, 8):
            num_groups = min(8, groups - first)
            for group in range(num_groups):
                channel = 8 * (first + group)
                start = (image * channels + channel) * pixels + pixel
                if count == 8 and channel + 8 <= channels:
                    _split(images.ctypes.data + 8 * start, 8 * pixels, lines.ctypes.data + 64 * group, 512)
                else:
                    for k in range(8):
                        for lane in range(8):
                            inside = lane < count and channel + k < channels
                            corner[8 * k + lane] = images[start + k * pixels + lane] if inside else 0
                    _split(corner.ctypes.data, 64, lines.ctypes.data + 64 * group, 512)
            block = origin + image * geometry.image_bytes + first // 8 * geometry.block_bytes
            line, column = divmod(pixel, geometry.width)
            for lane in range(count):
                target = block + line * geometry.line_bytes + column * geometry.pixel_bytes
                _store_lines(lines[64 * lane : 64 * lane + 64], num_groups, target, geometry.digit_bytes, digits)
                column += 1
                if column == geometry.width:
                    line, column = line + 1, 0
        at += count


@compiled
def split_rows(rows: Words, channels: int, depth: int, panels: Words, begin: int, end: int) -> None:
    """rows[row, channel] -> panels[panel, tile of depth, digit, row, step], for rows `begin` to `end`."""
    lines, corner = np.zeros(64, np.int64), np.zeros(8, np.int64)
    for row in range(begin, end):
        panel, line = divmod(row, SIDE)
        for tile in range(depth):
            for group in range(8):
                channel = DEPTH * tile + 8 * group
                start = row * channels + channel
                if channel + 8 <= channels:
                    _split_row(rows.ctypes.data + 8 * start, lines.ctypes.data + 64 * group)
                else:
                    for k in range(8):
                        corner[k] = rows[start + k] if channel + k < channels else 0
                    _split_row(corner.ctypes.data, lines.ctypes.data + 64 * group)
            target = (panel * depth + tile) * DIGITS * TILE_BYTES + line * DEPTH
            _gather(lines.ctypes.data, panels.ctypes.data + target, TILE_BYTES)


@compiled
def arrange_weights(panels: Halves, rows: int, depth: int, digits: int, packed: Halves) -> None:
    """panels[panel, tile of depth, digit, row, step] -> packed[panel, tile of depth, digit, step, row], of the first
    `digits` digits, four steps to a number of 32 bits."""
    quarter, size = DEPTH // 4, TILE_BYTES // 4
    for tile in range((rows + SIDE - 1) // SIDE * depth):
        num_rows = min(SIDE, rows - tile // depth * SIDE)
        for digit in range(digits):
            source, target = (tile * DIGITS + digit) * size, (tile * digits + digit) * size
            for row in range(SIDE):
                for step in range(quarter):
                    packed[target + step * SIDE + row] = panels[source + row * quarter + step] if row < num_rows else 0


# --- products ---


@compiled
def _pack(
    digits: Words, taps: Words, zeros: Words, geometry: Geometry, pixel: int, rows: int, first: int, steps: int, to: int
) -> None:
    """To the address `to`, as [tile of depth, digit, row, step]: what `rows` output pixels from `pixel` on see."""
    granule = geometry.granule
    granules = DEPTH // granule
    image, place = divmod(pixel, geometry.output_height * geometry.output_width)
    line, column = divmod(place, geometry.output_width)
    for row in range(rows):
        top = line * geometry.stride_height - geometry.pad_height
        left = column * geometry.stride_width - geometry.pad_width
        start = digits.ctypes.data + image * geometry.image_bytes
        tap = 3 * first * granules
        for step in range(steps):
            target = to + step * DIGITS * TILE_BYTES + row * DEPTH
            for _ in range(granules):
                y, x = top + taps[tap], left + taps[tap + 1]
                source, digit_bytes = zeros.ctypes.data, 0
                if 0 <= y < geometry.height and 0 <= x < geometry.width:
                    source = start + y * geometry.line_bytes + x * geometry.pixel_bytes + taps[tap + 2]
                    digit_bytes = geometry.digit_bytes
                if granule == 64:
                    _copy64(source, digit_bytes, target)
                elif granule == 32:
                    _copy32(source, digit_bytes, target)
                elif granule == 16:
                    _copy16(source, digit_bytes, target)
                else:
                    _copy8(source, digit_bytes, target)
                target += granule
                tap += 3
        column += 1
        if column == geometry.output_width:
            column, line = 0, line + 1
            if line == geometry.output_height:
                line, image = 0, image + 1


@compiled
def _write(sums: Words, tile: Words, geometry: Geometry, pixel: int, row: int, end: int, out: Words, kept: int) -> None:
    """Sums of sixteen pixels from `pixel` on and sixteen rows from `row` on, as far as there are so many."""
    pixels, rows = geometry.output_height * geometry.output_width, geometry.rows
    num_pixels, num_rows = min(SIDE, end - pixel), min(SIDE, rows - row)
    if geometry.samples_first:
        if num_pixels == num_rows == SIDE:
            _by_row(sums.ctypes.data, out.ctypes.data + 8 * (pixel * rows + row), 8 * rows, kept)
            return
        _by_row(sums.ctypes.data, tile.ctypes.data, 8 * SIDE, 0)
        for i in range(num_pixels):
            for j in range(num_rows):
                target = (pixel + i) * rows + row + j
                out[target] = tile[i * SIDE + j] + (out[target] & kept)
        return
    image, place = divmod(pixel, pixels)
    if num_pixels == num_rows == SIDE and place + SIDE <= pixels:
        target = (image * rows + row) * pixels + place
        _by_column(sums.ctypes.data, out.ctypes.data + 8 * target, 8 * pixels, kept)
        return
    _by_column(sums.ctypes.data, tile.ctypes.data, 8 * SIDE, 0)
    for i in range(num_pixels):
        image, place = divmod(pixel + i, pixels)
        for j in range(num_rows):
            target = (image * rows + row + j) * pixels + place
            out[target] = tile[j * SIDE + i] + (out[target] & kept)


@compiled
def _find_steps(taps: Words, geometry: Geometry, offsets: Words) -> tuple[int, int]:
    """Where the tiles of each step of depth lie from the first; how far apart are their rows, and digits."""
    for step in range(geometry.depth):
        if geometry.in_place:
            place = taps[3 * step] * geometry.line_bytes + taps[3 * step + 1] * geometry.pixel_bytes
            offsets[step] = place + taps[3 * step + 2] // DEPTH * geometry.block_bytes
        else:
            offsets[step] = step * DIGITS * TILE_BYTES
    if geometry.in_place:
        return geometry.stride_width * geometry.pixel_bytes, geometry.digit_bytes
    return DEPTH, TILE_BYTES


@compiled
def _find_panels(
    digits: Words,
    taps: Words,
    zeros: Words,
    geometry: Geometry,
    start: int,
    stop: int,
    first: int,
    steps: int,
    scratch: int,
    panels: Words,
) -> None:
    """Where sixteen pixels each, from `start` on, have their tiles from step `first` on. Packs them if need be."""
    for pixel in range(start, stop, SIDE):
        if geometry.samples_first:
            panel = digits.ctypes.data + (pixel // SIDE * geometry.depth + first) * DIGITS * TILE_BYTES
        elif geometry.in_place:
            image, place = divmod(pixel, geometry.output_height * geometry.output_width)
            line, column = divmod(place, geometry.output_width)
            top, left = line * geometry.stride_height, column * geometry.stride_width
            panel = digits.ctypes.data + image * geometry.image_bytes
            panel += top * geometry.line_bytes + left * geometry.pixel_bytes
        else:
            panel = scratch + (pixel - start) // SIDE * steps * DIGITS * TILE_BYTES
            _pack(digits, taps, zeros, geometry, pixel, min(SIDE, stop - pixel), first, steps, panel)
        panels[(pixel - start) // SIDE] = panel


@compiled
def multiply(
    digits: Words, taps: Words, geometry: Geometry, weights: Words, scratch: Words, out: Words, begin: int, end: int
) -> None:
    """Output pixels `begin` to `end`, counted over the batch, of all rows. `scratch`: SCRATCH_WORDS, on a cache line.

    `taps`: for each granule of depth, how far down and along from the window's corner it lies, and at which channel.
    """
    zeros, tile = np.zeros(8, np.int64), np.zeros(BLOCK_WORDS, np.int64)
    sums, rest = scratch[:SUMS_WORDS], scratch[SUMS_WORDS:].ctypes.data
    panels, offsets = np.zeros(STRIP, np.int64), np.zeros(geometry.depth, np.int64)
    row_bytes, digit_bytes = _find_steps(taps, geometry, offsets)
    chunk = geometry.depth if geometry.in_place else CHUNK
    configure()
    for start in range(begin, end, STRIP * SIDE):
        stop = min(end, start + STRIP * SIDE)
        for first in range(0, geometry.depth, chunk):
            steps, kept = min(chunk, geometry.depth - first), -1 if first else 0
            _find_panels(digits, taps, zeros, geometry, start, stop, first, steps, rest, panels)
            at = offsets.ctypes.data  # offsets are those from step `first` on, unless it is 0 anyway
            for row in range(0, geometry.rows, SIDE):
                w = weights.ctypes.data + (row // SIDE * geometry.depth + first) * geometry.digits * TILE_BYTES
                for pixel in range(start, stop, SIDE):
                    x = panels[(pixel - start) // SIDE]
                    if geometry.digits == 3:
                        _sums3(x, at, row_bytes, digit_bytes, w, sums.ctypes.data, steps)
                    elif geometry.digits == 4:
                        _sums4(x, at, row_bytes, digit_bytes, w, sums.ctypes.data, steps)
                    else:
                        _sums8(x, at, row_bytes, digit_bytes, w, sums.ctypes.data, steps)
                    _write(sums, tile, geometry, pixel, row, stop, out, kept)
    release()
    offsets[0] = panels[0]  # both are there until here: numba gives back what is not used any more
