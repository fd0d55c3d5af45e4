"""Numeric arrays of a MATLAB file, format 5 (v6 and v7): all that SVHN's files have in them.

    header (128 bytes) | element | element | ...
    element: type (4 bytes) | number of bytes (4 bytes) | that many bytes, padded to 8
    element of at most 4 bytes: type (2) | number of bytes (2) | 4 bytes
    array: an element of elements: flags, sizes, name, numbers; or the same, packed by zlib

No length is believed: every one is compared with the bytes that are there, and a packed element may unfold to as much
as `unfolded_limit` says. Numbers keep the type in which they are stored.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from bilateral.data.bounded import unfolded_limit

_HEADER_BYTES: Final = 128
_ARRAY, _PACKED, _INT32, _UINT32, _INT8 = 14, 15, 5, 6, 1
_NUMERIC_CLASSES: Final = range(6, 16)
_COMPLEX: Final = 0x0800
_DTYPES: Final = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}


def read_mat(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names that are in the file; `ValueError` if it is no such file."""
    content = path.read_bytes()
    mark = content[126:_HEADER_BYTES]
    if mark not in (b"IM", b"MI"):
        raise ValueError("it does not start as a MATLAB file of format 5 does")
    order: Literal["little", "big"] = "big" if mark == b"MI" else "little"
    if int.from_bytes(content[124:126], order) != 0x0100:
        raise ValueError("it is a MATLAB file of another format than 5")
    found: dict[str, NDArray[Any]] = {}
    elements = _Elements(memoryview(content)[_HEADER_BYTES:], order)
    while elements.left:
        kind, data = elements.take(padded=False)
        if kind == _PACKED:
            kind, data = _Elements(_unpacked(data, order), order).take()
        if kind == _ARRAY:
            name, array = _array(_Elements(data, order), names)
            if array is not None:
                found[name] = array
    return found


class _Elements:
    """Takes one element after the other from a piece of a file."""

    def __init__(self, content: memoryview, order: Literal["little", "big"]) -> None:
        self._content = content
        self.order = order
        self._place = 0

    @property
    def left(self) -> bool:
        return self._place < len(self._content)

    def take(self, *, padded: bool = True) -> tuple[int, memoryview]:
        """The type and the bytes of the next element. Packed ones are not padded, whole arrays always end at 8."""
        tag = self._content[self._place : self._place + 8]
        first, size = self._number(tag[:4]), self._number(tag[4:8])
        start = self._place + 8
        if first >> 16:  # a small one: both numbers in the first four bytes, and the content in the others
            first, size, start = first & 0xFFFF, first >> 16, self._place + 4
        end = start + size
        if len(tag) < 8 or end > len(self._content) or (start == self._place + 4 and size > 4):
            raise ValueError(f"an element of {size} bytes is cut off")
        data = self._content[start:end]
        self._place = self._place + 8 if start == self._place + 4 else end + (-size % 8 if padded else 0)
        return first, data

    def numbers(self, kind: int, what: str) -> list[int]:
        """An element of 32-bit integers."""
        found, data = self.take()
        if found != kind or len(data) % 4:
            raise ValueError(f"an array's {what} are of another kind")
        return [self._number(data[place : place + 4]) for place in range(0, len(data), 4)]

    def _number(self, data: memoryview) -> int:
        return int.from_bytes(data, self.order)


def _unpacked(data: memoryview, order: Literal["little", "big"]) -> memoryview:
    """The one element that is packed in another. It says first how long it is."""
    limit = unfolded_limit(len(data))
    unpacker = zlib.decompressobj()
    tag = unpacker.decompress(data, 8)
    size = int.from_bytes(tag[4:8], order)
    if 8 + size > limit:
        raise ValueError(f"a packed element of {len(data)} bytes unfolds to {size}, at most {limit} are read")
    content = tag + unpacker.decompress(unpacker.unconsumed_tail, size + 8)
    if len(content) < 8 + size:
        raise ValueError("a packed element is cut off")
    return memoryview(content)


def _array(elements: _Elements, names: Collection[str]) -> tuple[str, NDArray[Any] | None]:
    """The name of an array and, if it is asked for, its numbers."""
    flags = elements.numbers(_UINT32, "flags")
    if not flags or flags[0] & 0xFF not in _NUMERIC_CLASSES:
        return "", None
    shape = elements.numbers(_INT32, "sizes")
    kind, raw_name = elements.take()
    name = bytes(raw_name).decode("latin-1")
    if kind != _INT8 or name not in names:
        return name, None
    kind, data = elements.take()
    if kind not in _DTYPES or flags[0] & _COMPLEX:
        raise ValueError(f"the array {name} is not made of real numbers")
    dtype = np.dtype(_DTYPES[kind]).newbyteorder("<" if elements.order == "little" else ">")
    if not 2 <= len(shape) <= 8 or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"the array {name} says shape {shape} of {dtype}, and has {len(data)} bytes")
    values: NDArray[Any] = np.frombuffer(data, dtype=dtype).reshape(shape, order="F")
    return name, values.astype(dtype.newbyteorder("="), copy=False)
