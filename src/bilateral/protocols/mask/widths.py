"""How many bits a masked value has, and how values of so many bits lie in a message.

A ring of 32, 40, 43 or 48 bits is enough for numbers whose range is known: float32 itself has 24 bits of precision. In
memory a value is a word of 64 bits, whose upper bits mean nothing until `reduced` drops them. In a message the lower 32
bits of all values come first, one after the other, then the 8 or 16 above them of all values (of 43 bits: 8, and then
the top 3 of eight values at a time in three bytes), then zeros up to a whole word, and the weight in 64 bits at the
end: a weight has up to 40 bits, and a sum of weights must not wrap either.

Guarantee: the sum of what was packed, unpacked, is the sum of the values as Python integers wherever that is within
`[-2^(width-1), 2^(width-1))`, whatever multiples of `2^width` masks have added and taken off meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilateral.errors import ProtocolError

Width = Literal[32, 40, 43, 48, 64]
WidthSetting = Literal["auto", 32, 40, 43, 48, 64]
WIDEST: Final[Width] = 64
WIDTHS: Final[tuple[Width, ...]] = (32, 40, 43, 48, 64)
LOWER_BITS: Final = 32
UPPER_TYPES: Final[dict[int, np.dtype[Any]]] = {40: np.dtype("<u1"), 43: np.dtype("<u2"), 48: np.dtype("<u2")}
"""What masks have above the lower 32 bits of a value; of 43 bits, the ring drops five of these."""
_PLANE_TYPES: Final[dict[int, np.dtype[Any]]] = {40: np.dtype("<u1"), 43: np.dtype("<u1"), 48: np.dtype("<u2")}
"""What a message has there, a value."""
_TOP_BITS: Final = {43: 3}
"""Bits of a value above that plane, eight values together in as many bytes."""
CHUNK_VALUES: Final = 1 << 14
_WORD_BYTES = 4
_WEIGHT_WORDS = 2
_TOP_FROM: Final = 40
_PLACES: Final = np.arange(0, 24, 3, dtype="<u4")


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
    return count + -(-_num_upper_bytes(count, width) // _WORD_BYTES) + _WEIGHT_WORDS


def _num_upper_bytes(count: int, width: Width) -> int:
    plane = _PLANE_TYPES[width].itemsize * count if width in _PLANE_TYPES else 0
    return plane + _TOP_BITS.get(width, 0) * -(-count // 8)


def unpacked(message: Tensor, width: Width) -> Tensor:
    """All values of a packed vector as new words of 64 bits, with their signs, the weight at the end."""
    length = len(message)
    count = length if width == WIDEST else (length - _WEIGHT_WORDS) * LOWER_BITS // width + 1
    while packed_length(count, width) > length:  # what fills up the last word is no value
        count -= 1
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
    lower, upper, top = _planes(words, count, width)
    wide = values.view(np.uint64)
    for chunk in _chunks(count):
        lower[chunk] = wide[chunk].astype("<u4")
        if upper is not None:
            upper[chunk] = (wide[chunk] >> np.uint64(LOWER_BITS)).astype(upper.dtype)
        if top is not None:
            top[_groups(chunk)] = _together((wide[chunk] >> np.uint64(_TOP_FROM)).astype("<u4"))
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
    lower, upper, top = _planes(words, count, width)
    for chunk in _chunks(count):
        np.add(wide[chunk], lower[chunk], out=wide[chunk])
        if upper is not None:
            add_upper(wide[chunk], upper[chunk])
        if top is not None:
            wide[chunk] += _apart(top[_groups(chunk)], chunk.stop - chunk.start) << np.uint64(_TOP_FROM)
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
    count = num_values - 1
    above = np.ascontiguousarray(message.numpy())[count:-_WEIGHT_WORDS].view(np.uint8)
    end, bits = _num_upper_bytes(count, width), _TOP_BITS.get(width, 0)
    group = int.from_bytes(above[end - bits : end].tobytes(), "little")
    spare = bits * (-count % 8)  # of the last group
    if above[end:].any() or (spare and group >> (8 * bits - spare)):
        raise ProtocolError(f"{what}: expected zeros up to the end of the last word of the values.")


def _planes(
    words: NDArray[np.int32], count: int, width: Width
) -> tuple[NDArray[np.uint32], NDArray[np.uint8 | np.uint16] | None, NDArray[np.uint8] | None]:
    """Views of the lower, the upper and the top bits of `count` values; the last by groups of eight values."""
    lower = words[:count].view("<u4")
    if width not in _PLANE_TYPES:
        return lower, None, None
    upper = words[count:-_WEIGHT_WORDS].view(_PLANE_TYPES[width])[:count]
    if width not in _TOP_BITS:
        return lower, upper, None
    above = words[count:-_WEIGHT_WORDS].view(np.uint8)
    return lower, upper, above[count : _num_upper_bytes(count, width)].reshape(-1, _TOP_BITS[width])


def _chunks(count: int) -> Iterator[slice]:
    """Parts of so many values; each but the last has whole groups of eight."""
    size = max(CHUNK_VALUES // 8 * 8, 8)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _groups(chunk: slice) -> slice:
    return slice(chunk.start // 8, -(-chunk.stop // 8))


def _together(values: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Three bits each of eight values, in three bytes."""
    whole = np.zeros(-(-len(values) // 8) * 8, dtype="<u4")
    whole[: len(values)] = values & np.uint32(7)
    whole <<= np.tile(_PLACES, len(whole) // 8)
    words: NDArray[np.uint32] = np.bitwise_or.reduce(whole.reshape(-1, 8), 1).astype("<u4")
    return words[:, None].view(np.uint8)[:, :3]


def _apart(groups: NDArray[np.uint8], count: int) -> NDArray[np.uint64]:
    """The inverse: the first `count` values."""
    whole = np.zeros((len(groups), 4), dtype=np.uint8)
    whole[:, :3] = groups
    found = (whole.view("<u4") >> _PLACES) & np.uint32(7)
    return found.reshape(-1)[:count].astype(np.uint64)
