"""What users have at hand where a `Split` wants tensors and names: numpy's arrays, lists of texts.

Whatever cannot be converted comes back as it was: `validate` refuses it, and says where it was found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def tensor_if_array(value: Any) -> Any:
    """A tensor of the same numbers for an array of numbers. Read-only memory and foreign byte orders are copied."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        return value
    native = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
    return torch.from_numpy(native)


def tuple_if_list(value: Any) -> Any:
    """A tuple for a list or an array of one dimension."""
    if isinstance(value, np.ndarray):
        return tuple(value.tolist()) if value.ndim == 1 else value
    return tuple(value) if isinstance(value, list) else value


def holds_text(value: Any) -> bool:
    """Whether an array or a list is one of texts, such as names of classes."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "USTO" and any(isinstance(item, str | bytes) for item in value.flat)
    return isinstance(value, tuple | list) and any(isinstance(item, str | bytes) for item in value)


def described(value: Any) -> str:
    """What came instead of what was expected: `int`, `ndarray of object`, `tuple of 3`, `nothing`."""
    if value is None:
        return "nothing (None)"
    if isinstance(value, np.ndarray):
        return f"ndarray of {value.dtype}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
