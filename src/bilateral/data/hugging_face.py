"""A Hugging Face dataset that `save_to_disk` wrote, if `datasets` is installed; a row is read when it is needed.

    [data]
    name = "hugging-face"
    options = { inputs = "tokens", target = "label", length = 64, num_outputs = 2 }
    [data.sites.clinic-a]
    path = "clinic-a"

`inputs` is a column of pictures, of numbers, or of numbers of tokens, which are cut or filled to `length`. Nothing is
ever downloaded, and no script of a dataset is run.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from bilateral.data.dataset import Dataset, LazySplit
from bilateral.data.files import reading
from bilateral.data.mapped import MappedSamples
from bilateral.data.sampling import hold_out
from bilateral.data.task import Task
from bilateral.errors import DataError, MissingDataError


class _Rows(TorchDataset[tuple[Tensor, Any]]):
    def __init__(self, table: Any, inputs: str, target: str, length: int | None, padding: int) -> None:
        self.table, self.inputs, self.target, self.length, self.padding = table, inputs, target, length, padding

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        row = self.table[index]
        return self._input(row[self.inputs]), row[self.target]

    def _input(self, value: Any) -> Tensor:
        if hasattr(value, "convert"):  # a picture
            pixels = np.asarray(value, dtype=np.float32) / 255
            return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0).copy())
        values = torch.as_tensor(value)
        if self.length is not None:
            filled = torch.full((self.length,), self.padding, dtype=values.dtype)
            filled[: len(values)] = values[: self.length]
            return filled
        return values


def load_hugging_face(
    data_dir: Path | None = None,
    *,
    path: str,
    inputs: str,
    target: str,
    task: Task = "classification",
    num_outputs: int | None = None,
    length: int | None = None,
    padding: int = 0,
    seed: int = 0,
    title: str = "hugging-face",
) -> Dataset:
    """A dataset with `train` and `test`, or one of which a fifth is held out, drawn by `seed`."""
    try:
        library = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            "Reading a Hugging Face dataset takes `datasets`, which is not installed.",
            remedy="Run `pip install datasets`, or write the data as Parquet or .npz.",
        ) from error
    folder = Path(path) if data_dir is None else data_dir / path
    if not folder.is_dir():
        raise MissingDataError(
            f"Expected the folder of a dataset at {folder}, found none.", remedy="Write it with `save_to_disk(path)`."
        )
    with reading(folder, "whoever wrote it"):
        found = library.load_from_disk(str(folder))
    tables = dict(found) if isinstance(found, dict) else {"all": found}
    for name, table in tables.items():
        if absent := [column for column in (inputs, target) if column not in table.column_names]:
            raise DataError(
                f"{name} of {folder} lacks the columns {', '.join(absent)}; it has {', '.join(table.column_names)}.",
                remedy="Name them as `inputs` and `target`.",
            )

    def samples(table: Any) -> MappedSamples:
        return MappedSamples(_Rows(table, inputs, target, length, padding), task, str(folder))

    if "train" in tables and "test" in tables:
        train, test = samples(tables["train"]), samples(tables["test"])
    else:
        whole = samples(next(iter(tables.values())))
        train, test = (whole.part(torch.from_numpy(part)) for part in hold_out(np.zeros(len(whole)), seed))
    names = tuple(getattr(next(iter(tables.values())).features[target], "names", None) or ())
    outputs = num_outputs or len(names)
    if not outputs:
        raise DataError(
            f"{folder} does not say how many classes (or values) {target} has.", remedy="Give `num_outputs`."
        )
    return Dataset(str(title), task, LazySplit(train), LazySplit(test), outputs, names if len(names) == outputs else ())
