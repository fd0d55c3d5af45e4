"""Readers of the file formats in which the public image sets are published.

Each reader takes the files of one split and gives a `RawImages`. None of them unpickles freely: .npz files
are opened with `allow_pickle=False`, CIFAR's python batches through `cifar_pickle`.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bilateral.data.bounded import open_arrays, unfolded_limit
from bilateral.data.cifar_pickle import read_cifar_pickle
from bilateral.data.files import reading
from bilateral.data.mat_file import read_mat

Part = Literal["train", "test"]

_CIFAR_PIXELS = 3 * 32 * 32
_IDX_UNSIGNED_BYTE = 0x08


@dataclass(frozen=True, eq=False)
class RawImages:
    """Images as they are in the file, NCHW and uint8, checked to fit their labels."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    sites: tuple[str, ...] | None = None
    class_names: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise ValueError(f"images are {self.images.dtype} of shape {self.images.shape}, not 4-d uint8")
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images but {len(self.labels)} labels")
        if self.sites is not None and len(self.sites) != len(self.images):
            raise ValueError(f"{len(self.images)} images but {len(self.sites)} sites")


def read_npz(paths: Sequence[Path], origin: str, part: Part) -> RawImages:
    """One split of an .npz with x_train, y_train, x_test, y_test; optionally site_*, patient_*, classes.

    Images are NHWC, or NHW for grey levels. A patient counts as a site where no site is given.
    """
    (path,) = paths
    with reading(path, origin), open_arrays(path) as arrays:
        absent = [key for key in (f"x_{part}", f"y_{part}") if key not in arrays.files]
        if absent:
            raise ValueError(f"no array {' or '.join(absent)} in it")
        site_key = next((key for key in (f"site_{part}", f"patient_{part}") if key in arrays.files), None)
        return RawImages(
            images=_channels_first(arrays[f"x_{part}"]),
            labels=_integer_labels(arrays[f"y_{part}"]),
            sites=None if site_key is None else tuple(str(site) for site in arrays[site_key]),
            class_names=tuple(str(c) for c in arrays["classes"]) if "classes" in arrays.files else (),
        )


def read_cifar_batches(paths: Sequence[Path], origin: str, label_key: str) -> RawImages:
    """CIFAR's "python version": pickled batches, read without trusting them."""
    batches = []
    for path in paths:
        images, labels = read_cifar_pickle(path, label_key, origin)
        with reading(path, origin):
            batches.append(RawImages(images, labels))
    return _joined(batches)


def read_cifar_binary(paths: Sequence[Path], origin: str, num_label_bytes: int) -> RawImages:
    """CIFAR's "binary version": records of label bytes and 3,072 pixels; the last label is the fine one."""
    record_bytes = num_label_bytes + _CIFAR_PIXELS
    batches = []
    for path in paths:
        with reading(path, origin):
            content = np.fromfile(path, dtype=np.uint8)
            if len(content) == 0 or len(content) % record_bytes:
                raise ValueError(f"{len(content)} bytes is not a whole number of {record_bytes}-byte records")
            records = content.reshape(-1, record_bytes)
            images = records[:, num_label_bytes:].reshape(-1, 3, 32, 32)
            batches.append(RawImages(images, records[:, num_label_bytes - 1].astype(np.int64)))
    return _joined(batches)


def read_svhn_mat(paths: Sequence[Path], origin: str) -> RawImages:
    """SVHN's cropped digits: `X` is HWCN, and the label 10 means the digit 0."""
    (path,) = paths
    with reading(path, origin):
        content = read_mat(path, ("X", "y"))
        labels = _integer_labels(content["y"])
        return RawImages(np.transpose(content["X"], (3, 2, 0, 1)), np.where(labels == 10, 0, labels))


def read_idx_pair(paths: Sequence[Path], origin: str) -> RawImages:
    """MNIST's images file and labels file, plain or gzipped."""
    images_path, labels_path = paths
    with reading(images_path, origin):
        images = _read_idx(images_path, num_dims=3)
    with reading(labels_path, origin):
        labels = _read_idx(labels_path, num_dims=1)
        return RawImages(images[:, None], labels.astype(np.int64))


def _read_idx(path: Path, num_dims: int) -> NDArray[np.uint8]:
    """An idx file: two zero bytes, the type, the number of dimensions, their big-endian sizes, the values."""
    limit = unfolded_limit(path.stat().st_size)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        header = stream.read(4 + 4 * num_dims)
        if header[:4] != bytes([0, 0, _IDX_UNSIGNED_BYTE, num_dims]):
            raise ValueError(f"it does not start as an idx file of {num_dims} dimensions does")
        shape = [int.from_bytes(header[place : place + 4], "big") for place in range(4, len(header), 4)]
        expected = math.prod(shape)
        if len(header) != 4 + 4 * num_dims or expected > limit:
            raise ValueError(f"an array of shape {shape} in {path.stat().st_size} bytes")
        values = np.frombuffer(stream.read(expected + 1), dtype=np.uint8)
    if len(values) != expected:
        came = f"more than {expected}" if len(values) > expected else str(len(values))
        raise ValueError(f"{came} values for an array of shape {shape}")
    return values.reshape(shape)


def _joined(batches: Sequence[RawImages]) -> RawImages:
    images = np.concatenate([batch.images for batch in batches])
    return RawImages(images, np.concatenate([batch.labels for batch in batches]))


def _channels_first(images: NDArray[Any]) -> NDArray[np.uint8]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(f"images of shape {images.shape} instead of [N, height, width, 1 or 3]")
    return np.transpose(images, (0, 3, 1, 2))


def _integer_labels(labels: NDArray[Any]) -> NDArray[np.int64]:
    if labels.size != len(labels) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels are {labels.dtype} of shape {labels.shape}, not one integer per image")
    return labels.reshape(-1).astype(np.int64)
