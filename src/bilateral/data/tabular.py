"""The tabular sets: a bank's telephone campaign, and heart disease at four hospitals."""

from __future__ import annotations

import csv
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilateral.data.dataset import Dataset, Split
from bilateral.data.files import Source, find_file, reading
from bilateral.data.sampling import hold_out, limit, standardise
from bilateral.data.task import Task
from bilateral.errors import DataError

_TASKS: Final[tuple[Task, ...]] = ("classification", "regression")

Rows = list[list[str]]


@dataclass(frozen=True)
class BankColumns:
    """Which columns of a Bank Marketing file are numbers and which are categories."""

    numeric: tuple[str, ...]
    categorical: tuple[str, ...]


_BANK: Final = Source(
    "bank-marketing",
    "the UCI Machine Learning Repository, Bank Marketing",
    ("bank-additional-full.csv", "bank-full.csv"),
)
_BANK_FILES: Final = (
    "bank-additional-full.csv|bank-additional/bank-additional-full.csv|bank-full.csv|bank/bank-full.csv"
)
_BANK_SHARED_CATEGORIES: Final = (
    *("job", "marital", "education", "default", "housing"),
    *("loan", "contact", "month", "poutcome"),
)
_BANK_COLUMNS: Final = {
    "bank-additional-full.csv": BankColumns(
        numeric=(
            *("age", "duration", "campaign", "pdays", "previous"),
            *("emp.var.rate", "cons.price.idx", "cons.conf.idx", "euribor3m", "nr.employed"),
        ),
        categorical=(*_BANK_SHARED_CATEGORIES, "day_of_week"),
    ),
    "bank-full.csv": BankColumns(
        numeric=("age", "balance", "day", "duration", "campaign", "pdays", "previous"),
        categorical=_BANK_SHARED_CATEGORIES,
    ),
}
_BANK_TARGET: Final = "y"
_MAX_CATEGORIES: Final = 32

_HOSPITALS: Final = ("cleveland", "hungarian", "switzerland", "va")
_HEART: Final = Source(
    "heart-disease",
    "the UCI Machine Learning Repository, Heart Disease",
    ("processed.{cleveland,hungarian,switzerland,va}.data, in heart_disease_4sites/ or not",),
)
_HEART_COLUMNS: Final = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
# The set's description names -9 as its code for a missing value; the published files have `?` instead.
_HEART_GAPS: Final = frozenset({"?", "-9", "-9.0", ""})


def load_bank_marketing(
    data_dir: Path | None,
    *,
    task: Task = "regression",
    with_duration: bool = False,
    num_train: int | None = None,
    num_test: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Does the customer subscribe a deposit? One output in {0, 1} with `task="regression"`, as papers use it.

    The length of the call (`duration`) is known only once the answer is, and left out unless `with_duration`.
    Categories come from the whole file, so that the number of inputs does not depend on the split.
    """
    if task not in _TASKS:
        raise DataError(
            f'Expected the task of "bank-marketing" to be {" or ".join(_TASKS)}, got "{task}".',
            remedy="Choose one of the two, or leave `task` out for regression.",
        )
    directory = _BANK.require_directory(data_dir)
    path = find_file(directory, _BANK_FILES)
    if path is None:
        raise _BANK.missing(f"looked in {directory}")
    with reading(path, _BANK.origin):
        header, rows = _read_rows(path, delimiter=";")
        numeric, one_hot, labels = _encode_bank(path.name, header, rows, with_duration)
    train, test = hold_out(labels, seed)
    train = train[limit(labels[train], num_train, "num_train", seed)]
    test = test[limit(labels[test], num_test, "num_test", seed)]
    inputs = _joined_inputs(numeric, one_hot, train, test)
    targets = torch.from_numpy(labels)
    if task == "regression":
        targets = targets.float().unsqueeze(1)
    return Dataset(
        name="bank-marketing",
        task=task,
        train=Split(inputs[0], targets[train]),
        test=Split(inputs[1], targets[test]),
        num_outputs=2 if task == "classification" else 1,
        class_names=("no", "yes") if task == "classification" else (),
    )


def load_heart_disease(data_dir: Path | None, *, seed: int = 0) -> Dataset:
    """Is a coronary artery narrowed (target above 0)? 920 patients of four hospitals, which are the sites.

    A missing value becomes the train median, and every column with gaps gets an indicator column of them: at
    some hospitals a test was hardly ever made, which says something too. The split keeps the share of every
    hospital and of the sick in it.
    """
    directory = _HEART.require_directory(data_dir)
    values, sites = _read_hospitals(directory)
    labels = (values[:, -1] > 0).astype(np.int64)
    train, test = hold_out(np.array([f"{site} {label}" for site, label in zip(sites, labels, strict=True)]), seed)
    features = values[:, :-1]
    gaps = np.isnan(features)
    filled = np.where(gaps, _medians(features[train]), features)
    inputs = _joined_inputs(filled, gaps[:, gaps.any(axis=0)].astype(np.float64), train, test)
    targets = torch.from_numpy(labels)
    return Dataset(
        name="heart-disease",
        task="classification",
        train=Split(inputs[0], targets[train], tuple(sites[index] for index in train)),
        test=Split(inputs[1], targets[test], tuple(sites[index] for index in test)),
        num_outputs=2,
        class_names=("healthy", "diseased"),
    )


def _encode_bank(
    file_name: str, header: Sequence[str], rows: Rows, with_duration: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Numeric columns, one-hot columns and labels of a Bank Marketing file."""
    layout = _BANK_COLUMNS[file_name]
    expected = {*layout.numeric, *layout.categorical, _BANK_TARGET}
    if set(header) != expected:
        absent, unknown = sorted(expected - set(header)), sorted(set(header) - expected)
        raise ValueError(f"columns missing: {absent}; columns unknown: {unknown}")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    kept = [name for name in layout.numeric if with_duration or name != "duration"]
    numeric = np.stack([_numbers(columns[name], name) for name in kept], axis=1)
    one_hot = np.concatenate([_one_hot(columns[name], name) for name in layout.categorical], axis=1)
    answers = set(columns[_BANK_TARGET])
    if not answers <= {"no", "yes"}:
        raise ValueError(f"column y has {sorted(answers - {'no', 'yes'})} instead of yes or no")
    return numeric, one_hot, np.array([answer == "yes" for answer in columns[_BANK_TARGET]], dtype=np.int64)


def _read_hospitals(directory: Path) -> tuple[NDArray[np.float64], list[str]]:
    """All rows of the four files with NaN for gaps, and the hospital of every row."""
    names = {site: f"processed.{site}.data" for site in _HOSPITALS}
    found = {site: find_file(directory, f"heart_disease_4sites/{names[site]}|{names[site]}") for site in names}
    paths = {site: path for site, path in found.items() if path is not None}
    if not paths:
        raise _HEART.missing(f"looked in {directory}")
    if len(paths) < len(_HOSPITALS):
        raise _HEART.incomplete(directory, [names[site] for site in _HOSPITALS if site not in paths])
    tables = []
    sites: list[str] = []
    for site, path in paths.items():
        with reading(path, _HEART.origin):
            _, rows = _read_rows(path, delimiter=",", header=_HEART_COLUMNS)
            columns = zip(_HEART_COLUMNS, zip(*rows, strict=True), strict=True)
            table = np.stack([_numbers(column, name, _HEART_GAPS) for name, column in columns], axis=1)
            if np.isnan(table[:, -1]).any():
                raise ValueError("a row without a diagnosis in its last column")
        tables.append(table)
        sites += [site] * len(table)
    return np.concatenate(tables), sites


def _read_rows(path: Path, delimiter: str, header: Sequence[str] = ()) -> tuple[Sequence[str], Rows]:
    """The header (read, unless given) and the rows, all of the header's length; blank lines are skipped."""
    with path.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream, delimiter=delimiter)
        names = header or next(reader, [])
        rows = []
        for row in reader:
            if not row:
                continue
            if len(row) != len(names):
                raise ValueError(f"line {reader.line_num} has {len(row)} values, expected {len(names)}")
            rows.append(row)
    if not rows:
        raise ValueError("it has no rows")
    return names, rows


def _numbers(column: Sequence[str], name: str, gaps: Container[str] = ()) -> NDArray[np.float64]:
    """The column as numbers, NaN for `gaps`. Other NaN or Inf would spoil the statistics and are refused."""
    is_gap = np.array([cell.strip() in gaps for cell in column])
    try:
        values = np.array([0.0 if gap else float(cell) for cell, gap in zip(column, is_gap, strict=True)])
    except ValueError as error:
        raise ValueError(f"column {name}: {error}") from None
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(f"column {name}: {len(bad)} values are NaN or Inf, the first in row {bad[0]}")
    return np.where(is_gap, np.nan, values)


def _one_hot(column: Sequence[str], name: str) -> NDArray[np.float64]:
    """A column for every category. A file in which each row has its own would take memory by the square of its rows."""
    code = {category: index for index, category in enumerate(sorted(set(column)))}
    if len(code) > _MAX_CATEGORIES:
        raise ValueError(f"column {name}: {len(code)} categories, at most {_MAX_CATEGORIES} are read")
    one_hot: NDArray[np.float64] = np.eye(len(code))[[code[category] for category in column]]
    return one_hot


def _medians(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of each column without its gaps; 0 for a column that is nothing but gaps."""
    medians = np.zeros(features.shape[1])
    known = ~np.isnan(features).all(axis=0)
    medians[known] = np.nanmedian(features[:, known], axis=0)
    return medians


def _joined_inputs(
    numeric: NDArray[np.float64],
    indicators: NDArray[np.float64],
    train: NDArray[np.int64],
    test: NDArray[np.int64],
) -> tuple[Tensor, Tensor]:
    """Standardised numeric columns, then the indicator columns as they are."""
    numbers = torch.from_numpy(numeric)
    flags = torch.from_numpy(indicators)
    scaled = standardise(numbers[train], numbers[test])
    return (
        torch.cat([scaled[0], flags[train]], dim=1).float(),
        torch.cat([scaled[1], flags[test]], dim=1).float(),
    )
