"""Pseudorandom correlations: what two parties would otherwise send each other, both expand from a seed they share.

A session (one querying party, one answering party, one model) has a seed for each of its three pairs. From it come
streams by purpose and batch, and both parties of a stream read it in the order of the circuit, so nothing but the seed
has to agree. All streams of one seed and batch size are AES-128 in counter mode under one key; each has counters of its
own, which no other can reach:

    purpose (1 byte) | index (8 bytes) | block of the stream (7 bytes)

Guarantee: a stream is read once. Whoever holds the seeds refuses a session or a batch that it has seen before,
because a mask that hides two values hides neither.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from torch import Tensor

from bilateral.protocols.mask.injective import injective

Purpose = Literal[
    "weights", "input", "linear", "rounding", "comparison", "output",
    "gate", "value mask", "delta mask", "value blind", "delta blind", "gradient", "dropout", "signs",
]  # fmt: skip
"""The second row is of a training step (`training/roles`), where a stream is of one gate, value or layer."""
SEED_BYTES: Final = 32
_NUMBERS: Final[dict[Purpose, int]] = {purpose: number for number, purpose in enumerate(get_args(Purpose))}
_KEY_BYTES: Final = 16
_BLOCK_BYTES: Final = 16
_BLOCK_WORDS: Final = 2
_INDEX_BYTES: Final = 8
_COUNTER_BYTES: Final = 7
_CHUNK_BYTES: Final = 1 << 18
_ZEROS: Final = memoryview(bytes(_CHUNK_BYTES))


@dataclass(frozen=True)
class SessionAgreement:
    """What the three parties of a session must agree on. Who was told something else has other masks, and gets noise.

    A server that showed the querying party another circuit could otherwise make it read its streams at other places
    than the answering party does, and see masks of one in the messages of the other.
    """

    session_id: bytes
    querier: str
    answerer: str
    circuit: str
    style: str

    def seed(self, pair_secret: bytes) -> bytes:
        """The seed of one pair in this session."""
        return HKDFExpand(SHA256(), SEED_BYTES, self._label).derive(pair_secret)

    @property
    def digest(self) -> bytes:
        """Names these terms and no others."""
        return hashlib.sha256(self._label).digest()

    @property
    def _label(self) -> bytes:
        return injective(
            "bilateral share session v2", self.session_id, self.querier, self.answerer, self.circuit, self.style
        )


def stream_key(seed: bytes, label: bytes) -> bytes:
    """HKDF-Expand with SHA-256, of one block (RFC 5869): there are hundreds of streams in a step."""
    return hmac.digest(seed, label + b"\x01", "sha256")[:_KEY_BYTES]


class Keystream:
    """Where all streams of one seed and batch size come from. Of one thread: they share its cipher."""

    def __init__(self, seed: bytes, batch_size: int, device: torch.device | None = None) -> None:
        key = stream_key(seed, injective("bilateral share stream v2", batch_size))
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()
        self.device = device or torch.device("cpu")

    def stream(self, purpose: Purpose, index: int) -> Stream:
        """One of them, from its beginning."""
        return Stream(self, purpose, index)

    def fill(self, start: int, words: npt.NDArray[np.int64]) -> None:
        """From this counter on. The last block of `words` is room for the cipher, which wants one more than it
        writes."""
        self._cipher.reset_nonce(start.to_bytes(_BLOCK_BYTES))
        view, count = words.data.cast("B"), words.nbytes - _BLOCK_BYTES
        # In pieces: the zeros stay in the cache, and the cipher writes where the words are wanted.
        for begin in range(0, count, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, count - begin)
            self._cipher.update_into(_ZEROS[:size], view[begin : begin + size + _BLOCK_BYTES])


class Stream:
    """Uniform ring elements, one after the other."""

    def __init__(self, keystream: Keystream, purpose: Purpose, index: int) -> None:
        self._keystream, self.device = keystream, keystream.device
        named = _NUMBERS[purpose].to_bytes() + index.to_bytes(_INDEX_BYTES) + bytes(_COUNTER_BYTES)
        self._counter = int.from_bytes(named)

    @classmethod
    def of(
        cls, seed: bytes, purpose: Purpose, batch_index: int, batch_size: int, device: torch.device | None = None
    ) -> Stream:
        """One whose siblings nobody wants here."""
        return cls(Keystream(seed, batch_size, device), purpose, batch_index)

    def words(self, *shape: int) -> Tensor:
        """Uniform on Z_2^64, as int64."""
        count = math.prod(shape)
        found = self._take(count)[:count]
        return (found if len(shape) == 1 else found.view(shape)).to(self.device)

    def half_words(self, *shape: int) -> Tensor:
        """Uniform on Z_2^32, as int32."""
        count = math.prod(shape)
        return self._take((count + 1) // 2).view(torch.int32)[:count].view(shape).to(self.device)

    def packed_bits(self, count: int) -> Tensor:
        """Uniform bits, eight to a byte (`packing`)."""
        return self._take((count + 63) // 64).view(torch.uint8)[: (count + 7) // 8].to(self.device)

    def _take(self, num_words: int) -> Tensor:
        """The next words, in whole blocks: both sides round alike."""
        blocks = -(-num_words // _BLOCK_WORDS)
        words = torch.empty(_BLOCK_WORDS * (blocks + 1), dtype=torch.int64)
        self._keystream.fill(self._counter, words.numpy())
        self._counter += blocks
        return words
