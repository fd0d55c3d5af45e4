"""The work of `planes` as compiled loops.

Each function computes exactly what the tensor expressions in `planes` compute; `tests/protocols/share/gates/
test_planes.py` holds them to it. Inner loops run along the words of a plane and touch few rows each: LLVM makes vectors
of them only if it needs few checks that what is written is not read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bilateral.protocols.share.ring.compiled import compiled, inlined

Numbers = npt.NDArray[np.int64]
Planes = npt.NDArray[np.int64]
BLOCK: Final = 512
"""Words of a row at a time: the rows of a digit stay in the nearest cache."""
LANES: Final = 8
"""Words of a plane that are transposed together."""
LOW32: Final = (1 << 32) - 1
EVERY_OTHER: Final = (
    0x5555555555555555,
    0x3333333333333333,
    0x0F0F0F0F0F0F0F0F,
    0x00FF00FF00FF00FF,
    0x0000FFFF0000FFFF,
)


@inlined
def swap_all(rows: Any, scale: Any) -> Any:
    """Bit q of row k for bit k of row q, as far as places of weight 2^scale go: in all 32 rows of both halves."""
    step, keep = 1 << scale, EVERY_OTHER[scale]
    for start in range(0, 32, 2 * step):
        for k in range(start, start + step):
            for lane in range(LANES):
                low, high = rows[k, lane], rows[k + step, lane]
                changed = ((low >> step) ^ high) & keep
                rows[k, lane] = low ^ (changed << step)
                rows[k + step, lane] = high ^ changed


@compiled
def to_planes(x: Numbers, out: Planes) -> None:
    """A block of 64 numbers is a matrix of bits, transposed 32 columns at a time; `LANES` blocks together."""
    block = np.zeros((64, LANES), np.int64)
    rows = np.empty((32, LANES), np.int64)
    num_planes, words = out.shape
    for start in range(0, words, LANES):
        lanes = min(LANES, words - start)
        for lane in range(lanes):
            first = 64 * (start + lane)
            count = min(64, x.size - first)
            for k in range(count):
                block[k, lane] = x[first + k]
            for k in range(count, 64):
                block[k, lane] = 0
        for low in range(0, num_planes, 32):
            for k in range(32):
                for lane in range(LANES):
                    upper = block[k + 32, lane] >> low
                    rows[k, lane] = ((block[k, lane] >> low) & LOW32) | (upper << 32)
            for scale in range(5):
                swap_all(rows, scale)
            for k in range(min(32, num_planes - low)):
                for lane in range(lanes):
                    out[low + k, start + lane] = rows[k, lane]


@inlined
def majority(a: Any, b: Any, c: Any) -> Any:
    return (a & b) | (c & (a | b))


@compiled
def thermometer(
    zeroth: Planes, first: Planes, second: Planes, third: Planes, entry: int, share: Planes, out: Planes
) -> None:
    """One row: from the low end a higher bit decides, unless it is the same."""
    a, b, c, d = (entry & 1) - 1, (entry >> 1 & 1) - 1, (entry >> 2 & 1) - 1, (entry >> 3) - 1
    for w in range(out.size):
        above = majority(second[w], majority(first[w], zeroth[w] & a, b), c)
        out[w] = majority(third[w], above, d) ^ share[w]


@compiled
def thermometers(planes: Planes, share: Planes, out: Planes) -> None:
    words = share.shape[1]
    for start in range(0, words, BLOCK):
        end = min(start + BLOCK, words)
        for j in range(share.shape[0] // 15):
            for entry in range(15):
                row = 15 * j + entry
                thermometer(
                    planes[4 * j, start:end], planes[4 * j + 1, start:end],
                    planes[4 * j + 2, start:end], planes[4 * j + 3, start:end],
                    entry, share[row, start:end], out[row, start:end],
                )  # fmt: skip


@inlined
def choose(zero: Any, one: Any, bit: Any) -> Any:
    return zero ^ (bit & (zero ^ one))


@compiled
def choose_of_four(
    zero: Planes, one: Planes, two: Planes, three: Planes, low: Planes, high: Planes, out: Planes
) -> None:
    for w in range(out.size):
        out[w] = choose(choose(zero[w], one[w], low[w]), choose(two[w], three[w], low[w]), high[w])


@compiled
def look_up(tables: Planes, planes: Planes, always: int, out: Planes) -> None:
    num_digits, words = tables.shape[0] // 15, tables.shape[1]
    never_row = np.zeros(min(BLOCK, words), np.int64)
    always_row = np.full(min(BLOCK, words), always, np.int64)
    quarters = np.empty((4, min(BLOCK, words)), np.int64)
    for start in range(0, words, BLOCK):
        end = min(start + BLOCK, words)
        size = end - start
        for j in range(num_digits):
            t = 15 * j
            p, q = planes[4 * j, start:end], planes[4 * j + 1, start:end]
            for high in (1, 0):
                found = out[j + (1 - high) * num_digits, start:end]
                for k in range(4):
                    row = t + 4 * k + high
                    zero = always_row[:size] if row < t + 1 and high == 0 else tables[row - 1, start:end]
                    three = never_row[:size] if row + 2 == t + 15 else tables[row + 2, start:end]
                    choose_of_four(
                        zero, tables[row, start:end], tables[row + 1, start:end], three, p, q, quarters[k, :size]
                    )
                choose_of_four(
                    quarters[0, :size], quarters[1, :size], quarters[2, :size], quarters[3, :size],
                    planes[4 * j + 2, start:end], planes[4 * j + 3, start:end], found,
                )  # fmt: skip
            below, same = out[j, start:end], out[num_digits + j, start:end]
            for w in range(size):
                same[w] ^= below[w]


@compiled
def select(y: Numbers, bits: Planes, beta: Numbers, r_beta: Numbers, r: Numbers, first: int, out: Numbers) -> None:
    for start in range(0, y.size, 64):
        word = bits[start >> 6]
        for i in range(min(64, y.size - start)):
            k = start + i
            base = y[k] * beta[k] - r_beta[k]
            chosen = -((word >> i) & 1)
            out[k] = base + (chosen & ((y[k] & first) - r[k] - 2 * base))


@compiled
def xor_rows(a: Planes, b: Planes, out: Planes) -> None:
    for w in range(out.size):
        out[w] = a[w] ^ b[w]


@compiled
def mask_level(lt: Planes, eq: Planes, masks: Planes, out: Planes) -> None:
    pairs = lt.shape[0] // 2
    for i in range(pairs):
        xor_rows(eq[2 * i + 1], masks[i], out[i])
        xor_rows(lt[2 * i], masks[pairs + i], out[pairs + i])
        if i:
            xor_rows(eq[2 * i], masks[2 * pairs + i - 1], out[2 * pairs + i - 1])


@compiled
def product_share(
    d: Planes, f: Planes, a: Planes, b: Planes, c: Planes, first: int, added: Planes, keep: int, out: Planes
) -> None:
    """Of u * v, and `added` on top if `keep` is -1."""
    for w in range(out.size):
        out[w] = (d[w] & ((f[w] & first) ^ b[w])) ^ (f[w] & a[w]) ^ c[w] ^ (added[w] & keep)


@compiled
def join_level(
    lt: Planes, eq: Planes, opened: Planes, masks: Planes, products: Planes, first: int, out: Planes
) -> None:
    groups = lt.shape[0]
    pairs, left = groups // 2, (groups + 1) // 2
    out[left, :] = 0
    for i in range(pairs):
        low = pairs + i
        product_share(opened[i], opened[low], masks[i], masks[low], products[i], first, lt[2 * i + 1], -1, out[i])
        if i:
            low += pairs - 1
            last = products[pairs + i - 1]
            product_share(opened[i], opened[low], masks[i], masks[low], last, first, lt[2 * i + 1], 0, out[left + i])
    if groups > 2 * pairs:
        out[pairs, :] = lt[groups - 1]
        out[left + pairs, :] = eq[groups - 1]


@compiled
def products_of(masks: Planes, out: Planes) -> None:
    pairs = (masks.shape[0] + 1) // 3
    for row in range(out.shape[0]):
        upper = masks[row if row < pairs else row - pairs + 1]
        lower = masks[pairs + row]
        found = out[row]
        for w in range(found.size):
            found[w] = upper[w] & lower[w]
