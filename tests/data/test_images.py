"""Every published form of every image set gives back the pixels and labels that were written."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from bilateral.data import load_dataset
from bilateral.errors import DataError, MissingDataError

from . import image_files as files


def assert_same_pixels(dataset, tiny):
    for split, images, labels in (
        (dataset.train, tiny.x_train, tiny.y_train),
        (dataset.test, tiny.x_test, tiny.y_test),
    ):
        assert torch.equal(
            torch.round(split.inputs * 255).byte(), torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
        )
        assert split.targets.tolist() == labels.tolist()


@pytest.fixture
def cifar(rng):
    return files.tiny_set(rng)


@pytest.fixture
def digits28(rng):
    return files.tiny_set(rng, size=28, channels=1)


@pytest.mark.parametrize("protocol", ["python 2", 2, 3, 4, 5])
def test_cifar10_pickled_batches_of_any_protocol(tmp_path, cifar, protocol):
    files.write_cifar10_batches(tmp_path, cifar, protocol)
    dataset = load_dataset("cifar10", tmp_path, normalise=False)
    assert_same_pixels(dataset, cifar)
    assert dataset.class_names[3] == "cat"


@pytest.mark.parametrize("protocol", ["python 2", 2, 5])
def test_cifar100_pickled_batches_use_fine_labels(tmp_path, rng, protocol):
    tiny = files.tiny_set(rng, num_classes=100, num_train=100)
    files.write_cifar100_batches(tmp_path, tiny, protocol)
    dataset = load_dataset("cifar100", tmp_path, normalise=False)
    assert_same_pixels(dataset, tiny)
    assert dataset.num_outputs == 100


def test_cifar10_binary(tmp_path, cifar):
    files.write_cifar10_binary(tmp_path, cifar)
    assert_same_pixels(load_dataset("cifar10", tmp_path, normalise=False), cifar)


def test_cifar100_binary_uses_the_second_label_byte(tmp_path, rng):
    tiny = files.tiny_set(rng, num_classes=100, num_train=100)
    files.write_cifar100_binary(tmp_path, tiny)
    assert_same_pixels(load_dataset("cifar100", tmp_path, normalise=False), tiny)


def test_svhn_mat_where_label_ten_is_the_digit_zero(tmp_path, cifar):
    files.write_svhn_mat(tmp_path, cifar)
    dataset = load_dataset("svhn", tmp_path, normalise=False)
    assert_same_pixels(dataset, cifar)
    assert 0 in dataset.train.targets


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("folder", "joint"), [("", "-"), ("MNIST/raw", "-"), ("mnist", ".")])
def test_mnist_idx_plain_or_gzipped_wherever_mirrors_keep_it(tmp_path, digits28, suffix, folder, joint):
    files.write_mnist_idx(tmp_path / folder, digits28, suffix, joint)
    dataset = load_dataset("mnist", tmp_path, normalise=False)
    assert_same_pixels(dataset, digits28)
    assert dataset.input_shape == (1, 28, 28)


@pytest.mark.parametrize(
    ("name", "file", "num_classes"),
    [
        ("cifar10", "cifar10.npz", 10),
        ("cifar10", "cifar10_small.npz", 10),
        ("cifar100", "cifar100_12k.npz", 100),
        ("svhn", "svhn_15k.npz", 10),
        ("ham10000", "ham10000_64.npz", 7),
        ("breakhis", "breakhis400x_64.npz", 2),
    ],
)
def test_npz_of_every_colour_set(tmp_path, rng, name, file, num_classes):
    tiny = files.tiny_set(rng, num_classes=num_classes, num_train=100, size=8)
    files.write_npz(tmp_path / file, tiny)
    dataset = load_dataset(name, tmp_path, normalise=False)
    assert_same_pixels(dataset, tiny)
    assert dataset.num_outputs == num_classes


def test_mnist_npz_without_a_channel_dimension(tmp_path, digits28):
    np.savez(
        tmp_path / "mnist.npz",
        x_train=digits28.x_train[..., 0],
        y_train=digits28.y_train.astype(np.uint8),
        x_test=digits28.x_test[..., 0],
        y_test=digits28.y_test.astype(np.uint8),
    )
    assert_same_pixels(load_dataset("mnist", tmp_path, normalise=False), digits28)


def test_npz_sites_patients_and_class_names_are_kept(tmp_path, rng):
    tiny = files.tiny_set(rng, num_classes=2, num_train=4, num_test=2, size=8)
    sites = {"site_train": ["a", "b", "a", "b"], "site_test": ["a", "b"]}
    patients = {"patient_train": ["1", "1", "2", "3"], "patient_test": ["4", "5"]}
    (tmp_path / "sites").mkdir()
    (tmp_path / "patients").mkdir()
    files.write_npz(tmp_path / "sites" / "breakhis.npz", tiny, **sites, **patients, classes=["well", "ill"])
    files.write_npz(tmp_path / "patients" / "breakhis.npz", tiny, **patients)
    by_site = load_dataset("breakhis", tmp_path / "sites", num_train=2)
    assert by_site.class_names == ("well", "ill")
    assert len(by_site.train.sites) == 2
    assert by_site.test.sites == ("a", "b")
    assert load_dataset("breakhis", tmp_path / "patients").train.sites == ("1", "1", "2", "3")


def test_aptos_is_a_grade_between_0_and_1_or_one_of_five_classes(tmp_path, rng):
    tiny = files.tiny_set(rng, num_classes=5, size=8)
    files.write_npz(tmp_path / "aptos2019.npz", tiny)
    grade = load_dataset("aptos", tmp_path)
    assert (grade.task, grade.num_outputs, grade.class_names) == ("regression", 1, ())
    assert grade.train.targets.flatten().tolist() == (tiny.y_train / 4).tolist()
    classes = load_dataset("aptos", tmp_path, task="classification")
    assert (classes.task, classes.num_outputs) == ("classification", 5)
    assert classes.train.targets.tolist() == tiny.y_train.tolist()


def test_a_set_without_a_grade_cannot_be_a_regression(tmp_path, cifar):
    files.write_npz(tmp_path / "cifar10.npz", cifar)
    with pytest.raises(DataError, match='"cifar10" to be classification, got "regression"'):
        load_dataset("cifar10", tmp_path, task="regression")


def test_a_cifar100_file_is_not_taken_for_cifar10(tmp_path, cifar):
    files.write_npz(tmp_path / "cifar100_12k.npz", cifar)
    with pytest.raises(MissingDataError):
        load_dataset("cifar10", tmp_path)


def test_normalisation_uses_the_channels_of_the_kept_train_split(tmp_path, cifar):
    files.write_npz(tmp_path / "cifar10.npz", cifar)
    plain = load_dataset("cifar10", tmp_path, normalise=False, num_train=10)
    scaled = load_dataset("cifar10", tmp_path, num_train=10)
    mean = plain.train.inputs.mean((0, 2, 3), keepdim=True)
    deviation = plain.train.inputs.std((0, 2, 3), keepdim=True, correction=0)
    assert torch.allclose(scaled.train.inputs, (plain.train.inputs - mean) / deviation, atol=1e-5)
    assert torch.allclose(scaled.test.inputs, (plain.test.inputs - mean) / deviation, atol=1e-5)


def test_subsets_are_balanced_and_repeatable(tmp_path, rng):
    tiny = files.tiny_set(rng, num_train=100, num_test=50, size=8)
    files.write_npz(tmp_path / "svhn.npz", tiny)
    first, again, other = (load_dataset("svhn", tmp_path, num_train=30, num_test=20, seed=seed) for seed in (0, 0, 1))
    assert torch.bincount(first.train.targets).tolist() == [3] * 10
    assert torch.bincount(first.test.targets).tolist() == [2] * 10
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert not torch.equal(first.train.inputs, other.train.inputs)
    with pytest.raises(DataError, match=r"num_train between 1 and 100 .* got 101"):
        load_dataset("svhn", tmp_path, num_train=101)


def test_labels_out_of_range_are_refused(tmp_path, rng):
    files.write_npz(tmp_path / "breakhis.npz", files.tiny_set(rng, num_classes=3, size=8))
    with pytest.raises(DataError, match="labels between 0 and 1 in the train split"):
        load_dataset("breakhis", tmp_path)


def test_splits_of_different_channels_are_refused(tmp_path, rng):
    colour, grey = files.tiny_set(rng, size=8), files.tiny_set(rng, size=8, channels=1)
    np.savez(
        tmp_path / "svhn.npz",
        x_train=colour.x_train,
        y_train=colour.y_train,
        x_test=grey.x_test,
        y_test=grey.y_test,
    )
    with pytest.raises(DataError, match="samples of one shape"):
        load_dataset("svhn", tmp_path)


def test_two_candidates_for_one_set_are_refused_rather_than_chosen(tmp_path, cifar):
    files.write_npz(tmp_path / "cifar10_a.npz", cifar)
    files.write_npz(tmp_path / "cifar10_b.npz", cifar)
    with pytest.raises(DataError, match=r"got cifar10_a.npz, cifar10_b.npz"):
        load_dataset("cifar10", tmp_path)


def test_a_missing_batch_is_named(tmp_path, cifar):
    files.write_cifar10_batches(tmp_path, cifar)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(MissingDataError, match="missing: cifar-10-batches-py/data_batch_3"):
        load_dataset("cifar10", tmp_path)


class RunsCode:
    """What an attacker would put in a batch."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (exec, (f"open({str(self.target)!r}, 'w').close()",))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, cifar, protocol):
    files.write_cifar10_batches(tmp_path, cifar)
    proof = tmp_path / "code-was-run"
    batch = files.cifar_batch(cifar.x_test, cifar.y_test) | {b"extra": RunsCode(proof)}
    files.write_pickle(tmp_path / "cifar-10-batches-py" / "test_batch", batch, protocol)
    with pytest.raises(DataError, match=r"test_batch.*exec`, which could run code: refused"):
        load_dataset("cifar10", tmp_path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "payload",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(tR.",
        b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
    ],
)
def test_every_other_name_in_a_pickle_is_refused(tmp_path, cifar, payload):
    files.write_cifar10_batches(tmp_path, cifar)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(payload)
    with pytest.raises(DataError, match=r"data_batch_1.*refused, and not run.*Do not trust"):
        load_dataset("cifar10", tmp_path)


def test_a_pickled_batch_of_another_type_or_size_is_refused(tmp_path, cifar):
    files.write_cifar10_batches(tmp_path, cifar)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    for content, message in (
        ({b"data": np.zeros((2, 3072)), b"labels": [0, 1]}, "'f8' instead of uint8"),
        ({b"data": np.zeros((3, 3072), np.uint8), b"labels": [0, 1]}, "3 images but 2 labels"),
        ({b"data": np.zeros((2, 100), np.uint8), b"labels": [0, 1]}, "reshape"),
        ({b"labels": [0, 1]}, "data"),
        ([1, 2], "list"),
    ):
        files.write_pickle(path, content, 2)
        with pytest.raises(DataError, match=f"data_batch_2.*{message}"):
            load_dataset("cifar10", tmp_path)


def test_an_npz_with_pickled_objects_is_refused_and_not_run(tmp_path, cifar):
    proof = tmp_path / "code-was-run"
    labels = np.array([RunsCode(proof)], dtype=object)
    np.savez(
        tmp_path / "cifar10.npz",
        x_train=cifar.x_train,
        y_train=labels,
        x_test=cifar.x_test,
        y_test=cifar.y_test,
    )
    with pytest.raises(DataError, match=r"cifar10\.npz"):
        load_dataset("cifar10", tmp_path)
    assert not proof.exists()


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


@pytest.mark.parametrize("damage", [truncate, lambda p: p.write_bytes(b""), lambda p: p.write_bytes(b"\x93?" * 99)])
@pytest.mark.parametrize(
    "form",
    [
        ("cifar10", files.write_cifar10_batches, "cifar-10-batches-py/data_batch_4"),
        ("cifar10", files.write_cifar10_binary, "cifar-10-batches-bin/data_batch_4.bin"),
        ("cifar100", files.write_cifar100_batches, "cifar-100-python/test"),
        ("svhn", files.write_svhn_mat, "test_32x32.mat"),
        ("mnist", files.write_mnist_idx, "t10k-images-idx3-ubyte"),
        (
            "mnist",
            lambda folder, tiny: files.write_mnist_idx(folder, tiny, ".gz"),
            "train-labels-idx1-ubyte.gz",
        ),
        ("cifar10", lambda folder, tiny: files.write_npz(folder / "cifar10.npz", tiny), "cifar10.npz"),
    ],
)
def test_a_damaged_file_is_named_with_the_remedy(tmp_path, rng, form, damage):
    name, write, victim = form
    write(tmp_path, files.tiny_set(rng, size=28, channels=1) if name == "mnist" else files.tiny_set(rng))
    damage(tmp_path / victim)
    with pytest.raises(DataError) as refusal:
        load_dataset(name, tmp_path)
    assert str(tmp_path / victim) in str(refusal.value)
    assert refusal.value.remedy.startswith("Get it again from")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((20, 8, 8, 3), np.float32)}, "float32"),
        ({"x_train": np.zeros((20, 3, 8, 8), np.uint8)}, r"\[N, height, width, 1 or 3\]"),
        ({"y_train": np.zeros(20)}, "float64"),
        ({"y_train": np.zeros((20, 10), np.int64)}, "one integer per image"),
        ({"y_train": np.zeros(19, np.int64)}, "20 images but 19 labels"),
        ({"site_train": np.array(["a"])}, "20 images but 1 sites"),
    ],
)
def test_an_npz_with_arrays_of_the_wrong_kind_is_refused(tmp_path, rng, change, message):
    content = vars(files.tiny_set(rng, size=8)) | change
    np.savez(tmp_path / "svhn.npz", **content)
    with pytest.raises(DataError, match=message):
        load_dataset("svhn", tmp_path)


def test_an_npz_without_the_arrays_says_which_are_absent(tmp_path):
    np.savez(tmp_path / "svhn.npz", images=np.zeros(3))
    with pytest.raises(DataError, match="no array x_train or y_train"):
        load_dataset("svhn", tmp_path)


def test_the_test_really_writes_what_python_2_wrote(tmp_path):
    """Guards the writer of the tests: its bytes must be Python 2 strings, not Python 3 bytes."""
    files.write_pickle(tmp_path / "batch", {b"key": b"value"}, "python 2")
    content = (tmp_path / "batch").read_bytes()
    assert pickle.BINSTRING + b"\x03\x00\x00\x00key" in content
    assert b"_codecs" not in content


def test_the_directory_may_be_given_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("BILATERAL_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match=re.escape(f"looked in {tmp_path}")):
        load_dataset("svhn", data_dir=tmp_path)
    with pytest.raises(DataError, match=re.escape(f"looked in {tmp_path}")):
        load_dataset("svhn", data_dir=str(tmp_path))


def test_options_of_a_plan_do_not_move_the_directory(tmp_path):
    with pytest.raises(DataError, match="given twice"):
        load_dataset("svhn", None, **{"data_dir": tmp_path})
