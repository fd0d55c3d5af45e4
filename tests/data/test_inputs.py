"""Inputs of a user's own: read as they are, or refused with what to do."""

import numpy as np
import pytest

from bilateral.data.inputs import read_inputs
from bilateral.errors import DataError

VALUES = np.arange(12.0).reshape(3, 4) / 7


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.csv", "headed.csv"])
def test_files_of_each_kind_are_read_as_they_are(tmp_path, name):
    path = tmp_path / name
    if name.endswith(".npy"):
        np.save(path, VALUES.astype(np.float32))
    elif name.endswith(".npz"):
        np.savez(path, x=VALUES)
    else:
        np.savetxt(path, VALUES, delimiter=",", header="a,b,c,d" if name == "headed.csv" else "", comments="")
    found = read_inputs(path, (4,))
    assert np.allclose(found.numpy(), VALUES, atol=1e-6) and found.shape == (3, 4)
    assert read_inputs(path, (1, 2, 2)).shape == (3, 1, 2, 2), "flat samples take the model's shape"


def objects(path):
    np.save(path, np.array([{}, []], dtype=object), allow_pickle=True)


def cut(path):
    np.save(path, np.zeros((1000, 4)))
    path.write_bytes(path.read_bytes()[:200])


BAD = {
    "not there": ("x.npy", lambda path: None, "There is no file"),
    "of another kind": ("x.txt", lambda path: path.write_text("1,2,3,4"), "ends in .txt"),
    "objects": ("x.npy", objects, "corrupt"),
    "cut off": ("x.npy", cut, "corrupt"),
    "of other samples": ("x.npy", lambda path: np.save(path, np.zeros((3, 5))), "the model takes"),
    "one number": ("x.npy", lambda path: np.save(path, np.float64(1)), "holds float64 of shape"),
    "no samples": ("x.npy", lambda path: np.save(path, np.zeros((0, 4))), "holds float64 of shape"),
    "of text": ("x.npy", lambda path: np.save(path, np.array([["a"] * 4])), "holds <U1"),
    "NaN": ("x.npy", lambda path: np.save(path, np.full((1, 4), np.nan)), "NaN"),
    "two arrays": ("x.npz", lambda path: np.savez(path, a=VALUES, b=VALUES), "2 arrays"),
    "words": ("x.csv", lambda path: path.write_text("1,2,3,4\n1,2,x,4\n"), "corrupt"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_asked_about_is_refused(tmp_path, case):
    name, write, words = BAD[case]
    write(tmp_path / name)
    with pytest.raises(DataError, match=words):
        read_inputs(tmp_path / name, (4,))
