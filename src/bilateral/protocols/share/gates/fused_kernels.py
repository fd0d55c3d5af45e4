"""The protocol's element-by-element work as compiled loops: one pass over memory instead of a dozen.

Each function computes exactly what the tensor expressions in `comparison` and `truncation` compute (which are the
oracle, and what runs on other devices); `tests/protocols/share/gates/test_fused.py` holds them to it. Arrays are flat
and contiguous; ring elements are uint64, so that they wrap. Bits are packed, eight to a byte, the first in the lowest
place.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bilateral.protocols.share.ring.compiled import compiled, inlined

Words = npt.NDArray[np.uint64]
Halves = npt.NDArray[np.uint32]
Packed = npt.NDArray[np.uint8]
Orders = npt.NDArray[np.int64]
U: Final = np.uint64
ONE: Final = np.uint64(1)
LOW20: Final = np.uint64((1 << 20) - 1)
LINEAR, SQUARE, CUBE = np.uint64(744261118), np.uint64(244180718), np.uint64(85299982)
THIRD: Final = np.uint64(0xAAAAAAAB)
"""(x * this) >> 33 is x // 3 for x below 2^32."""
OCTAVES: Final = np.uint64(10)
"""As in `comparison`; numba's cache looks at this file only, so the numbers stand here again."""


@inlined
def factor_of(word: Any, top: Any) -> Any:
    total = (word & LOW20) + ((word >> U(20)) & LOW20) + ((word >> U(40)) & LOW20)
    place = (total * OCTAVES * THIRD) >> U(33)
    part = place & LOW20
    power = LINEAR + ((SQUARE + ((CUBE * part) >> U(20))) * part >> U(20))
    mantissa = (ONE << U(30)) + ((power * part) >> U(20))
    return (mantissa >> (U(30) - (top - OCTAVES) - (place >> U(20)))) | ONE


@inlined
def offset_of(word: Any, factor: Any) -> Any:
    offset = ONE + (((word >> U(33)) * (factor - ONE)) >> U(31))
    return offset + (word & ONE) * (factor - (offset << ONE))


@inlined
def sign_of(word: Any) -> Any:
    """1, or -1 modulo 2^64, by the top bit: a branch would be mispredicted every other time."""
    return ONE - ((word >> U(63)) << ONE)


@inlined
def inverse_of(factor: Any) -> Any:
    inverse = (U(3) * factor) ^ U(2)
    for _ in range(4):
        inverse *= U(2) - factor * inverse
    return inverse


@compiled
def blind(
    words: Words,
    spread: Words,
    orders: Orders,
    share: Words,
    addend: Words,
    has_offset: bool,
    top: int,
    out: Words,
) -> None:
    """Steps 1 and 2 of `comparison`: out[i] = s * (k * share + e) + addend[i], in the random order.

    In the true order first, then one jump to and fro: random places in four arrays would miss the cache four times.
    """
    bits = U(top)
    blinded = np.empty(out.shape[1], np.uint64)
    for sample in range(out.shape[0]):
        for j in range(out.shape[1]):
            word = words[sample, j]
            factor = factor_of(word, bits)
            value = factor * share[sample, j]
            if has_offset:
                value += offset_of(spread[sample, j], factor)
            blinded[j] = sign_of(word) * value
        for i in range(out.shape[1]):
            out[sample, i] = blinded[orders[sample, i]] + addend[sample, i]


@compiled
def select(
    words: Words,
    spread: Words,
    orders: Orders,
    share: Words,
    product: Words,
    bit: Words,
    top: int,
    out: Words,
) -> None:
    """Step 4 of `comparison`, back in the true order."""
    bits = U(top)
    judged = np.empty((out.shape[1], 2), np.uint64)
    for sample in range(out.shape[0]):
        for i in range(out.shape[1]):
            j = orders[sample, i]
            judged[j, 0], judged[j, 1] = product[sample, i], bit[sample, i]
        for j in range(out.shape[1]):
            word = words[sample, j]
            factor = factor_of(word, bits)
            sign = sign_of(word)
            taken = offset_of(spread[sample, j], factor) * judged[j, 1]
            kept = (sign * judged[j, 0] - taken) * inverse_of(factor)
            out[sample, j] = (word >> U(63)) * share[sample, j] + sign * kept


@compiled
def judge(
    values: Words,
    mask: Words,
    product_share: Words,
    bit_share: Words,
    product: Words,
    bit: Words,
) -> None:
    """Step 3 of `comparison`: the server's shares of g * u and g, for u = values - mask."""
    for i in range(values.size):
        blinded = values[i] - mask[i]
        is_positive = ((blinded - ONE) | blinded) >> U(63) ^ ONE
        product[i] = is_positive * blinded - product_share[i]
        bit[i] = is_positive - bit_share[i]


@compiled
def truncate_first(
    y: Words,
    mask: Words,
    bias: Words,
    repeat: int,
    shift: int,
    alpha: Packed,
    product: Halves,
    epsilon: Packed,
    share: Words,
    delta: Packed,
) -> None:
    """`truncation.first_share` of y - mask + bias; `bias` has an entry for every `repeat` elements in a row."""
    low = U(shift)
    rest = U(64) - low
    constant = (ONE << (U(62) - low)) + (ONE << rest) - ONE
    channel, left = 0, repeat
    for start in range(0, y.size, 8):
        packed = U(0)
        for place in range(min(8, y.size - start)):
            i = start + place
            if left == 0:
                left = repeat
                channel = channel + 1 if channel + 1 < bias.size else 0
            left -= 1
            value = y[i] - mask[i] + bias[channel] + (ONE << U(62))
            a = (U(alpha[i >> 3]) >> U(place)) & ONE
            e = (U(epsilon[i >> 3]) >> U(place)) & ONE
            d = ((value >> U(63)) ^ ONE) ^ a
            packed |= d << U(place)
            sign_d, sign_e = ONE - (d << ONE), ONE - (e << ONE)
            correction = d * e + e * sign_d * a + sign_d * sign_e * U(product[i])
            share[i] = (value >> low) - constant + (correction << rest)
        delta[start >> 3] = packed


@compiled
def open_second(
    y: Words,
    dealt: Words,
    beta: Packed,
    epsilon: Packed,
) -> None:
    """y -= dealt, in place; epsilon is the server's bit under its mask."""
    for start in range(0, y.size, 8):
        packed = U(0)
        for place in range(min(8, y.size - start)):
            i = start + place
            value = y[i] - dealt[i]
            y[i] = value
            packed |= ((value >> U(63)) ^ ONE) << U(place)
        mask = U(beta[start >> 3])
        if y.size - start < 8:
            mask &= (ONE << U(y.size - start)) - ONE
        epsilon[start >> 3] = packed ^ mask


@compiled
def truncate_second(
    y: Words,
    shift: int,
    beta: Packed,
    product: Halves,
    delta: Packed,
    epsilon: Packed,
    share: Words,
) -> None:
    """`truncation.second_share`."""
    low = U(shift)
    rest = U(64) - low
    for i in range(y.size):
        place = U(i & 7)
        b = (U(beta[i >> 3]) >> place) & ONE
        d = (U(delta[i >> 3]) >> place) & ONE
        e = (U(epsilon[i >> 3]) >> place) & ONE
        sign_d, sign_e = ONE - (d << ONE), ONE - (e << ONE)
        correction = d * sign_e * b + sign_d * sign_e * U(product[i])
        share[i] = (y[i] >> low) + (correction << rest)


@compiled
def deal_carries(
    alpha: Packed,
    beta: Packed,
    share: Halves,
    out: Halves,
) -> None:
    """`truncation.dealt_share`, modulo 2^32."""
    for i in range(share.size):
        place = np.uint8(i & 7)
        out[i] = np.uint32((alpha[i >> 3] & beta[i >> 3]) >> place & np.uint8(1)) - share[i]


@compiled
def shuffle(
    draws: Halves,
    orders: Orders,
) -> None:
    """Fisher-Yates, inside out."""
    for sample in range(orders.shape[0]):
        for i in range(orders.shape[1]):
            j = (U(draws[sample, i]) * U(i + 1)) >> U(32)
            orders[sample, i] = orders[sample, j]
            orders[sample, j] = i
