"""A party's own file of arrays: what is read, and every way in which a file can be wrong."""

import os
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.data import load_dataset
from bilateral.errors import DataError, MissingDataError


class RunsWhenRead:
    def __reduce__(self):
        return (os.mkdir, ("it-ran",))


def arrays(**changes):
    generator = np.random.default_rng(0)
    return {
        "x_train": generator.normal(size=(6, 4)),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": generator.normal(size=(3, 4)),
        "y_test": np.array([0, 1, 2]),
        **changes,
    }


@pytest.fixture
def saved(tmp_path):
    def save(**changes):
        values = {name: value for name, value in arrays(**changes).items() if value is not None}
        np.savez(tmp_path / "own.npz", **values)
        return tmp_path

    return save


def test_arrays_come_as_they_are_in_the_file(saved):
    dataset = load_dataset("npz", saved(), path="own.npz", title="tumours")
    expected = arrays()
    assert (dataset.name, dataset.task, dataset.num_outputs) == ("tumours", "classification", 3)
    assert torch.equal(dataset.train.inputs, torch.from_numpy(expected["x_train"]).float())
    assert dataset.test.targets.tolist() == [0, 1, 2]


@given(
    st.sampled_from(["float16", "float32", "float64", "int8", "uint8", "int64", "bool", ">f4", ">i2"]),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.sampled_from(["uint8", "int16", "int64", "uint64", ">i8"]),
    st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_all_kinds_of_numbers_and_shapes_are_read(tmp_path_factory, kind, shape, label_kind, fortran):
    folder = tmp_path_factory.mktemp("kinds")
    values = (np.arange(5 * int(np.prod(shape))) % 2).reshape(5, *shape).astype(kind)
    values = np.asfortranarray(values) if fortran else values
    labels = np.array([0, 1, 0, 1, 1], dtype=label_kind)
    np.savez(folder / "own.npz", x_train=values, y_train=labels)
    dataset = load_dataset("npz", folder, path="own.npz", part="train")
    assert dataset.train.inputs.tolist() == values.astype(float).tolist()
    assert dataset.train.targets.tolist() == labels.tolist()


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_file_with_one_part_gives_that_part_alone(saved, part):
    other = "test" if part == "train" else "train"
    folder = saved(**{f"x_{other}": None, f"y_{other}": None})
    dataset = load_dataset("npz", folder, path="own.npz", part=part)
    assert torch.equal(dataset.train.inputs, dataset.test.inputs)
    with pytest.raises(DataError, match=rf"missing: x_{other}, y_{other}.*`part`"):
        load_dataset("npz", folder, path="own.npz")


def test_a_part_that_is_there_is_not_replaced_by_the_other_even_if_empty(saved):
    with pytest.raises(DataError, match="empty split"):
        load_dataset("npz", saved(x_test=np.zeros((0, 4)), y_test=np.zeros(0, int)), path="own.npz")


def test_a_site_that_does_not_see_all_classes_says_how_many_there_are(saved):
    folder = saved(y_train=np.array([0, 1, 0, 0, 1, 0]), y_test=np.array([0, 1, 0]))
    assert load_dataset("npz", folder, path="own.npz").num_outputs == 2
    assert load_dataset("npz", folder, path="own.npz", num_outputs=5).num_outputs == 5


@pytest.mark.parametrize("width", [None, 1, 3])
def test_targets_of_regression_are_columns(saved, width):
    rows = (6,) if width is None else (6, width)
    folder = saved(y_train=np.ones(rows), y_test=np.ones((3, *rows[1:])))
    dataset = load_dataset("npz", folder, path="own.npz", task="regression")
    assert dataset.train.targets.shape == (6, width or 1)
    assert dataset.num_outputs == (width or 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"x_train": None}, "missing: x_train"),
        ({"x_train": np.full((6, 4), np.nan)}, "NaN or Inf in 6 of 6 rows"),
        ({"x_train": np.full((6, 4), 1e300)}, "NaN or Inf"),
        ({"x_train": np.ones((5, 4))}, "5 inputs and 6 targets"),
        ({"x_train": np.ones(6)}, r"shape \[samples, features"),
        ({"x_train": np.float64(3.0)}, r"shape \[samples, features"),
        ({"x_train": np.ones((6, 4), complex)}, "numbers in x_train.*complex128"),
        ({"x_train": np.array([["a"] * 4] * 6)}, "numbers in x_train"),
        ({"x_test": np.ones((3, 5))}, "one shape"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "labels between 0 and 2"),
        ({"y_train": np.array([0.0, 1, 2, 0, 1, 2])}, "class numbers.*float64"),
        ({"y_train": np.array([2**63, 1, 2, 0, 1, 2], dtype=np.uint64)}, "class numbers"),
        ({"y_train": np.zeros((6, 2), int)}, "int64 targets of shape"),
        ({"y_train": np.int64(0)}, "6 inputs and 0 targets"),
    ],
)
def test_malformed_arrays_are_refused_with_what_was_expected(saved, changes, problem):
    with pytest.raises(DataError, match=problem):
        load_dataset("npz", saved(**changes), path="own.npz")


def test_objects_are_refused_and_nothing_of_them_runs(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"own\.npz"):
        load_dataset("npz", saved(x_train=np.array([RunsWhenRead()] * 6, dtype=object)), path="own.npz")
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY\x01\x00", b"\x80\x04K\x01."])
def test_a_file_of_another_format_is_refused(tmp_path, content):
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"another format.*numpy\.savez"):
        load_dataset("npz", tmp_path, path="own.npz")


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9, 0.99])
def test_a_file_that_was_cut_short_is_refused(saved, cut):
    path = saved() / "own.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(DataError, match=r"own\.npz"):
        load_dataset("npz", path.parent, path="own.npz")


def test_damage_inside_is_noticed(saved):
    path = saved() / "own.npz"
    data = bytearray(path.read_bytes())
    data[200] ^= 1  # inside the first array
    path.write_bytes(data)
    with pytest.raises(DataError, match="corrupt"):
        load_dataset("npz", path.parent, path="own.npz")


def test_a_zip_of_other_things_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as file:
        file.writestr("x_train.npy", b"no array")
        file.writestr("y_train.npy", b"no array")
    with pytest.raises(DataError, match=r"own\.npz"):
        load_dataset("npz", tmp_path, path="own.npz", part="train")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "needs the options path"),
        ({"path": 3}, "`path` to name a file"),
        ({"path": ""}, "`path` to name a file"),
        ({"path": "own.npz", "task": "ranking"}, "`task`"),
        ({"path": "own.npz", "part": "all"}, "`part`"),
        ({"path": "own.npz", "num_outputs": 0}, "`num_outputs`"),
        ({"path": "own.npz", "num_outputs": True}, "`num_outputs`"),
        ({"path": "own.npz", "pickle": True}, "got pickle"),
    ],
)
def test_wrong_options_are_named(saved, options, problem):
    with pytest.raises(DataError, match=problem):
        load_dataset("npz", saved(), **options)


def test_a_missing_file_is_named_where_it_was_looked_for(tmp_path):
    with pytest.raises(MissingDataError, match=str(tmp_path / "nothing.npz")):
        load_dataset("npz", tmp_path, path="nothing.npz")


def test_an_absolute_path_needs_no_data_directory(saved, monkeypatch):
    monkeypatch.delenv("BILATERAL_DATA", raising=False)
    assert load_dataset("npz", path=str(saved() / "own.npz")).num_outputs == 3
