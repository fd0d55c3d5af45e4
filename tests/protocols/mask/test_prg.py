"""The mask generator against whole streams at once."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.protocols.mask import prg
from bilateral.protocols.mask.injective import injective


def whole_stream(seed, row, count):
    """Slow oracle: HKDF-Expand by hand (RFC 5869, one block), AES-CTR in one piece, Python integers."""
    mac = hmac.HMAC(seed, hashes.SHA256())
    mac.update(injective("bilateral mask row v1", row) + b"\x01")
    cipher = Cipher(algorithms.AES(mac.finalize()), modes.CTR(bytes(16))).encryptor()
    stream = cipher.update(bytes(8 * count))
    return [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(count)]


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.lists(st.tuples(st.binary(min_size=32, max_size=32), st.sampled_from([1, -1])), max_size=4),
    st.sampled_from([4, 16, prg.CHUNK_VALUES]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_masks_equal_whole_streams_added_modulo_2_64(lengths, seeds, chunk):
    start = np.arange(sum(lengths), dtype=np.int64) - 5
    got = start.copy()
    original, prg.CHUNK_VALUES = prg.CHUNK_VALUES, chunk
    try:
        prg.add_masks(got, seeds, lengths)
    finally:
        prg.CHUNK_VALUES = original
    expected = start.tolist()
    for seed, sign in seeds:
        masks = [word for row, length in enumerate(lengths) for word in whole_stream(seed, row, length)]
        expected = [value + sign * mask for value, mask in zip(expected, masks, strict=True)]
    assert [value % 2**64 for value in expected] == [int(word) for word in got.view(np.uint64)]


def test_a_vector_longer_than_a_chunk_equals_the_whole_stream():
    lengths = [prg.CHUNK_VALUES + 3, 5]
    got = np.zeros(sum(lengths), dtype=np.int64)
    prg.add_masks(got, [(bytes(32), 1)], lengths)
    expected = whole_stream(bytes(32), 0, lengths[0]) + whole_stream(bytes(32), 1, 5)
    assert got.view(np.uint64).tolist() == expected
    assert prg.row_words(bytes(32), 1, 5).tolist() == expected[-5:]


def test_adding_and_subtracting_a_stream_cancels_exactly():
    values = np.array([0, -1, 2**63 - 1, -(2**63)], dtype=np.int64)
    masked = values.copy()
    prg.add_masks(masked, [(b"s" * 32, 1)], [4])
    assert (masked != values).all()
    prg.add_masks(masked, [(b"s" * 32, -1)], [4])
    assert (masked == values).all()


def test_rows_have_streams_of_their_own():
    assert not set(whole_stream(bytes(32), 0, 50)) & set(whole_stream(bytes(32), 1, 50))


def test_wrong_lengths_and_signs_are_programming_errors():
    with pytest.raises(ValueError, match="expected 3 values"):
        prg.add_masks(np.zeros(2, dtype=np.int64), [], [3])
    with pytest.raises(ValueError, match="signs"):
        prg.add_masks(np.zeros(3, dtype=np.int64), [(bytes(32), 2)], [3])
