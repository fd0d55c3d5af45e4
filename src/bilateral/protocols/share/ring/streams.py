"""Pseudorandom correlations: what two parties would otherwise send each other, both expand from a seed they share.

A session (one querying party, one answering party, one model) has a seed for each of its three pairs. From it come
streams by purpose and batch, AES-128 in counter mode, each with a key of its own. Both parties of a stream read it in
the order of the circuit, so nothing but the seed has to agree.

Guarantee: a stream is read once. Whoever holds the seeds refuses a session or a batch that it has seen before,
because a mask that hides two values hides neither.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass
from typing import Final, Literal

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
_KEY_BYTES: Final = 16
_BLOCK_BYTES: Final = 16
_WORD_BYTES: Final = 8
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
            "bilateral share session v1", self.session_id, self.querier, self.answerer, self.circuit, self.style
        )


def stream_key(seed: bytes, label: bytes) -> bytes:
    """HKDF-Expand with SHA-256, of one block (RFC 5869): there are hundreds of streams in a step."""
    return hmac.digest(seed, label + b"\x01", "sha256")[:_KEY_BYTES]


class Stream:
    """Uniform ring elements, one after the other."""

    def __init__(
        self, seed: bytes, purpose: Purpose, batch_index: int, batch_size: int, device: torch.device | None = None
    ) -> None:
        label = injective("bilateral share stream v1", purpose, batch_index, batch_size)
        key = stream_key(seed, label)
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()
        self.device = device or torch.device("cpu")

    def words(self, *shape: int) -> Tensor:
        """Uniform on Z_2^64, as int64."""
        count = math.prod(shape)
        return self._take(count * _WORD_BYTES).view(torch.int64)[:count].reshape(shape).to(self.device)

    def half_words(self, *shape: int) -> Tensor:
        """Uniform on Z_2^32, as int32."""
        count = math.prod(shape)
        return self._take(count * 4).view(torch.int32)[:count].reshape(shape).to(self.device)

    def packed_bits(self, count: int) -> Tensor:
        """Uniform bits, eight to a byte (`packing`)."""
        num_bytes = (count + 7) // 8
        return self._take(num_bytes)[:num_bytes].to(self.device)

    def _take(self, num_bytes: int) -> Tensor:
        """The next bytes, in whole words: both sides round alike."""
        rounded = -(-num_bytes // _WORD_BYTES) * _WORD_BYTES
        # `update_into` wants a block more than it writes.
        words = torch.empty(rounded + _BLOCK_BYTES, dtype=torch.uint8)
        view = words.numpy().data
        # In pieces: the zeros stay in the cache, and the cipher writes where the words are wanted.
        for start in range(0, rounded, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, rounded - start)
            self._cipher.update_into(_ZEROS[:size], view[start : start + size + _BLOCK_BYTES])
        return words[:rounded]
