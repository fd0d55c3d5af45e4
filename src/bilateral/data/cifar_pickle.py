"""Reading CIFAR's python batches without letting the file run code.

A pickle is a program: it may name any importable function and call it. This reader resolves only the handful
of names that a pickled uint8 array needs, and resolves them to the inert stand-ins below, so that neither
numpy nor anything else ever sees state chosen by the file. Any other name is refused before it is imported.

Nor may it ask for the same thing again and again, which costs it a few bytes each time: all that its calls produce is
no longer than the file (`_Allowance`), and operations that no batch needs are refused before the first is done
(`check_operations`).
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

_MAX_CODE: Final = 16
_MAX_TUPLES: Final = 64
"""Beside arguments of calls. An array has three."""
_MAX_NUMBER: Final = 1 << 128
_PLAIN: Final = frozenset(
    [
        "PROTO",
        "FRAME",
        "STOP",
        "MARK",
        "POP",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "INT",
        "LONG",
        "LONG1",
        "LONG4",
        "BININT",
        "BININT1",
        "BININT2",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
        "EMPTY_LIST",
        "LIST",
        "APPEND",
        "APPENDS",
        "EMPTY_DICT",
        "DICT",
        "SETITEM",
        "SETITEMS",
        "EMPTY_TUPLE",
        "GLOBAL",
        "STACK_GLOBAL",
        "REDUCE",
        "BUILD",
    ]
)
_TUPLES: Final = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_GETS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})


class _PickledDtype:
    """Stands for `numpy.dtype`: remembers its code, and ignores the rest of its state."""

    __slots__ = ("code",)

    def __init__(self, code: str | bytes, *_: object) -> None:
        if not isinstance(code, str | bytes) or len(code) > _MAX_CODE:
            raise pickle.UnpicklingError(f"a type of numbers named by a {type(code).__name__}, or a long one")
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


class _Allowance:
    """How many bytes the calls of a pickle may still produce: a true one encodes each of its texts once."""

    __slots__ = ("_left",)

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def encode_latin1(self, text: str, encoding: str) -> bytes:
        """How pickle protocol 2 spells bytes when written by Python 3; no other codec is needed."""
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError("text in an unexpected encoding")
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError("calls that produce more bytes than the file has")
        return text.encode("latin-1")


_STAND_INS: Final[Mapping[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): _PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy.core.numeric", "_frombuffer"): _Function(_array_from_buffer),
    ("numpy._core.numeric", "_frombuffer"): _Function(_array_from_buffer),
}


class _RestrictedUnpickler(pickle.Unpickler):
    """Resolves the names in `_STAND_INS` and `_codecs.encode`, and refuses every other."""

    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.path = path
        self._names = {**_STAND_INS, ("_codecs", "encode"): _Function(_Allowance(len(content)).encode_latin1)}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self._names[module_name, global_name]
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
        return _images_and_labels(_RestrictedUnpickler(content, path).load(), label_key)


def check_operations(content: bytes) -> None:
    """Refuse a pickle that asks for more than it has, and operations that no batch of images needs.

    The unpickler makes room for what a pickle announces before it looks whether it is there: a memo with the index
    2^31 takes 34 GB. Here every operation is looked at first, and none is done; an announced length beyond the end of
    the file is an error of `genops`.

    Whatever can be a key of a dictionary must be quick to hash. Tuples are hashed part by part, without end if each has
    the one before it twice, and without a limit of depth. So a tuple is never fetched from the memo, and few are left
    over by calls. Numbers are hashed digit by digit.
    """
    memo_is_tuple: dict[int, bool] = {}
    num_tuples, is_tuple = 0, False
    for operation, argument, position in pickletools.genops(content):
        name = operation.name
        if name in _PUTS:
            index = len(memo_is_tuple) if argument is None else int(argument)
            if not 0 <= index < len(content):
                raise ValueError(f"a memo of {argument} places in a file of {len(content)} bytes")
            memo_is_tuple[index] = is_tuple
            continue  # what is on top of the stack is still there
        if name in _GETS and memo_is_tuple.get(int(argument or 0), False):
            raise ValueError(f"a tuple that is there twice, at byte {position}")
        if name not in _PLAIN and name not in _TUPLES and name not in _GETS:
            raise ValueError(f"the operation {name}, which no batch of images needs, at byte {position}")
        if type(argument) is int and abs(argument) >= _MAX_NUMBER:
            raise ValueError(f"a whole number of {argument.bit_length()} bits, at byte {position}")
        num_tuples += is_tuple and name != "REDUCE"
        if num_tuples > _MAX_TUPLES:
            raise ValueError(f"more than {_MAX_TUPLES} tuples, at byte {position}")
        is_tuple = name in _TUPLES


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
