"""Data files that ask for more than they have, or are not what they say: refused by name, in little memory."""

import gzip
import io
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest
from scipy.io import loadmat, savemat
from tests.data import image_files as files
from tests.data.test_tabular import ADDITIONAL_HEADER, additional_row, write
from tests.fuzz.guard import judge, refusal_of

from bilateral.data import load_dataset
from bilateral.data.cifar_pickle import read_cifar_pickle
from bilateral.errors import DataError


def refusal(name, folder, **options):
    return refusal_of(lambda: load_dataset(name, folder, **options))


@pytest.fixture
def cifar(tmp_path, rng):
    files.write_cifar10_batches(tmp_path, files.tiny_set(rng))
    load_dataset("cifar10", tmp_path)
    return tmp_path / "cifar-10-batches-py" / "data_batch_1"


@pytest.mark.parametrize(
    "operations",
    [
        b"Nr\xff\xff\xff\x7f.",
        b"Np2147483647\n.",
        b"\x8e" + struct.pack("<Q", 1 << 35) + b".",
        b"\x96" + struct.pack("<Q", 1 << 35) + b".",
        b"X\xff\xff\xff\x7fabc.",
        b"\x8b\xff\xff\xff\x7f.",
    ],
    ids=["memo", "memo in text", "bytes", "bytearray", "text", "number"],
)
def test_a_pickle_of_a_few_bytes_that_asks_for_34_gigabytes_is_refused(cifar, operations):
    cifar.write_bytes(b"\x80\x04" + operations)
    assert refusal("cifar10", cifar.parents[1]) == "DataError"


def folded():
    found = [0]
    for _ in range(60):
        found = [found, found]
    return found


@pytest.mark.parametrize(
    "change",
    [
        {b"labels": folded()},
        {b"labels": [[0], [1]]},
        {b"labels": 7},
        {b"labels": [2**70]},
        {b"data": [1, 2]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [True, False]},
    ],
    ids=["2^60 labels", "lists of labels", "no list", "a label beyond int64", "no array", "booleans"],
)
def test_a_batch_of_other_values_is_a_data_error(cifar, change):
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1], **change}
    files.write_pickle(cifar, content, 4)
    assert refusal("cifar10", cifar.parents[1]) == "DataError"


def state_of_an_array(shape, code=b"u1"):
    """A pickled array whose parts are whatever one likes."""
    dtype = b"cnumpy\ndtype\n(" + pickle.dumps(code, 2)[2:-1] + b"tR"
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + pickle.dumps(shape, 2)[2:-1] + dtype + b"\x89C\x01xtb"
    return b"\x80\x03}(" + b"X\x04\x00\x00\x00data" + array + b"X\x06\x00\x00\x00labels]K\x00au."


@pytest.mark.parametrize("shape", [("x" * 50, 10**9), (10**30,), (-1, -1), [1], (0.5,), (1,) * 50], ids=repr)
def test_an_array_whose_shape_is_none_is_a_data_error(cifar, shape):
    """`math.prod` multiplies texts too: 50 characters times 10^9."""
    cifar.write_bytes(state_of_an_array(shape))
    assert refusal("cifar10", cifar.parents[1]) == "DataError"


def test_a_type_named_by_folded_lists_is_a_data_error(cifar):
    cifar.write_bytes(state_of_an_array((1,), folded()))
    assert refusal("cifar10", cifar.parents[1]) == "DataError"


def test_a_pickle_cannot_change_the_reader(cifar):
    """BUILD with a state of (None, {...}) sets attributes of whatever is on the stack: of our functions too."""
    from bilateral.data.cifar_pickle import _STAND_INS, _Allowance, _Function

    names = b"X\x0c\x00\x00\x00__defaults__(X\x06\x00\x00\x00latin1tX\x04\x00\x00\x00mark\x88"
    for asked in (b"_codecs\nencode", b"numpy.core.numeric\n_frombuffer"):
        cifar.write_bytes(b"\x80\x02c" + asked + b"\nN}(" + names + b"u\x86b.")
        assert refusal("cifar10", cifar.parents[1]) == "DataError"
    for function in (_Allowance.encode_latin1, _STAND_INS["numpy.core.numeric", "_frombuffer"]._call):
        assert function.__defaults__ is None
        assert not hasattr(function, "mark")
    with pytest.raises(pickle.UnpicklingError, match="state"):
        _Function(len).__setstate__((None, {"mark": True}))


def test_the_reader_of_pickles_itself_has_typed_errors(tmp_path):
    for content in (b"", b"\x80", b"garbage", b"I1\n.", b"(lp0\n.", b"\x80\x04K\x01\x85."):
        (tmp_path / "batch").write_bytes(content)
        with pytest.raises(DataError, match="batch"):
            read_cifar_pickle(tmp_path / "batch", "labels")


def npz_with(header, content=b""):
    raw = header.encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw + content)
    return made.getvalue()


@pytest.mark.parametrize(
    "shape", ["(8589934592,)", "(65536, 131072)", "(-1,)", "(0, 4611686018427387904)", "None", "('a',)"]
)
@pytest.mark.parametrize(("name", "file"), [("npz", "own.npz"), ("ham10000", "ham10000.npz")])
def test_an_array_that_is_not_in_its_file_is_refused_before_there_is_room_for_it(tmp_path, name, file, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n"
    (tmp_path / file).write_bytes(npz_with(header, bytes(100)))
    options = {"path": file} if name == "npz" else {}
    assert refusal(name, tmp_path, **options) == "DataError"


@pytest.mark.parametrize(("name", "file"), [("npz", "own.npz"), ("ham10000", "ham10000.npz")])
def test_a_file_of_kilobytes_that_unfolds_to_gigabytes_is_refused(tmp_path, name, file):
    zeros = np.zeros(400_000_000, dtype=np.uint8)
    np.savez_compressed(tmp_path / file, x_train=zeros, y_train=zeros[:4], x_test=zeros[:4], y_test=zeros[:4])
    del zeros
    options = {"path": file} if name == "npz" else {}
    assert refusal(name, tmp_path, **options) == "DataError"


def test_small_files_of_zeros_are_read_however_well_they_pack(tmp_path):
    np.savez_compressed(
        tmp_path / "own.npz",
        x_train=np.zeros((500, 200)),
        y_train=np.arange(500) % 2,
        x_test=np.ones((2, 200)),
        y_test=[0, 1],
    )
    assert len(load_dataset("npz", tmp_path, path="own.npz").train) == 500


def test_a_label_of_a_file_does_not_decide_how_large_a_network_is(tmp_path):
    labels = np.array([0, 2**40])
    np.savez(tmp_path / "own.npz", x_train=np.ones((2, 3)), y_train=labels, x_test=np.ones((2, 3)), y_test=labels)
    assert refusal("npz", tmp_path, path="own.npz") == "DataError"


def test_a_packed_idx_file_that_unfolds_to_gigabytes_is_refused(tmp_path, rng):
    files.write_mnist_idx(tmp_path, files.tiny_set(rng, size=8, channels=1), suffix=".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    header = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (400, 1000, 1000))
    path.write_bytes(gzip.compress(header + bytes(400_000_000), 1))
    assert refusal("mnist", tmp_path) == "DataError"


def test_a_table_in_which_every_row_is_a_category_is_refused(tmp_path):
    """Ten thousand rows are a megabyte; a column for each category of each row is a gigabyte."""
    rows = [additional_row(30, 300, job=f"job {number}") for number in range(10_000)]
    write(tmp_path / "bank-additional-full.csv", ADDITIONAL_HEADER, *rows)
    assert refusal("bank-marketing", tmp_path) == "DataError"


@pytest.fixture
def svhn(tmp_path, rng):
    files.write_svhn_mat(tmp_path, files.tiny_set(rng))
    return tmp_path / "train_32x32.mat"


@pytest.mark.parametrize("place", [132, 168, 188])  # 188: the size of the numbers
@pytest.mark.parametrize("size", [2**32 - 8, 2**31 - 1, 2**31])
def test_a_matlab_file_whose_parts_say_gigabytes_is_refused(svhn, place, size):
    content = bytearray(svhn.read_bytes())
    content[place : place + 4] = struct.pack("<I", size)
    svhn.write_bytes(content)
    found = judge(lambda: load_dataset("svhn", svhn.parent))
    assert found.offence == ""


def test_a_packed_matlab_array_that_unfolds_to_gigabytes_is_refused(svhn):
    content = svhn.read_bytes()  # what follows is a true array's beginning
    packed = zlib.compress(struct.pack("<II", 14, 400_000_000) + content[136:192] + bytes(400_000_000), 9)
    svhn.write_bytes(content[:128] + struct.pack("<II", 15, len(packed)) + packed)
    assert refusal("svhn", svhn.parent) == "DataError"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_matlab_arrays_are_read_as_scipy_reads_them(tmp_path, rng, dtype, packed):
    from bilateral.data.mat_file import read_mat

    for shape in ((3, 4), (2, 3, 4, 5), (1, 1), (0, 3), (1, 5)):
        values = {
            "X": rng.integers(0, 100, shape).astype(dtype),
            "y": np.arange(3, dtype=dtype)[:, None],
            "text": "abc",
        }
        savemat(tmp_path / "a.mat", values, do_compression=packed)
        found, expected = read_mat(tmp_path / "a.mat", ("X", "y")), loadmat(tmp_path / "a.mat")
        assert set(found) == {"X", "y"}
        for name, array in found.items():
            assert array.dtype == expected[name].dtype
            assert np.array_equal(array, expected[name])


def test_an_error_about_a_file_does_not_repeat_the_file(tmp_path):
    header = ";".join(f'"{"x" * 1000}{number}"' for number in range(100))
    write(tmp_path / "bank-additional-full.csv", header, ";".join("1" * 100))
    with pytest.raises(DataError) as caught:
        load_dataset("bank-marketing", tmp_path)
    assert len(str(caught.value)) < 2_000
