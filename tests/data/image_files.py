"""Writers of tiny image sets in the forms in which the real ones are published."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.io import savemat


@dataclass(frozen=True)
class TinySet:
    """Images NHWC (as people store them) and labels, train and test."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def tiny_set(rng, *, num_classes=10, num_train=20, num_test=10, size=32, channels=3) -> TinySet:
    def images(count):
        return rng.integers(0, 256, (count, size, size, channels), dtype=np.uint8)

    def labels(count):
        return np.arange(count, dtype=np.int64) % num_classes

    return TinySet(images(num_train), labels(num_train), images(num_test), labels(num_test))


def flat_chw(images):
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


class _Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote its strings, which is how the published batches look inside."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_python2_string(self, value):
        self.write(pickle.BINSTRING + len(value).to_bytes(4, "little") + value)
        self.memoize(value)

    dispatch[bytes] = save_python2_string


def write_pickle(path, content, protocol):
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as stream:
        if protocol == "python 2":
            _Python2Pickler(stream, protocol=2).dump(content)
        else:
            pickle.dump(content, stream, protocol=protocol)


def cifar_batch(images, labels, label_key=b"labels"):
    return {b"batch_label": b"a batch", label_key: labels.tolist(), b"data": flat_chw(images)}


def write_cifar10_batches(folder, tiny, protocol=2):
    base = folder / "cifar-10-batches-py"
    for number, rows in enumerate(np.array_split(np.arange(len(tiny.x_train)), 5), start=1):
        batch = cifar_batch(tiny.x_train[rows], tiny.y_train[rows])
        write_pickle(base / f"data_batch_{number}", batch, protocol)
    write_pickle(base / "test_batch", cifar_batch(tiny.x_test, tiny.y_test), protocol)


def write_cifar100_batches(folder, tiny, protocol=2):
    for name, images, labels in (("train", tiny.x_train, tiny.y_train), ("test", tiny.x_test, tiny.y_test)):
        batch = cifar_batch(images, labels, b"fine_labels") | {b"coarse_labels": [0] * len(labels)}
        write_pickle(folder / "cifar-100-python" / name, batch, protocol)


def _records(images, *label_columns):
    columns = [np.asarray(column, dtype=np.uint8)[:, None] for column in label_columns]
    return np.concatenate([*columns, flat_chw(images)], axis=1).tobytes()


def write_cifar10_binary(folder, tiny):
    base = folder / "cifar-10-batches-bin"
    base.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(tiny.x_train)), 5), start=1):
        (base / f"data_batch_{number}.bin").write_bytes(_records(tiny.x_train[rows], tiny.y_train[rows]))
    (base / "test_batch.bin").write_bytes(_records(tiny.x_test, tiny.y_test))


def write_cifar100_binary(folder, tiny):
    base = folder / "cifar-100-binary"
    base.mkdir()
    (base / "train.bin").write_bytes(_records(tiny.x_train, tiny.y_train * 0 + 7, tiny.y_train))
    (base / "test.bin").write_bytes(_records(tiny.x_test, tiny.y_test * 0 + 7, tiny.y_test))


def write_svhn_mat(folder, tiny):
    for name, images, labels in (("train", tiny.x_train, tiny.y_train), ("test", tiny.x_test, tiny.y_test)):
        published = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(folder / f"{name}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": published})


def idx_bytes(values):
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_mnist_idx(folder, tiny, suffix="", joint="-"):
    folder.mkdir(parents=True, exist_ok=True)
    pack = gzip.compress if suffix == ".gz" else bytes
    for prefix, images, labels in (("train", tiny.x_train, tiny.y_train), ("t10k", tiny.x_test, tiny.y_test)):
        (folder / f"{prefix}-images{joint}idx3-ubyte{suffix}").write_bytes(pack(idx_bytes(images[..., 0])))
        (folder / f"{prefix}-labels{joint}idx1-ubyte{suffix}").write_bytes(pack(idx_bytes(labels)))


def write_npz(path, tiny, **extra):
    np.savez(path, x_train=tiny.x_train, y_train=tiny.y_train, x_test=tiny.x_test, y_test=tiny.y_test, **extra)
