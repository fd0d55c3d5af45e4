"""Masks from AES-256 in counter mode, added into a vector at close to the speed of the cipher itself.

A seed is expanded to one key a row (HKDF-Expand), and a key is used for one stream, so the counter starts at zero. The
work goes chunk by chunk, all streams of a chunk before the next one, so that the sums stay in the processor's cache.
Guarantee: to whoever does not know the seed, a masked vector is uniform on Z_2^width (as far as AES is a pseudorandom
function), whatever was masked.

In a ring of fewer than 64 bits a row has two streams, one of the lower 32 bits of its values and one of the 8 or 16
above them, so that nothing is drawn that is not used. The weight, at the end of the vector, has 64 bits in every ring
and a stream of its own.
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
from bilateral.protocols.mask.widths import LOWER_BITS, UPPER_TYPES, WIDEST, Width, add_upper

CHUNK_VALUES = 1 << 14
"""128 KiB of sums and as much of the stream: both fit into a second-level cache."""
_WORD_BYTES = 8
_BLOCK_BYTES = 16
_ZEROS = memoryview(bytes(CHUNK_VALUES * _WORD_BYTES))


def add_masks(
    accumulator: npt.NDArray[np.int64],
    seeds_with_sign: Sequence[tuple[bytes, int]],
    row_lengths: Sequence[int],
    width: Width = WIDEST,
) -> None:
    """Add (sign +1) or subtract (sign -1) the streams of all seeds, modulo 2^width, in place.

    `accumulator` is contiguous; its rows have `row_lengths`, and each row of each seed has a key of its own. The last
    value of the last row is the weight.
    """
    words = accumulator.view(np.uint64)  # unsigned arithmetic wraps by definition
    if words.shape != (sum(row_lengths),):
        raise ValueError(f"expected {sum(row_lengths)} values, got shape {words.shape}")
    if any(sign not in (1, -1) for _, sign in seeds_with_sign):
        raise ValueError("expected signs 1 or -1")
    start = 0
    if width != WIDEST:
        _add_narrow(words[:-1], seeds_with_sign, [*row_lengths[:-1], row_lengths[-1] - 1], width)
        _add_streams(words[-1:], [(row_stream(seed, len(row_lengths)), sign) for seed, sign in seeds_with_sign])
        return
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


def plane_stream(seed: bytes, row: int, width: Width, plane: str) -> CipherContext:
    """The same for the `lower` 32 bits of a row in a ring of `width` bits, or for those `upper` ones above them."""
    key = HKDFExpand(SHA256(), 32, _plane_label(row, width, plane)).derive(seed)
    return Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()


@lru_cache(maxsize=256)
def _plane_label(row: int, width: int, plane: str) -> bytes:
    return injective("bilateral mask plane v1", row, width, plane)


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


def _add_narrow(
    words: npt.NDArray[np.uint64], seeds: Sequence[tuple[bytes, int]], row_lengths: Sequence[int], width: Width
) -> None:
    start = 0
    for row, length in enumerate(row_lengths):
        if length:
            lower = [(plane_stream(seed, row, width, "lower"), sign) for seed, sign in seeds]
            upper = [(plane_stream(seed, row, width, "upper"), sign) for seed, sign in seeds if width in UPPER_TYPES]
            _add_planes(words[start : start + length], lower, upper, width)
        start += length


def _add_planes(
    words: npt.NDArray[np.uint64],
    lower: Sequence[tuple[CipherContext, int]],
    upper: Sequence[tuple[CipherContext, int]],
    width: Width,
) -> None:
    """Upper bits are added up by themselves, modulo what they are modulo; lower ones with what they carry."""
    buffer = bytearray(CHUNK_VALUES * LOWER_BITS // 8 + _BLOCK_BYTES)
    upper_type = UPPER_TYPES.get(width)
    for start in range(0, len(words), CHUNK_VALUES):
        chunk = words[start : start + CHUNK_VALUES]
        masks = np.frombuffer(buffer, dtype="<u4", count=len(chunk))
        for stream, sign in lower:
            stream.update_into(_ZEROS[: masks.nbytes], buffer)
            (np.add if sign > 0 else np.subtract)(chunk, masks, out=chunk)
        if upper_type is None:
            continue
        total, masks = np.zeros(len(chunk), upper_type), np.frombuffer(buffer, dtype=upper_type, count=len(chunk))
        for stream, sign in upper:
            stream.update_into(_ZEROS[: masks.nbytes], buffer)
            (np.add if sign > 0 else np.subtract)(total, masks, out=total)
        add_upper(chunk, total)
