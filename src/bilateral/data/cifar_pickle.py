"""Reading CIFAR's python batches without letting the file run code.

A pickle is a program: it may name any importable function and call it. This reader resolves only the handful
of names that a pickled uint8 array needs, and resolves them to the inert stand-ins below, so that neither
numpy nor anything else ever sees state chosen by the file. Any other name is refused before it is imported.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bilateral.data.files import reading
from bilateral.errors import DataError


class _PickledDtype:
    """Stands for `numpy.dtype`: remembers its code, and ignores the rest of its state."""

    __slots__ = ("code",)

    def __init__(self, code: str | bytes, *_: object) -> None:
        if not isinstance(code, str | bytes):
            raise pickle.UnpicklingError(f"a type of numbers named by {type(code).__name__}")
        self.code = code.decode("ascii") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and flags have no meaning for single bytes."""


class _PickledArray:
    """Stands for an array under construction: collects shape, type and bytes, and checks them at the end."""

    __slots__ = ("code", "column_major", "content", "shape")

    def __init__(self, *_: object) -> None:
        self.shape: object = ()
        self.code = ""
        self.content: object = b""
        self.column_major: object = False

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, self.shape, dtype, self.column_major, self.content = state
        self.code = dtype.code

    def to_numpy(self) -> NDArray[np.uint8]:
        shape = self.shape
        if self.code not in ("u1", "|u1", "uint8"):
            raise ValueError(f"an array of type {str(self.code)[:20]!r} instead of uint8")
        if not isinstance(self.content, bytes | bytearray):
            raise ValueError("an array without bytes")
        if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
            raise ValueError("an array without a shape of whole numbers")
        if len(shape) > 4 or len(self.content) != math.prod(shape):
            raise ValueError(f"{len(self.content)} bytes for an array of shape {shape[:8]}")
        values = np.frombuffer(self.content, dtype=np.uint8)
        return values.reshape(shape, order="F" if self.column_major is True else "C")


class _Function:
    """A function that a pickle may call, and of which it can change nothing: pickles can set attributes."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("state for a function")


def _array_from_buffer(content: bytes, dtype: _PickledDtype, shape: tuple[int, ...], order: str) -> _PickledArray:
    """How pickle protocol 5 builds an array."""
    array = _PickledArray()
    array.__setstate__((1, shape, dtype, order == "F", content))
    return array


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How pickle protocol 2 spells bytes when written by Python 3; no other codec is needed."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("text in an unexpected encoding")
    return text.encode("latin-1")


_STAND_INS: Final[Mapping[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): _PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy.core.numeric", "_frombuffer"): _Function(_array_from_buffer),
    ("numpy._core.numeric", "_frombuffer"): _Function(_array_from_buffer),
    ("_codecs", "encode"): _Function(_encode_latin1),
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


def read_cifar_pickle(
    path: Path, label_key: str, origin: str = "the set's official page"
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images (NCHW) and labels of one batch file; `label_key` is "labels" or "fine_labels".

    Whatever is wrong with the file is a `DataError`, and no memory is asked for but what its bytes need.
    """
    with reading(path, origin):
        content = path.read_bytes()
        check_operations(content)
        unpickler = _RestrictedUnpickler(io.BytesIO(content), encoding="bytes")
        unpickler.path = path
        return _images_and_labels(unpickler.load(), label_key)


def check_operations(content: bytes) -> None:
    """Refuse a pickle that asks for more than it has: a place in the memo, or a text, beyond the file's own length.

    The unpickler makes room for what a pickle announces before it looks whether it is there: a memo with the index
    2^31 takes 34 GB. Here every operation is looked at first, and none is done; an announced length beyond the end of
    the file is an error of `genops`.
    """
    for operation, argument, _ in pickletools.genops(content):
        if "PUT" in operation.name and not 0 <= (argument or 0) < len(content):
            raise ValueError(f"a memo of {argument} places in a file of {len(content)} bytes")


def _images_and_labels(batch: object, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not isinstance(batch, dict):
        raise ValueError(f"a {type(batch).__name__} instead of a batch")
    # Batches written by Python 2 have byte keys, those written again by Python 3 have text keys.
    fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    images, labels = fields.get("data"), fields.get(label_key)
    if not isinstance(images, _PickledArray):
        raise ValueError("no array `data` in it")
    # A list in a list can be the same one many times over: small in the file, and beyond all memory as an array.
    if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 1 << 62 for label in labels):
        raise ValueError(f"no list of whole numbers `{label_key}` in it")
    return images.to_numpy().reshape(-1, 3, 32, 32), np.asarray(labels, dtype=np.int64)
