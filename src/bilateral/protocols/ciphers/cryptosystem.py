"""What a sum of ciphertexts needs of a cryptosystem: a dealer, those who hold keys, and a server that has none.

Values are vectors of integers; public and private keys, ciphertexts and what helps to open them are bytes, so that one
pair of halves and one set of messages does for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bilateral.protocols.ciphers.integers import Integers
from bilateral.randomness import Randomness


@dataclass(frozen=True, repr=False)
class Dealt:
    """What a dealer has drawn. `master` stays with it; "" where it keeps nothing."""

    public: bytes
    private: Mapping[str, bytes]
    master: bytes = b""


class SumOpener(Protocol):
    """Who helps to open sums."""

    def help_open(self, request: bytes) -> bytes:
        """A `ProtocolError` for a request that is none."""
        ...


class KeyHolder(SumOpener, Protocol):
    """Who encrypts, and may help to open sums."""

    def encrypt(self, values: Integers) -> bytes: ...


class Opener(Protocol):
    """The server, with the public key alone."""

    def check(self, ciphertext: bytes, count: int, sender: str) -> None:
        """A `ProtocolError` for what cannot be a ciphertext of `count` values."""
        ...

    def request(self, ciphertexts: Mapping[str, bytes]) -> bytes:
        """What helpers are asked to open: the sum of these."""
        ...

    def check_part(self, part: bytes, count: int, sender: str) -> None:
        """A `ProtocolError` for what cannot be a helper's part."""
        ...

    def open(
        self, ciphertexts: Mapping[str, bytes], request: bytes, parts: Mapping[str, bytes], count: int
    ) -> Integers:
        """The sum of `count` values each. A `LostSumError` if the parts do not open it."""
        ...


class Cryptosystem(Protocol):
    """One way to encrypt vectors of integers whose sum can be opened and whose terms cannot."""

    @property
    def dealer_opens(self) -> bool:
        """Sums are opened with the help of the dealer; else of clients."""
        ...

    def num_helpers(self, num_clients: int) -> int:
        """How many clients must help to open a sum, of so many that have keys."""
        ...

    def deal(self, clients: Sequence[str], randomness: Randomness) -> Dealt: ...

    def holder(self, name: str, public: bytes, private: bytes, randomness: Randomness) -> KeyHolder: ...

    def master(self, public: bytes, master: bytes) -> SumOpener:
        """The dealer's part, where it helps to open."""
        ...

    def opener(self, public: bytes) -> Opener: ...
