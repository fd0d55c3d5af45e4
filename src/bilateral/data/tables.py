"""Tables of a user's own, CSV or Parquet: a row a sample, a column a feature or a target.

    [data]
    name = "csv"
    options = { target = "diseased", task = "classification", num_outputs = 2 }
    [data.sites.hospital-a]
    path = "hospital-a.csv"
    [data.server]
    path = "server.csv"

Features are the columns that are named, or all but the targets and the site, in the order of the file. Texts are
one-hot by the `categories` that a plan lists, so that they mean the same at every site; nothing is scaled but by the
numbers that a plan lists. Values that are missing are refused by row and column.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from bilateral.data.dataset import TASKS_IN_WORDS, Dataset, Split
from bilateral.data.files import reading
from bilateral.data.sampling import hold_out
from bilateral.data.task import Task
from bilateral.errors import DataError, MissingDataError

Columns = dict[str, list[Any]]
_MISSING: Final = ("", "na", "nan", "null", "none", "?")


def load_table(
    read: Callable[[Path], Columns],
    data_dir: Path | None = None,
    *,
    path: str,
    target: str | list[str],
    features: list[str] | None = None,
    categories: Mapping[str, list[str]] | None = None,
    scale: Mapping[str, list[float]] | None = None,
    task: Task = "classification",
    num_outputs: int | None = None,
    classes: list[str] | None = None,
    site: str | None = None,
    test_path: str | None = None,
    seed: int = 0,
    title: str = "table",
) -> Dataset:
    """`target`: a column, or several (regression, or several labels). `classes`: what class names are in it, in order.

    `scale`: `{age = [54, 9]}` makes (age - 54) / 9. `site`: a column that says where a row came from, for
    `federation.partition = "site"`. `test_path`: a second file to test on; without one, a fifth of the rows is held
    out, drawn by `seed`, of every class its part.
    """
    if task == "segmentation":
        raise DataError("A table has no maps of classes.", remedy=f"Expected the task among {TASKS_IN_WORDS}.")
    targets = [target] if isinstance(target, str) else list(target)
    table = _find(path, data_dir)
    columns = read(table)
    left_out = {*targets, *([site] if site else [])}
    chosen = list(features) if features is not None else [name for name in columns if name not in left_out]
    if not chosen:
        raise DataError(f"{table} has no column but the target.", remedy="Name the features' columns.")
    if not targets or (task == "classification" and len(targets) != 1):
        raise DataError(f"Expected one target column for classes, got {targets}.", remedy="Several are for labels.")
    how = _How(chosen, targets, categories or {}, scale or {}, task, classes, site)
    whole, names = how.split(columns, table)
    if test_path is not None:
        other = _find(test_path, data_dir)
        train, test = whole, how.split(read(other), other)[0]
    else:
        train, test = _held_out(whole, seed, task)
    found = num_outputs or (len(classes) if classes else _num_outputs(task, whole))
    return Dataset(str(title), task, train, test, found, tuple(classes or ()), names)


class _How:
    """How rows become samples, the same for every file."""

    def __init__(
        self,
        features: Sequence[str],
        targets: Sequence[str],
        categories: Mapping[str, list[str]],
        scale: Mapping[str, list[float]],
        task: Task,
        classes: Sequence[str] | None,
        site: str | None,
    ) -> None:
        self.features, self.targets, self.categories, self.scale = features, targets, categories, scale
        self.task, self.classes, self.site = task, classes, site
        for name, pair in scale.items():
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not float(pair[1]) > 0:
                raise DataError(f"Expected scale.{name} to be [center, spread], got {pair!r}.", remedy="Try [0, 1].")

    def split(self, columns: Columns, table: Path) -> tuple[Split, tuple[str, ...]]:
        wanted = [*self.features, *self.targets, *([self.site] if self.site else [])]
        if absent := [name for name in wanted if name not in columns]:
            raise DataError(
                f"{table} lacks the columns {', '.join(absent)}; it has {', '.join(list(columns)[:20])}.",
                remedy="Name columns as the file does: `target`, `features` and `site` are case-sensitive.",
            )
        parts, names = [], []
        for name in self.features:
            part, of_part = self._feature(name, columns[name], table)
            parts.append(part)
            names += of_part
        inputs = np.concatenate(parts, axis=1)
        sites = tuple(str(value) for value in columns[self.site]) if self.site else None
        return Split(torch.from_numpy(inputs), self._targets(columns, table), sites), tuple(names)

    def _feature(self, name: str, values: Sequence[Any], table: Path) -> tuple[NDArray[np.float32], list[str]]:
        if name in self.categories:
            known = [str(value) for value in self.categories[name]]
            places = _places(values, known, name, table, f"categories.{name}")
            return np.eye(len(known), dtype=np.float32)[places], [f"{name}={value}" for value in known]
        numbers = _numbers(values, name, table)
        if name in self.scale:
            center, spread = self.scale[name]
            numbers = (numbers - float(center)) / float(spread)
        return numbers.astype(np.float32)[:, None], [name]

    def _targets(self, columns: Columns, table: Path) -> torch.Tensor:
        if self.task == "classification":
            (name,) = self.targets
            if self.classes:
                return torch.from_numpy(_places(columns[name], list(self.classes), name, table, "classes"))
            numbers = _numbers(columns[name], name, table)
            wrong = numbers[numbers != np.floor(numbers)]
            if len(wrong):
                raise DataError(
                    f"Expected class numbers in column {name} of {table}, got {wrong[0]}.",
                    remedy='Number the classes from 0, list their names as `classes`, or set task = "regression".',
                )
            return torch.from_numpy(numbers.astype(np.int64))
        found = np.stack([_numbers(columns[name], name, table) for name in self.targets], axis=1)
        return torch.from_numpy(found.astype(np.float32))


def _places(values: Sequence[Any], known: list[str], name: str, table: Path, setting: str) -> NDArray[np.int64]:
    number = {value: place for place, value in enumerate(known)}
    found = [number.get(str(value), -1) for value in values]
    if -1 in found:
        row = found.index(-1)
        raise DataError(
            f"Column {name} of {table} has {values[row]!r} in row {row + 1}, which is not in {setting} "
            f"({', '.join(known[:20])}).",
            remedy=f"List every value of all sites in {setting}, in one order for all.",
        )
    return np.array(found, dtype=np.int64)


def _numbers(values: Sequence[Any], name: str, table: Path) -> NDArray[np.float64]:
    found = np.empty(len(values), dtype=np.float64)
    for row, value in enumerate(values):
        missing = value is None or (isinstance(value, str) and value.strip().lower() in _MISSING) or value != value  # noqa: PLR0124
        if missing:
            raise DataError(
                f"Column {name} of {table} has no value in row {row + 1}.",
                remedy="Impute it (with one rule for all sites), drop the row, or leave the column out of `features`.",
            )
        try:
            found[row] = float(value)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"Column {name} of {table} has {value!r} in row {row + 1}, which is no number.",
                remedy=f"If it is a category, list all its values: categories.{name} = [...]; else leave it out of "
                "`features`.",
            ) from error
    return found


def _num_outputs(task: Task, whole: Split) -> int:
    return int(whole.targets.max()) + 1 if task == "classification" else int(whole.targets.shape[1])


def _held_out(whole: Split, seed: int, task: Task) -> tuple[Split, Split]:
    strata = whole.targets.numpy() if task == "classification" else np.zeros(len(whole), dtype=np.int64)
    train, test = hold_out(strata, seed)
    return whole.subset(torch.from_numpy(train)), whole.subset(torch.from_numpy(test))


def _find(path: str, data_dir: Path | None) -> Path:
    if not isinstance(path, str) or not path:
        raise DataError(f"Expected `path` to name a file, got {path!r}.", remedy="Give its name as text.")
    file = Path(path) if data_dir is None else data_dir / path
    if not file.is_file():
        raise MissingDataError(
            f"Expected a table at {file}, found none.",
            remedy="Put it there, or name another with `path`; a relative one is looked for in the data directory.",
        )
    return file


def _read_csv(file: Path) -> Columns:
    with reading(file, "whoever wrote it"), file.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.reader(lines)
        names = [name.strip() for name in next(rows, [])]
        table = [row for row in rows if row]
    if not names or len(set(names)) != len(names) or not table:
        raise DataError(
            f"Expected {file} to begin with a line of column names, each once, and to have rows.",
            remedy="Write it with a header and commas, as `pandas.DataFrame.to_csv(path, index=False)` does.",
        )
    if wrong := [number for number, row in enumerate(table, start=2) if len(row) != len(names)]:
        raise DataError(
            f"Line {wrong[0]} of {file} has {len(table[wrong[0] - 2])} values, the header {len(names)}.",
            remedy="Separate values by commas, and quote texts that hold some.",
        )
    return {name: [row[place] for row in table] for place, name in enumerate(names)}


def _read_parquet(file: Path) -> Columns:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            "Reading Parquet takes pyarrow, which is not installed.",
            remedy="Run `pip install bilateral[data]`, or write the table as CSV.",
        ) from error
    with reading(file, "whoever wrote it"):
        found: Columns = parquet.read_table(file).to_pydict()
    return found


load_csv = partial(load_table, _read_csv)
load_parquet = partial(load_table, _read_parquet)
