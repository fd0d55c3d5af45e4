"""Inputs without targets, from a file: what somebody asks a model about."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bilateral.data.bounded import open_arrays
from bilateral.data.files import reading
from bilateral.errors import DataError, MissingDataError

_REMEDY = "Write .npy or .npz (one array, samples first) or .csv (a line a sample, numbers only, perhaps a header)."


def read_inputs(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Samples of this shape (float64), or flat ones of as many numbers; nothing is scaled."""
    if not path.is_file():
        raise MissingDataError(f"There is no file {path}.", remedy=_REMEDY)
    with reading(path, "whoever wrote it"):
        found = _read(path)
    count = math.prod(shape)
    if found.ndim < 1 or not len(found) or found.dtype.kind not in "fiu":
        raise DataError(f"{path} holds {found.dtype} of shape {found.shape}.", remedy=_REMEDY)
    if tuple(found.shape[1:]) not in (shape, (count,)):
        raise DataError(
            f"{path} holds samples of shape {tuple(found.shape[1:])}; the model takes {shape}.",
            remedy=f"Give samples of that shape, or of {count} numbers each.",
        )
    inputs = torch.from_numpy(np.array(found, dtype=np.float64)).reshape(-1, *shape)
    if not bool(torch.isfinite(inputs).all()):
        raise DataError(f"{path} holds NaN or infinite numbers.", remedy="Fill the gaps in the data.")
    return inputs


def _read(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(
            path, mmap_mode="r", allow_pickle=False
        )  # mapped: refused where the file is shorter than it says
    if path.suffix == ".npz":
        with open_arrays(path) as arrays:
            if len(arrays.files) != 1:
                raise DataError(f"{path} holds {len(arrays.files)} arrays, expected one.", remedy=_REMEDY)
            return arrays[arrays.files[0]]
    if path.suffix != ".csv":
        raise DataError(f"{path} ends in {path.suffix or 'nothing'}.", remedy=_REMEDY)
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    return np.loadtxt(path, delimiter=",", ndmin=2, skiprows=0 if _is_numbers(first) else 1)


def _is_numbers(line: str) -> bool:
    try:
        [float(part) for part in line.split(",")]
    except ValueError:
        return False
    return True
