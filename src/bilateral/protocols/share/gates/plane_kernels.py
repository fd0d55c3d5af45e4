"""The work of `planes` as compiled loops.

Each function computes exactly what the tensor expressions in `planes` compute; `tests/protocols/share/gates/
test_planes.py` holds them to it. Planes are flat here, one after the other, and inner loops run along the words of a
plane, so that LLVM makes them vectors, as wide as the machine has.

It does that only if nothing that is read can have been written a few words before. With twenty rows in a loop it would
have to compare too many addresses as the program runs, and gives up; so `fetch` and `put` say what it cannot see.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import intrinsic

from bilateral.protocols.share.ring.compiled import compiled, inlined

Numbers = npt.NDArray[np.int64]
Planes = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
U: Final = np.uint64
BLOCK: Final = 1024
"""Words of a row at a time where rows are read twice: four of them stay in the nearest cache."""
LANES: Final = 32
"""Words of a plane that are transposed together: their rows stay in the nearest cache."""
FEW: Final = 4
"""Planes that are sooner taken one by one."""
LANE, PITCH = np.uint64(6), np.uint64(LANES)
PITCH2, PITCH4, PITCH6, PITCH8, PITCH16, PITCH24 = (np.uint64(k * LANES) for k in (2, 4, 6, 8, 16, 24))
ONE, HALF, LOW32 = np.uint64(1), np.uint64(32), np.uint64((1 << 32) - 1)
EVERY1, EVERY2 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
EVERY4, EVERY8 = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x00FF00FF00FF00FF)
EVERY16: Final = np.uint64(0x0000FFFF0000FFFF)
STREAMS: Final = tuple(f"stream {i}" for i in range(8))


def _scopes(module: Any, names: tuple[str, ...]) -> Any:
    domain = module.add_metadata(["planes"])
    return module.add_metadata([module.add_metadata([name, domain]) for name in names])


def _fetch(_context: Any, array: Any, _index: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        found = builder.load(builder.gep(data, [arguments[1]]))
        found.set_metadata("noalias", _scopes(builder.module, STREAMS))
        return found

    return array.dtype(array, types.intp), code


def _put(_context: Any, array: Any, _index: Any, _value: Any, stream: Any) -> Any:
    if not isinstance(stream, types.IntegerLiteral):
        return None  # numba asks again with the number
    name = STREAMS[stream.literal_value]

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        written = builder.store(arguments[2], builder.gep(data, [arguments[1]]))
        written.set_metadata("alias.scope", _scopes(builder.module, (name,)))
        written.set_metadata("noalias", _scopes(builder.module, tuple(other for other in STREAMS if other != name)))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype, stream), code


fetch: Final[Any] = intrinsic(_fetch)
"""fetch(array, index): what the flat array has there. What `put` writes is elsewhere, or there and made of this."""
put: Final[Any] = intrinsic(_put)
"""put(array, index, value, stream) into the flat array. The streams of a loop, numbers below 8, never meet."""


@inlined
def differing(low: Any, high: Any, step: Any, keep: Any) -> Any:
    """Bits that are not what they are in the transposed matrix, in the place that they have in the upper row."""
    return ((low >> step) ^ high) & keep


@compiled
def transpose(rows: Words, lanes: Any) -> None:
    """32 x 32 bits in each half of the words: place q of row k for place k of row q. Two steps a pass, three passes."""
    for k in range(U(8)):
        for lane in range(lanes):
            i = k * PITCH + lane
            a, b, c, d = rows[i], rows[i + PITCH8], rows[i + PITCH16], rows[i + PITCH24]
            ac, bd = differing(a, c, U(16), EVERY16), differing(b, d, U(16), EVERY16)
            a, b, c, d = a ^ (ac << U(16)), b ^ (bd << U(16)), c ^ ac, d ^ bd
            ab, cd = differing(a, b, U(8), EVERY8), differing(c, d, U(8), EVERY8)
            rows[i], rows[i + PITCH8] = a ^ (ab << U(8)), b ^ ab
            rows[i + PITCH16], rows[i + PITCH24] = c ^ (cd << U(8)), d ^ cd
    for group in range(U(4)):
        for k in range(U(2)):
            for lane in range(lanes):
                i = group * PITCH8 + k * PITCH + lane
                a, b, c, d = rows[i], rows[i + PITCH2], rows[i + PITCH4], rows[i + PITCH6]
                ac, bd = differing(a, c, U(4), EVERY4), differing(b, d, U(4), EVERY4)
                a, b, c, d = a ^ (ac << U(4)), b ^ (bd << U(4)), c ^ ac, d ^ bd
                ab, cd = differing(a, b, U(2), EVERY2), differing(c, d, U(2), EVERY2)
                rows[i], rows[i + PITCH2] = a ^ (ab << U(2)), b ^ ab
                rows[i + PITCH4], rows[i + PITCH6] = c ^ (cd << U(2)), d ^ cd
    for k in range(U(16)):
        for lane in range(lanes):
            i = k * PITCH2 + lane
            a, b = rows[i], rows[i + PITCH]
            ab = differing(a, b, ONE, EVERY1)
            rows[i], rows[i + PITCH] = a ^ (ab << ONE), b ^ ab


@compiled
def fill(x: Words, first: Any, low: Any, lanes: Any, rows: Words) -> None:
    """Row k: bits low to low + 31 of the numbers k and k + 32 of each word, one in each half."""
    for lane in range(lanes):  # not the inner loop: machines gather slowly
        for k in range(HALF):
            i = first + (lane << LANE) + k
            rows[k * PITCH + lane] = ((x[i] >> low) & LOW32) | ((x[i + HALF] >> low) << HALF)


@compiled
def take_plane(x: Words, first: Any, plane: Any, lanes: Any, out: Words, start: Any) -> None:
    for lane in range(lanes):
        found = U(0)
        for i in range(U(64)):
            found |= ((x[first + (lane << LANE) + i] >> plane) & ONE) << i
        out[start + lane] = found


@compiled
def some_planes(x: Words, first: int, lanes: int, rows: Words, out: Words, start: int) -> None:
    """Planes of 64 * lanes numbers from `first` on, into the words from `start` on."""
    num_planes = out.shape[0]
    for low in range(0, num_planes, 32):
        if num_planes - low <= FEW:
            for plane in range(low, num_planes):
                take_plane(x, U(first), U(plane), U(lanes), out[plane], U(start))
        else:
            fill(x, U(first), U(low), U(lanes), rows)
            transpose(rows, U(lanes))
            for k in range(min(32, num_planes - low)):
                row = (low + k) * out.shape[1] + start
                for lane in range(lanes):
                    put(out, row + lane, fetch(rows, k * LANES + lane), 0)


@compiled
def to_planes(x: Words, out: Words) -> None:
    """64 numbers are a matrix of bits, transposed 32 columns at a time; `LANES` such matrices together."""
    rows = np.empty(32 * LANES, np.uint64)
    full = x.size // 64
    for start in range(0, full, LANES):
        some_planes(x, 64 * start, min(LANES, full - start), rows, out, start)
    if x.size > 64 * full:
        rest = np.zeros(64, np.uint64)
        for i in range(x.size - 64 * full):
            rest[i] = x[64 * full + i]
        some_planes(rest, 0, 1, rows, out, full)


@compiled
def thermometers(planes: Planes, share: Planes, out: Planes) -> None:
    """In two halves: with all 15 rows of 2^20 numbers at once, more would go to one place in the cache than it has."""
    words = share.shape[1]
    for start in range(0, words, BLOCK):
        end = min(start + BLOCK, words)
        for j in range(share.shape[0] // 15):
            p, t = 4 * j * words, 15 * j * words
            for w in range(start, end):
                a, b = fetch(planes, p + w), fetch(planes, p + words + w)
                c, d = fetch(planes, p + 2 * words + w), fetch(planes, p + 3 * words + w)
                put(out, t + w, fetch(share, t + w) ^ (a | b | c | d), 0)
                put(out, t + words + w, fetch(share, t + words + w) ^ (b | c | d), 1)
                put(out, t + 2 * words + w, fetch(share, t + 2 * words + w) ^ ((a & b) | c | d), 2)
                put(out, t + 3 * words + w, fetch(share, t + 3 * words + w) ^ (c | d), 3)
                put(out, t + 4 * words + w, fetch(share, t + 4 * words + w) ^ ((c & (a | b)) | d), 4)
                put(out, t + 5 * words + w, fetch(share, t + 5 * words + w) ^ ((c & b) | d), 5)
                put(out, t + 6 * words + w, fetch(share, t + 6 * words + w) ^ ((c & a & b) | d), 6)
                put(out, t + 7 * words + w, fetch(share, t + 7 * words + w) ^ d, 7)
            t += 8 * words
            for w in range(start, end):
                a, b = fetch(planes, p + w), fetch(planes, p + words + w)
                c, d = fetch(planes, p + 2 * words + w), fetch(planes, p + 3 * words + w)
                put(out, t + w, fetch(share, t + w) ^ (d & (a | b | c)), 0)
                put(out, t + words + w, fetch(share, t + words + w) ^ (d & (b | c)), 1)
                put(out, t + 2 * words + w, fetch(share, t + 2 * words + w) ^ (d & ((a & b) | c)), 2)
                put(out, t + 3 * words + w, fetch(share, t + 3 * words + w) ^ (d & c), 3)
                put(out, t + 4 * words + w, fetch(share, t + 4 * words + w) ^ (d & c & (a | b)), 4)
                put(out, t + 5 * words + w, fetch(share, t + 5 * words + w) ^ (d & c & b), 5)
                put(out, t + 6 * words + w, fetch(share, t + 6 * words + w) ^ (d & c & a & b), 6)


@inlined
def choose(zero: Any, one: Any, bit: Any) -> Any:
    return zero ^ (bit & (zero ^ one))


@inlined
def choose_of_four(zero: Any, one: Any, two: Any, three: Any, low: Any, high: Any) -> Any:
    return choose(choose(zero, one, low), choose(two, three, low), high)


@compiled
def look_up(tables: Planes, planes: Planes, always: int, out: Planes) -> None:
    """Two multiplexers a digit, of the thermometer and of the thermometer one place up."""
    num_digits, words = tables.shape[0] // 15, tables.shape[1]
    for j in range(num_digits):
        p, t = 4 * j * words, 15 * j * words
        for w in range(words):
            a, b = fetch(planes, p + w), fetch(planes, p + words + w)
            c, d = fetch(planes, p + 2 * words + w), fetch(planes, p + 3 * words + w)
            t0, t1 = fetch(tables, t + w), fetch(tables, t + words + w)
            t2, t3 = fetch(tables, t + 2 * words + w), fetch(tables, t + 3 * words + w)
            t4, t5 = fetch(tables, t + 4 * words + w), fetch(tables, t + 5 * words + w)
            t6, t7 = fetch(tables, t + 6 * words + w), fetch(tables, t + 7 * words + w)
            t8, t9 = fetch(tables, t + 8 * words + w), fetch(tables, t + 9 * words + w)
            t10, t11 = fetch(tables, t + 10 * words + w), fetch(tables, t + 11 * words + w)
            t12, t13 = fetch(tables, t + 12 * words + w), fetch(tables, t + 13 * words + w)
            t14 = fetch(tables, t + 14 * words + w)
            below = choose_of_four(
                choose_of_four(t0, t1, t2, t3, a, b),
                choose_of_four(t4, t5, t6, t7, a, b),
                choose_of_four(t8, t9, t10, t11, a, b),
                choose_of_four(t12, t13, t14, 0, a, b),
                c,
                d,
            )
            at_most = choose_of_four(
                choose_of_four(always, t0, t1, t2, a, b),
                choose_of_four(t3, t4, t5, t6, a, b),
                choose_of_four(t7, t8, t9, t10, a, b),
                choose_of_four(t11, t12, t13, t14, a, b),
                c,
                d,
            )
            put(out, j * words + w, below, 0)
            put(out, (num_digits + j) * words + w, below ^ at_most, 1)


@compiled
def select(y: Numbers, bits: Planes, beta: Numbers, r_beta: Numbers, r: Numbers, first: int, out: Numbers) -> None:
    for start in range(0, y.size, 64):
        word = bits[start >> 6]
        for place in range(min(64, y.size - start)):
            i = start + place
            number = fetch(y, i)
            base = number * fetch(beta, i) - fetch(r_beta, i)
            chosen = -((word >> place) & 1)
            put(out, i, base + (chosen & ((number & first) - fetch(r, i) - 2 * base)), 0)


@inlined
def xor_rows(a: Any, row: Any, masks: Any, masked: Any, words: Any, out: Any) -> None:
    for w in range(words):
        put(out, masked * words + w, fetch(a, row * words + w) ^ fetch(masks, masked * words + w), 0)


@compiled
def mask_level(lt: Planes, eq: Planes, masks: Planes, out: Planes) -> None:
    pairs, words = lt.shape[0] // 2, lt.shape[1]
    for i in range(pairs):
        xor_rows(eq, 2 * i + 1, masks, i, words, out)
        xor_rows(lt, 2 * i, masks, pairs + i, words, out)
        if i:
            xor_rows(eq, 2 * i, masks, 2 * pairs + i - 1, words, out)


@inlined
def product_share(opened: Any, masks: Any, upper: Any, lower: Any, first: Any) -> Any:
    """Without the share of the dealt product."""
    d, f = fetch(opened, upper), fetch(opened, lower)
    return (d & ((f & first) ^ fetch(masks, lower))) ^ (f & fetch(masks, upper))


@compiled
def join_level(
    lt: Planes, eq: Planes, opened: Planes, masks: Planes, products: Planes, first: int, out: Planes
) -> None:
    groups, words = lt.shape
    pairs, left = groups // 2, (groups + 1) // 2
    for w in range(words):
        put(out, left * words + w, 0, 0)
    for i in range(pairs):
        upper, lower, high = i * words, (pairs + i) * words, (2 * i + 1) * words
        for w in range(words):
            found = product_share(opened, masks, upper + w, lower + w, first) ^ fetch(products, upper + w)
            put(out, upper + w, found ^ fetch(lt, high + w), 0)
        if i:
            lower, product = (2 * pairs + i - 1) * words, (pairs + i - 1) * words
            for w in range(words):
                found = product_share(opened, masks, upper + w, lower + w, first) ^ fetch(products, product + w)
                put(out, (left + i) * words + w, found, 0)
    if groups > 2 * pairs:
        odd = 2 * pairs * words
        for w in range(words):
            put(out, pairs * words + w, fetch(lt, odd + w), 0)
        for w in range(words):
            put(out, (left + pairs) * words + w, fetch(eq, odd + w), 0)


@compiled
def products_of(masks: Planes, out: Planes) -> None:
    pairs, words = (masks.shape[0] + 1) // 3, masks.shape[1]
    for row in range(out.shape[0]):
        upper = (row if row < pairs else row - pairs + 1) * words
        for w in range(words):
            put(out, row * words + w, fetch(masks, upper + w) & fetch(masks, (pairs + row) * words + w), 0)


@compiled
def spread(plane: Planes, out: Numbers) -> None:
    for start in range(0, out.size, 64):
        word = plane[start >> 6]
        for place in range(min(64, out.size - start)):
            put(out, start + place, (word >> place) & 1, 0)


@compiled
def deal_selection(blind: Planes, r: Numbers, beta: Numbers, r_beta: Numbers, out: Numbers) -> None:
    """`out`: the two results, one after the other."""
    count = r.size
    for start in range(0, count, 64):
        word = blind[start >> 6]
        for place in range(min(64, count - start)):
            i = start + place
            bit = (word >> place) & 1
            put(out, i, bit - fetch(beta, i), 0)
            put(out, count + i, (fetch(r, i) & -bit) - fetch(r_beta, i), 1)
