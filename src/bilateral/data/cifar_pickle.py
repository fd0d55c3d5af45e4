"""Reading CIFAR's python batches without letting the file run code.

A pickle is a program: it may name any importable function and call it. This reader resolves only the handful
of names that a pickled uint8 array needs, and resolves them to the inert stand-ins below, so that neither
numpy nor anything else ever sees state chosen by the file. Any other name is refused before it is imported.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bilateral.errors import DataError


class _PickledDtype:
    """Stands for `numpy.dtype`: remembers its code, and ignores the rest of its state."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)

    def __setstate__(self, state: object) -> None:
        """Byte order and flags have no meaning for single bytes."""


class _PickledArray:
    """Stands for an array under construction: collects shape, type and bytes, and checks them at the end."""

    def __init__(self, *_: object) -> None:
        self.shape: tuple[int, ...] = ()
        self.code = ""
        self.content = b""
        self.column_major = False

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, self.shape, dtype, self.column_major, self.content = state
        self.code = dtype.code

    def to_numpy(self) -> NDArray[np.uint8]:
        if self.code not in ("u1", "|u1", "uint8"):
            raise ValueError(f"an array of type {self.code!r} instead of uint8")
        if len(self.content) != math.prod(self.shape):
            raise ValueError(f"{len(self.content)} bytes for an array of shape {self.shape}")
        values = np.frombuffer(self.content, dtype=np.uint8)
        return values.reshape(self.shape, order="F" if self.column_major else "C")


def _array_from_buffer(content: bytes, dtype: _PickledDtype, shape: tuple[int, ...], order: str) -> _PickledArray:
    """How pickle protocol 5 builds an array."""
    array = _PickledArray()
    array.__setstate__((1, shape, dtype, order == "F", content))
    return array


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How pickle protocol 2 spells bytes when written by Python 3; no other codec is needed."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"unexpected text encoding {encoding!r}")
    return text.encode("latin-1")


_STAND_INS: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): _PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy.core.numeric", "_frombuffer"): _array_from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _array_from_buffer,
    ("_codecs", "encode"): _encode_latin1,
}


class _RestrictedUnpickler(pickle.Unpickler):
    """Resolves the names in `_STAND_INS` and refuses every other."""

    path: Path

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _STAND_INS[module_name, global_name]
        except KeyError:
            raise DataError(
                f"Expected only image arrays and labels in {self.path}, but it asks for "
                f"`{module_name}.{global_name}`, which could run code: refused, and not run.",
                remedy="Do not trust this file; get the set again from its official page.",
            ) from None


def read_cifar_pickle(path: Path, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images (NCHW) and labels of one batch file; `label_key` is "labels" or "fine_labels"."""
    with path.open("rb") as stream:
        unpickler = _RestrictedUnpickler(stream, encoding="bytes")
        unpickler.path = path
        batch = unpickler.load()
    # Batches written by Python 2 have byte keys, those written again by Python 3 have text keys.
    fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    images = fields["data"].to_numpy().reshape(-1, 3, 32, 32)
    return images, np.asarray(fields[label_key], dtype=np.int64)
