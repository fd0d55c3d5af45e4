"""The image sets: a table of what is accepted for each, and the one function that loads any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from bilateral.data.dataset import Dataset, Split
from bilateral.data.files import Source, find_file
from bilateral.data.image_formats import (
    RawImages,
    read_cifar_batches,
    read_cifar_binary,
    read_idx_pair,
    read_npz,
    read_svhn_mat,
)
from bilateral.data.sampling import limit, shrunk, standardise
from bilateral.data.task import Task
from bilateral.errors import DataError

Reader = Callable[[Sequence[Path], str], RawImages]


@dataclass(frozen=True)
class ImageFormat:
    """One published form of a set. File names are `|`-separated globs, as `find_file` takes them."""

    label: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    read_train: Reader
    read_test: Reader


@dataclass(frozen=True)
class ImageSet:
    """What is known about an image set before its files are opened; the first task is the default."""

    name: str
    origin: str
    num_classes: int
    formats: tuple[ImageFormat, ...]
    class_names: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ("classification",)

    @property
    def source(self) -> Source:
        return Source(self.name, self.origin, tuple(form.label for form in self.formats))


def load_images(
    image_set: ImageSet,
    data_dir: Path | None,
    *,
    task: Task | None = None,
    num_train: int | None = None,
    num_test: int | None = None,
    normalise: bool = True,
    shrink: int = 1,
    seed: int = 0,
) -> Dataset:
    """Load the first complete format of `image_set` in `data_dir`.

    Pixels are scaled to [0, 1]; `normalise` then removes the mean of each channel and divides by its standard
    deviation, both of the train split. `num_train` and `num_test` keep a seeded subset in which every class
    keeps its share. `shrink` averages blocks of so many pixels either way: smaller images, for quick experiments. For
    regression the target is the class index over the highest one: a grade in [0, 1].
    """
    chosen_task = image_set.tasks[0] if task is None else task
    if chosen_task not in image_set.tasks:
        raise DataError(
            f'Expected the task of dataset "{image_set.name}" to be {" or ".join(image_set.tasks)}, '
            f'got "{chosen_task}".',
            remedy="Choose an accepted task, or leave `task` out.",
        )
    raw_train, raw_test = _read(image_set, data_dir)
    train_kept = limit(raw_train.labels, num_train, "num_train", seed)
    test_kept = limit(raw_test.labels, num_test, "num_test", seed)
    train = _to_split(raw_train, train_kept, chosen_task, image_set.num_classes, shrink)
    test = _to_split(raw_test, test_kept, chosen_task, image_set.num_classes, shrink)
    if normalise and train.inputs.shape[1] == test.inputs.shape[1]:
        inputs = standardise(train.inputs, test.inputs, dims=(0, 2, 3))
        train = Split(inputs[0], train.targets, train.sites)
        test = Split(inputs[1], test.targets, test.sites)
    is_classification = chosen_task == "classification"
    return Dataset(
        name=image_set.name,
        task=chosen_task,
        train=train,
        test=test,
        num_outputs=image_set.num_classes if is_classification else 1,
        class_names=(raw_train.class_names or image_set.class_names) if is_classification else (),
    )


def _read(image_set: ImageSet, data_dir: Path | None) -> tuple[RawImages, RawImages]:
    """Both splits in the first format whose files are all there."""
    directory = image_set.source.require_directory(data_dir)
    absent_of_partial: list[str] = []
    for form in image_set.formats:
        found = {name: find_file(directory, name) for name in (*form.train_files, *form.test_files)}
        absent = [name.split("|")[0] for name, path in found.items() if path is None]
        paths = {name: path for name, path in found.items() if path is not None}
        if not absent:
            train_paths = [paths[name] for name in form.train_files]
            test_paths = [paths[name] for name in form.test_files]
            return form.read_train(train_paths, image_set.origin), form.read_test(test_paths, image_set.origin)
        if paths and not absent_of_partial:
            absent_of_partial = absent
    if absent_of_partial:
        raise image_set.source.incomplete(directory, absent_of_partial)
    raise image_set.source.missing(f"looked in {directory}")


def _to_split(
    raw: RawImages, kept: np.ndarray[tuple[int], np.dtype[np.int64]], task: Task, classes: int, shrink: int
) -> Split:
    """The kept samples only: a full set in float32 takes four times its size on disk."""
    inputs = shrunk(torch.from_numpy(np.ascontiguousarray(raw.images[kept])).float().div_(255.0), shrink, "`shrink`")
    targets: Tensor = torch.from_numpy(raw.labels[kept])
    if task == "regression":
        targets = (targets.float() / (classes - 1)).unsqueeze(1)
    sites = None if raw.sites is None else tuple(raw.sites[index] for index in kept.tolist())
    return Split(inputs, targets, sites)


def _npz(label: str, patterns: str) -> ImageFormat:
    read_train, read_test = partial(read_npz, part="train"), partial(read_npz, part="test")
    return ImageFormat(
        f"{label} with x_train, y_train, x_test, y_test", (patterns,), (patterns,), read_train, read_test
    )


def _same_reader(label: str, train: Sequence[str], test: Sequence[str], read: Reader) -> ImageFormat:
    return ImageFormat(label, tuple(train), tuple(test), read, read)


def _idx_files(prefix: str) -> list[str]:
    """MNIST's images and labels file, under the names and folders that mirrors and torchvision use."""
    names = [(f"{prefix}-images", "idx3-ubyte"), (f"{prefix}-labels", "idx1-ubyte")]
    return [
        "|".join(
            f"{folder}{stem}{joint}{kind}{suffix}"
            for folder in ("", "MNIST/raw/", "mnist/")
            for joint in ("-", ".")
            for suffix in ("", ".gz")
        )
        for stem, kind in names
    ]


_CIFAR10_CLASSES: Final = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

_TORONTO: Final = "Alex Krizhevsky's page at the University of Toronto"

IMAGE_SETS: Final[tuple[ImageSet, ...]] = (
    ImageSet(
        name="cifar10",
        origin=f"{_TORONTO}, CIFAR-10",
        num_classes=10,
        class_names=_CIFAR10_CLASSES,
        formats=(
            _same_reader(
                "cifar-10-batches-py/ with data_batch_1..5 and test_batch",
                [f"cifar-10-batches-py/data_batch_{number}" for number in range(1, 6)],
                ["cifar-10-batches-py/test_batch"],
                partial(read_cifar_batches, label_key="labels"),
            ),
            _same_reader(
                "cifar-10-batches-bin/ with data_batch_1..5.bin and test_batch.bin",
                [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)],
                ["cifar-10-batches-bin/test_batch.bin"],
                partial(read_cifar_binary, num_label_bytes=1),
            ),
            # Not `cifar10*.npz`: that would take a cifar100 file for this set.
            _npz("cifar10*.npz", "cifar10.npz|cifar10[!0-9]*.npz"),
        ),
    ),
    ImageSet(
        name="cifar100",
        origin=f"{_TORONTO}, CIFAR-100",
        num_classes=100,
        formats=(
            _same_reader(
                "cifar-100-python/ with train and test",
                ["cifar-100-python/train"],
                ["cifar-100-python/test"],
                partial(read_cifar_batches, label_key="fine_labels"),
            ),
            _same_reader(
                "cifar-100-binary/ with train.bin and test.bin",
                ["cifar-100-binary/train.bin"],
                ["cifar-100-binary/test.bin"],
                partial(read_cifar_binary, num_label_bytes=2),
            ),
            _npz("cifar100*.npz", "cifar100.npz|cifar100*.npz"),
        ),
    ),
    ImageSet(
        name="svhn",
        origin="Stanford's page of The Street View House Numbers, format 2 (cropped digits)",
        num_classes=10,
        formats=(
            _same_reader(
                "train_32x32.mat and test_32x32.mat",
                ["train_32x32.mat|svhn/train_32x32.mat"],
                ["test_32x32.mat|svhn/test_32x32.mat"],
                read_svhn_mat,
            ),
            _npz("svhn*.npz", "svhn.npz|svhn*.npz"),
        ),
    ),
    ImageSet(
        name="mnist",
        origin="the MNIST database of handwritten digits (LeCun, Cortes, Burges)",
        num_classes=10,
        formats=(
            _same_reader(
                "{train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, plain or .gz",
                _idx_files("train"),
                _idx_files("t10k"),
                read_idx_pair,
            ),
            _npz("mnist*.npz", "mnist.npz|mnist*.npz"),
        ),
    ),
    ImageSet(
        name="ham10000",
        origin="Harvard Dataverse, HAM10000 (convert the pictures to one .npz)",
        num_classes=7,
        class_names=("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"),
        formats=(_npz("ham10000*.npz", "ham10000.npz|ham10000*.npz"),),
    ),
    ImageSet(
        name="breakhis",
        origin="Federal University of Parana, BreakHis (convert the pictures to one .npz)",
        num_classes=2,
        class_names=("benign", "malignant"),
        formats=(_npz("breakhis*.npz", "breakhis.npz|breakhis*.npz"),),
    ),
    ImageSet(
        name="aptos",
        origin="Kaggle, APTOS 2019 Blindness Detection (convert the pictures to one .npz)",
        num_classes=5,
        class_names=("no", "mild", "moderate", "severe", "proliferative"),
        tasks=("regression", "classification"),
        formats=(_npz("aptos*.npz", "aptos.npz|aptos*.npz"),),
    ),
)
