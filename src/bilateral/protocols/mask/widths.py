"""How many bits a masked value has, and how values of so many bits lie in a message.

A ring of 32, 40 or 48 bits is enough for numbers whose range is known: float32 itself has 24 bits of precision. In
memory a value is a word of 64 bits, whose upper bits mean nothing until `reduced` drops them. In a message the lower 32
bits of all values come first, one after the other, then the upper 8 or 16 of all values, then zeros up to a whole word,
and the weight in 64 bits at the end: a weight has up to 40 bits, and a sum of weights must not wrap either.

Guarantee: the sum of what was packed, unpacked, is the sum of the values as Python integers wherever that is within
`[-2^(width-1), 2^(width-1))`, whatever multiples of `2^width` masks have added and taken off meanwhile.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilateral.errors import ProtocolError

Width = Literal[32, 40, 48, 64]
WidthSetting = Literal["auto", 32, 40, 48, 64]
WIDEST: Final[Width] = 64
WIDTHS: Final[tuple[Width, ...]] = (32, 40, 48, 64)
LOWER_BITS: Final = 32
UPPER_TYPES: Final[dict[int, np.dtype[Any]]] = {40: np.dtype("<u1"), 48: np.dtype("<u2")}
"""What is above the lower 32 bits of a value."""
CHUNK_VALUES: Final = 1 << 14
_WORD_BYTES = 4
_WEIGHT_WORDS = 2


def width_for(resolution: float, num_clients: int, room_bits: int) -> Width:
    """The fewest bits with which sums over `num_clients` are off by at most `resolution` of their largest value.

    `room_bits`: bounds on single values are up to 2^room_bits times that largest value. With bounds of 2^b, units are
    2^(b + ceil(log2 num_clients) - width + 2), and a sum is off by half a unit a client. 64 if nothing less will do.
    """
    sum_room = (num_clients - 1).bit_length()
    needed = math.log2(num_clients) + sum_room + 1 + room_bits - math.log2(resolution)
    return next((width for width in WIDTHS if width >= needed), WIDEST)


def packed_length(num_values: int, width: Width) -> int:
    """Words of a packed vector of `num_values`, the weight at the end among them."""
    if width == WIDEST:
        return num_values
    count = num_values - 1
    return count + -(-count * (width - LOWER_BITS) // (8 * _WORD_BYTES)) + _WEIGHT_WORDS


def unpacked(message: Tensor, width: Width) -> Tensor:
    """All values of a packed vector as new words of 64 bits, with their signs, the weight at the end."""
    length = len(message)
    count = length if width == WIDEST else (length - _WEIGHT_WORDS) * LOWER_BITS // width + 1
    total = np.zeros(count, dtype=np.int64)
    add_packed(total, message, width)
    return torch.from_numpy(reduced(total, width))


def dtype_of(width: Width) -> torch.dtype:
    """What a packed vector is a vector of."""
    return torch.int64 if width == WIDEST else torch.int32


def packed(values: NDArray[np.int64], width: Width) -> Tensor:
    """The lower `width` bits of every value, and the weight, which stands last, as it is."""
    if width == WIDEST:
        return torch.from_numpy(values)
    count, words = len(values) - 1, np.zeros(packed_length(len(values), width), dtype="<i4")
    lower, upper = _planes(words, count, width)
    wide = values.view(np.uint64)
    for start in range(0, count, CHUNK_VALUES):
        chunk = slice(start, min(start + CHUNK_VALUES, count))
        lower[chunk] = wide[chunk].astype("<u4")
        if upper is not None:
            upper[chunk] = (wide[chunk] >> np.uint64(LOWER_BITS)).astype(upper.dtype)
    words[-_WEIGHT_WORDS:].view("<i8")[0] = values[-1]
    return torch.from_numpy(words)


def add_packed(total: NDArray[np.int64], message: Tensor, width: Width) -> None:
    """Add a packed vector to `total`, whose values are right modulo 2^width (the weight: modulo 2^64)."""
    words = np.ascontiguousarray(message.numpy())
    wide = total.view(np.uint64)  # unsigned arithmetic wraps by definition
    if width == WIDEST:
        np.add(wide, words.view(np.uint64), out=wide)
        return
    count = len(total) - 1
    lower, upper = _planes(words, count, width)
    for start in range(0, count, CHUNK_VALUES):
        chunk = slice(start, min(start + CHUNK_VALUES, count))
        np.add(wide[chunk], lower[chunk], out=wide[chunk])
        if upper is not None:
            add_upper(wide[chunk], upper[chunk])
    wide[-1:] += words[-_WEIGHT_WORDS:].view("<u8")


def add_upper(wide: NDArray[np.uint64], upper: NDArray[np.uint8 | np.uint16]) -> None:
    """Add what stands above the lower 32 bits."""
    shifted = upper.astype(np.uint64)
    shifted <<= np.uint64(LOWER_BITS)
    np.add(wide, shifted, out=wide)


def reduced(total: NDArray[np.int64], width: Width) -> NDArray[np.int64]:
    """Every value but the weight as the one number of `width` bits, with a sign, that it stands for. In place."""
    if width != WIDEST:
        spare = np.int64(WIDEST - width)
        np.left_shift(total[:-1], spare, out=total[:-1])
        np.right_shift(total[:-1], spare, out=total[:-1])
    return total


def check_packed(message: Tensor, width: Width, what: str) -> None:
    """Refuse what no `packed` gives, but for its length."""
    if message.dtype != dtype_of(width) or message.dim() != 1:
        expected = str(dtype_of(width)).removeprefix("torch.")
        raise ProtocolError(
            f"{what}: expected a vector of {expected}, got {message.dtype} of shape {tuple(message.shape)}."
        )


def check_padding(message: Tensor, num_values: int, width: Width, what: str) -> None:
    """Refuse a packed vector that has anything where zeros fill the last word. Its length must be right."""
    if width not in UPPER_TYPES:
        return
    count, item = num_values - 1, UPPER_TYPES[width].itemsize
    rest = np.ascontiguousarray(message.numpy())[count:-_WEIGHT_WORDS].view(np.uint8)[count * item :]
    if rest.any():
        raise ProtocolError(f"{what}: expected zeros up to the end of the last word of the values.")


def _planes(
    words: NDArray[np.int32], count: int, width: Width
) -> tuple[NDArray[np.uint32], NDArray[np.uint8 | np.uint16] | None]:
    """Views of the lower and the upper bits of `count` values."""
    lower = words[:count].view("<u4")
    if width not in UPPER_TYPES:
        return lower, None
    return lower, words[count:-_WEIGHT_WORDS].view(UPPER_TYPES[width])[:count]
