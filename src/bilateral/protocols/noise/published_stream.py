"""A pair's shared secret as an endless stream of random bytes: AES-256 in counter mode."""

from __future__ import annotations

import hashlib
from typing import Final, final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from bilateral.errors import ProtocolError
from bilateral.randomness import Randomness

_MIN_SECRET_BYTES: Final = 16


@final
class PairStream(Randomness):
    """Both holders of `secret` draw the same numbers from it, nobody else can tell them from random ones.

    A stream is used from its beginning, once: the key is the secret's hash, the counter starts at 0.
    """

    def __init__(self, secret: bytes, *labels: str | int) -> None:
        if len(secret) < _MIN_SECRET_BYTES:
            raise ProtocolError(
                f"Expected a pair secret of at least {_MIN_SECRET_BYTES} bytes, got {len(secret)}.",
                remedy="Derive it by key agreement; it must not be guessed.",
            )
        self._secret, self._labels = secret, labels
        # The labels have no secret parts, and `repr` of a tuple of texts and numbers is injective.
        key = hashlib.blake2b(repr(labels).encode(), key=_key_of(secret), digest_size=32).digest()
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def random_bytes(self, num_bytes: int) -> bytes:
        return self._cipher.update(bytes(num_bytes))

    def child(self, *labels: str | int) -> PairStream:
        return PairStream(self._secret, *self._labels, *labels)


def _key_of(secret: bytes) -> bytes:
    return hashlib.sha256(b"bilateral published noise v1" + secret).digest()
