"""Small real datasets that come inside scikit-learn: no download, so the default plan runs anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bilateral.data.dataset import Dataset, Split
from bilateral.data.sampling import hold_out, standardise


def load_digits(*, flat: bool = False, normalise: bool = True, seed: int = 0) -> Dataset:
    """1,797 handwritten digits of 8x8 grey levels; `flat` gives vectors of 64 instead of 1x8x8 images."""
    bunch = _fetch("digits")
    images = torch.from_numpy(bunch.images.astype(np.float32) / 16.0).unsqueeze(1)
    train, test = hold_out(bunch.target, seed)
    inputs = images[train], images[test]
    if normalise:
        inputs = standardise(*inputs, dims=(0, 2, 3))
    if flat:
        inputs = inputs[0].flatten(1), inputs[1].flatten(1)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    return Dataset(
        name="digits",
        task="classification",
        train=Split(inputs[0], labels[train]),
        test=Split(inputs[1], labels[test]),
        num_outputs=10,
        class_names=tuple(str(digit) for digit in range(10)),
    )


def load_breast_cancer(*, seed: int = 0) -> Dataset:
    """569 breast tumours (Wisconsin diagnostic set), 30 measurements: malignant or benign."""
    return _standardised_classes("breast-cancer", _fetch("breast_cancer"), seed)


def load_wine(*, seed: int = 0) -> Dataset:
    """178 wines, 13 chemical measurements: which of three cultivars."""
    return _standardised_classes("wine", _fetch("wine"), seed)


def load_diabetes(*, seed: int = 0) -> Dataset:
    """442 patients, 10 measurements: disease progression after a year, in train standard deviations."""
    bunch = _fetch("diabetes", scaled=False)
    train, test = hold_out(np.zeros(len(bunch.target)), seed)
    inputs = _standardised_columns(bunch.data, train, test)
    targets = _standardised_columns(bunch.target.reshape(-1, 1), train, test)
    return Dataset(
        name="diabetes",
        task="regression",
        train=Split(inputs[0], targets[0]),
        test=Split(inputs[1], targets[1]),
        num_outputs=1,
    )


def _standardised_classes(name: str, bunch: Any, seed: int) -> Dataset:
    train, test = hold_out(bunch.target, seed)
    inputs = _standardised_columns(bunch.data, train, test)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    class_names = tuple(str(label) for label in bunch.target_names)
    return Dataset(
        name=name,
        task="classification",
        train=Split(inputs[0], labels[train]),
        test=Split(inputs[1], labels[test]),
        num_outputs=len(class_names),
        class_names=class_names,
    )


def _standardised_columns(
    values: NDArray[np.float64], train: NDArray[np.int64], test: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    columns = torch.from_numpy(values.astype(np.float64))
    scaled = standardise(columns[train], columns[test])
    return scaled[0].float(), scaled[1].float()


def _fetch(name: str, **options: bool) -> Any:
    # scikit-learn takes a second or two to import: only those who ask for its data should wait for it.
    from sklearn import datasets  # noqa: PLC0415

    return getattr(datasets, f"load_{name}")(**options)
