"""Masks from AES-256 in counter mode, added into a vector at close to the speed of the cipher itself.

A seed is expanded to one key a row (HKDF-Expand), and a key is used for one stream, so the counter starts at zero. The
work goes chunk by chunk, all streams of a chunk before the next one, so that the sums stay in the processor's cache.
Guarantee: to whoever does not know the seed, a masked vector is uniform on Z_2^64 (as far as AES is a pseudorandom
function), whatever was masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from bilateral.protocols.mask.injective import injective

CHUNK_VALUES = 1 << 14
"""128 KiB of sums and as much of the stream: both fit into a second-level cache."""
_WORD_BYTES = 8
_BLOCK_BYTES = 16
_ZEROS = memoryview(bytes(CHUNK_VALUES * _WORD_BYTES))


def add_masks(
    accumulator: npt.NDArray[np.int64], seeds_with_sign: Sequence[tuple[bytes, int]], row_lengths: Sequence[int]
) -> None:
    """Add (sign +1) or subtract (sign -1) the streams of all seeds, modulo 2^64, in place.

    `accumulator` is contiguous; its rows have `row_lengths`, and each row of each seed has a key of its own.
    """
    words = accumulator.view(np.uint64)  # unsigned arithmetic wraps by definition
    if words.shape != (sum(row_lengths),):
        raise ValueError(f"expected {sum(row_lengths)} values, got shape {words.shape}")
    if any(sign not in (1, -1) for _, sign in seeds_with_sign):
        raise ValueError("expected signs 1 or -1")
    start = 0
    for row, length in enumerate(row_lengths):
        streams = [(row_stream(seed, row), sign) for seed, sign in seeds_with_sign] if length else []
        _add_streams(words[start : start + length], streams)
        start += length


def bound_seed(pair_seed: bytes, context: bytes) -> bytes:
    """The seed of a pair's masks, given what both trained on.

    Two clients that were sent different models get masks that do not cancel, so a server that does this gets noise
    instead of a sum (Pasquini, Francati and Ateniese 2022).
    """
    return HKDFExpand(SHA256(), 32, _context_label(context)).derive(pair_seed)


@lru_cache(maxsize=8)
def _context_label(context: bytes) -> bytes:
    return injective("bilateral mask context v1", context)


def row_stream(seed: bytes, row: int) -> CipherContext:
    """The cipher whose encryption of zeros is the mask of one row."""
    key = HKDFExpand(SHA256(), 32, _row_label(row)).derive(seed)
    return Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()


@lru_cache(maxsize=256)
def _row_label(row: int) -> bytes:
    return injective("bilateral mask row v1", row)


def row_words(seed: bytes, row: int, count: int) -> npt.NDArray[np.uint64]:
    """The first `count` words of a row's stream, at once."""
    return np.frombuffer(row_stream(seed, row).update(bytes(count * _WORD_BYTES)), dtype="<u8")


def _add_streams(words: npt.NDArray[np.uint64], streams: Sequence[tuple[CipherContext, int]]) -> None:
    # `update_into` wants a block more than it writes.
    buffer = bytearray(CHUNK_VALUES * _WORD_BYTES + _BLOCK_BYTES)
    stream_words = np.frombuffer(buffer, dtype="<u8", count=CHUNK_VALUES)
    for start in range(0, len(words), CHUNK_VALUES):
        chunk = words[start : start + CHUNK_VALUES]
        zeros, masks = _ZEROS[: chunk.nbytes], stream_words[: len(chunk)]
        for stream, sign in streams:
            stream.update_into(zeros, buffer)
            if sign > 0:
                np.add(chunk, masks, out=chunk)
            else:
                np.subtract(chunk, masks, out=chunk)
