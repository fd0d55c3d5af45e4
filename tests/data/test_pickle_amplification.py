"""Pickles in which a few bytes of file ask for a part of it again and again: refused, in little memory and time."""

import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
from tests.data import image_files as files
from tests.fuzz.guard import refusal_of

from bilateral.data.cifar_pickle import read_cifar_pickle

MEBIBYTE = 1 << 20
HANG = 900.0


def text(content):
    return b"X" + struct.pack("<I", len(content)) + content


def repeated(setup, operations, times):
    return b"\x80\x02" + setup + b"]q\x09(" + operations * times + b"e."


AMPLIFIERS = {
    "encoded texts": repeated(
        b"c_codecs\nencode\nq\x01" + text(b"x" * MEBIBYTE) + b"q\x02" + text(b"latin1") + b"q\x03000",
        b"h\x01h\x02h\x03\x86R",
        400,
    ),
    "encoded texts with memoised arguments": repeated(
        b"c_codecs\nencode\nq\x01" + text(b"x" * MEBIBYTE) + text(b"latin1") + b"\x86q\x0200", b"h\x01h\x02R", 400
    ),
    "type names": repeated(
        b"cnumpy\ndtype\nq\x01B" + struct.pack("<I", MEBIBYTE) + b"x" * MEBIBYTE + b"q\x0200", b"h\x01h\x02\x85R", 400
    ),
    "sets": repeated(b"", b"\x8f", MEBIBYTE),
    "frozen sets": repeated(b"", b"(\x91", MEBIBYTE),
    "copies of the top": repeated(b"", b"]2", MEBIBYTE),
}


@pytest.mark.parametrize("name", AMPLIFIERS)
def test_a_text_that_is_asked_for_again_and_again_takes_no_more_memory_than_the_file_has(tmp_path, name):
    path = tmp_path / "batch"
    path.write_bytes(AMPLIFIERS[name])
    assert refusal_of(lambda: read_cifar_pickle(path, "labels")) == "DataError"


FILES_THAT_HUNG = {
    "a key of a million tuples in each other": b"}" + b")" + b"\x85" * MEBIBYTE + b"Ns.",
    "a key of 2^60 tuples": b"})" + b"q\x01h\x01\x86" * 60 + b"Ns.",
    "a key of 2^60 copied tuples": b"})" + b"2\x86" * 60 + b"Ns.",
    "a key of tuples that a call has seen": b"}cnumpy\nndarray\nq\x010)q\x020"
    + b"h\x01h\x02h\x02\x86q\x02R0" * 60
    + b"h\x02Ns.",
    "a number of a megabyte, as a key": b"}\x8b"
    + struct.pack("<i", MEBIBYTE)
    + b"\x7f" * MEBIBYTE
    + b"q\x010"
    + b"h\x01Ns" * 200_000
    + b".",
}


@pytest.mark.parametrize("name", FILES_THAT_HUNG)
def test_a_key_that_takes_for_ever_to_look_up_is_refused(tmp_path, name):
    """In a process of its own: what is guarded against ends the interpreter, or never ends."""
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02" + FILES_THAT_HUNG[name])
    script = (
        "import sys, pathlib\n"
        "from bilateral.data.cifar_pickle import read_cifar_pickle\n"
        "from bilateral.errors import DataError\n"
        "try:\n    read_cifar_pickle(pathlib.Path(sys.argv[1]), 'labels')\n"
        "except DataError:\n    print('refused')\n"
    )
    words = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.stdout.strip() == "refused", done.stderr[-500:]


@pytest.mark.parametrize("protocol", range(6))
def test_batches_with_names_and_numbers_are_read_in_every_protocol(tmp_path, protocol):
    """Protocol 2 of Python 3 spells each of these names as a call: as many as there are images."""
    images = np.random.default_rng(0).integers(0, 256, (40, 3072), dtype=np.uint8)
    for order in ("C", "F"):
        content = {
            b"data": np.asarray(images, order=order),
            b"labels": list(range(40)),
            b"filenames": [b"name \xff %d" % number for number in range(40)],
            b"batch_label": "text",
        }
        files.write_pickle(tmp_path / "batch", content, protocol)
        found, labels = read_cifar_pickle(tmp_path / "batch", "labels")
        assert np.array_equal(found.reshape(40, 3072), images)
        assert labels.tolist() == list(range(40))


def test_a_few_tuples_in_a_batch_do_no_harm(tmp_path):
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1], b"shape": (3, (32, 32)), b"mean": 0.5}
    (tmp_path / "batch").write_bytes(pickle.dumps(content, 2))
    assert read_cifar_pickle(tmp_path / "batch", "labels")[1].tolist() == [0, 1]
