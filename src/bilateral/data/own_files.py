"""A party's own data from one file of arrays (`numpy.savez`): what a site of a deployment has, and nobody else opens.

    [data]
    name = "npz"
    options = { num_outputs = 2 }
    [data.sites.hospital-a]
    path = "train.npz"
    part = "train"
    [data.server]
    path = "test.npz"
    part = "test"

The file holds `x_train` and `y_train`, `x_test` and `y_test`, with the sample index first; nothing in it is scaled or
moved. Arrays of Python objects are refused: to read them is to run them.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from bilateral.data.bounded import open_arrays
from bilateral.data.dataset import TASKS_IN_WORDS, Dataset, Split
from bilateral.data.files import reading
from bilateral.data.task import Task
from bilateral.errors import DataError, MissingDataError

Part = Literal["both", "train", "test"]
MAX_INFERRED: Final = 100_000
"""Classes that a file may imply by its largest label: a network has a row of weights for each."""
_REMEDY: Final = "Write it with numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)."


def load_npz(
    data_dir: Path | None = None,
    *,
    path: str,
    task: Task = "classification",
    num_outputs: int | None = None,
    part: Part = "both",
    title: str = "npz",
) -> Dataset:
    """The arrays of a file. A relative `path` is looked for in `data_dir`, if there is one.

    `num_outputs`: by default one more than the file's largest label, or the width of the targets; sites that do not see
    all classes need it. `part`: train or test if the file has these arrays only, for a party that looks at one split (a
    site trains, a server tests); the other split is then the same one. `title`: what the data are called in reports.
    """
    if task not in get_args(Task):
        raise DataError(f"Expected `task` to be {TASKS_IN_WORDS}, got {task!r}.")
    if part not in get_args(Part):
        raise DataError(f"Expected `part` to be one of {', '.join(get_args(Part))}, got {part!r}.")
    if num_outputs is not None and (type(num_outputs) is not int or num_outputs < 1):
        raise DataError(f"Expected `num_outputs` to be a positive integer, got {num_outputs!r}.")
    file = _find(path, data_dir)
    splits = {chosen: _read_split(file, chosen, task) for chosen in (("train", "test") if part == "both" else (part,))}
    train, test = splits.get("train", splits.get("test")), splits.get("test", splits.get("train"))
    assert train is not None and test is not None
    return Dataset(str(title), task, train, test, num_outputs or _num_outputs(task, train, test))


def _find(path: str, data_dir: Path | None) -> Path:
    if not isinstance(path, str) or not path:
        raise DataError(f"Expected `path` to name a file, got {path!r}.")
    file = Path(path) if data_dir is None else data_dir / path
    if not file.is_file():
        raise MissingDataError(
            f"Expected a file of arrays at {file}, found none.",
            remedy="Put it there, or name another with `path`; a relative one is looked for in the data directory.",
        )
    return file


def _read_split(file: Path, part: str, task: Task) -> Split:
    if not zipfile.is_zipfile(file):
        raise DataError(f"Expected a file of named arrays at {file}, got one of another format.", remedy=_REMEDY)
    with reading(file, "whoever wrote it"), open_arrays(file) as arrays:
        if missing := [key for key in (f"x_{part}", f"y_{part}") if key not in arrays.files]:
            found = ", ".join(sorted(arrays.files)[:10]) or "nothing"
            raise DataError(
                f"Expected the arrays x_{part} and y_{part} in {file}, missing: {', '.join(missing)}; found: {found}.",
                remedy=f'{_REMEDY} With arrays of one part only, set `part` to "train" or "test".',
            )
        inputs, targets = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if not isinstance(inputs, np.ndarray) or not isinstance(targets, np.ndarray):  # numpy hands out bytes
            raise DataError(f"Expected arrays named x_{part} and y_{part} in {file}, got other bytes.", remedy=_REMEDY)
    return Split(_inputs(inputs, f"x_{part} of {file}"), _targets(targets, task, f"y_{part} of {file}"))


def _inputs(values: NDArray[Any], where: str) -> torch.Tensor:
    if values.dtype.kind not in "biuf":
        raise DataError(f"Expected numbers in {where}, got {values.dtype}.", remedy="Convert them to float32.")
    return _float32(values)


def _targets(values: NDArray[Any], task: Task, where: str) -> torch.Tensor:
    if task in ("regression", "multi-label"):
        targets = _inputs(values, where)
        return targets.unsqueeze(1) if targets.ndim == 1 else targets
    if values.dtype.kind not in "biu":
        raise DataError(
            f"Expected class numbers (integers) in {where}, got {values.dtype}.",
            remedy='Number the classes from 0 and store them as int64, or set `task` to "regression".',
        )
    if values.size and values.dtype.kind == "u" and values.max() > np.iinfo(np.int64).max:
        raise DataError(f"Expected class numbers in {where}, got {values.max()}.", remedy="Number the classes from 0.")
    return torch.from_numpy(np.asarray(values, dtype=np.int64, order="C"))


def _float32(values: NDArray[Any]) -> torch.Tensor:
    with np.errstate(over="ignore"):  # too large becomes infinite, which validation refuses by row
        return torch.from_numpy(np.asarray(values, dtype=np.float32, order="C"))


def _num_outputs(task: Task, train: Split, test: Split) -> int:
    if task in ("regression", "multi-label"):
        return int(train.targets.shape[1]) if train.targets.ndim == 2 else 1
    largest = max(int(split.targets.max()) if split.targets.numel() else 0 for split in (train, test))
    if largest >= MAX_INFERRED:
        raise DataError(
            f"Expected classes numbered from 0, got a label {largest}.",
            remedy="Number the classes from 0; if there are really so many, say so with `num_outputs`.",
        )
    return max(largest + 1, 1)
