"""How much a file may unfold to, and archives of arrays that are asked so before anything is read.

A packed file can say of itself that it holds any amount of numbers, and a few kilobytes of it can hold gigabytes of
zeros. Real data do not shrink to a hundredth; what small files unfold to does not matter.

Formal guarantee (tests/data/test_hostile_files.py): memory for an array is asked for only if its file has that many
bytes, or packed ones that may stand for as many.
"""

from __future__ import annotations

import ast
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

MAX_RATIO: Final = 100
ALWAYS_ALLOWED_BYTES: Final = 4_000_000
_MAX_HEADER_BYTES: Final = 10_000
"""As numpy itself has it."""
_LENGTH_BYTES: Final = {1: 2, 2: 4, 3: 4}


def unfolded_limit(num_bytes: int) -> int:
    """How many bytes a packed file of `num_bytes` may stand for."""
    return max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * num_bytes)


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """As `numpy.load` opens an .npz, without pickles, once every array in it is known to have the bytes it says."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        total, limit = sum(entry.file_size for entry in entries), unfolded_limit(path.stat().st_size)
        if total > limit:
            raise ValueError(f"it unfolds to {total} bytes, at most {limit} are read from a file of its size")
        for entry in entries:
            with archive.open(entry) as member:
                _check_array(member, entry)
    with np.load(path, allow_pickle=False) as arrays:
        yield arrays


def _check_array(member: IO[bytes], entry: zipfile.ZipInfo) -> None:
    """Refuse an array whose shape and type do not make up the bytes that follow its header."""
    start = member.read(8)
    if start[:6] != b"\x93NUMPY":
        return  # no array: numpy hands out its bytes
    length_bytes = _LENGTH_BYTES.get(start[6])
    if length_bytes is None:
        raise ValueError(f"{entry.filename} has version {start[6]} of numpy's format")
    header_bytes = int.from_bytes(member.read(length_bytes), "little")
    if header_bytes > _MAX_HEADER_BYTES:
        raise ValueError(f"the header of {entry.filename} has {header_bytes} bytes")
    shape, dtype = _described(member.read(header_bytes).decode("latin-1"))
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} holds Python objects, and to read them is to run them")
    content = entry.file_size - 8 - length_bytes - header_bytes
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != content:
        raise ValueError(f"{entry.filename} says shape {shape} of {dtype}, and has {content} bytes")
    if math.prod(max(size, 1) for size in shape) * max(dtype.itemsize, 1) >= 1 << 62:
        raise ValueError(f"{entry.filename} has a shape that no array has")


def _described(header: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    described = ast.literal_eval(header)
    if not isinstance(described, dict) or set(described) != {"descr", "fortran_order", "shape"}:
        raise ValueError("an array's header has other entries than descr, fortran_order and shape")
    shape, descr = described["shape"], described["descr"]
    if not isinstance(shape, tuple) or not all(type(size) is int for size in shape):
        raise ValueError("an array's header has no shape of whole numbers")
    return shape, np.lib.format.descr_to_dtype(descr)
