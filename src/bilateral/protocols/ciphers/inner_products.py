"""Functional encryption of inner products with several inputs, as HybridAlpha has it (Abdalla et al. 2018, from DDH).

An authority has s_i, t_i and a pad u_i for each client i. In a group with generators G and H, client i encrypts x as

    C = r G,  D = r H,  E = (x + u_i) G + r S_i,  where S_i = s_i G + t_i H,

with a fresh r for each value. For a vector y of weights the authority gives away z = sum y_i u_i and y_i s_i, y_i t_i,
with which sum y_i (E_i - s_i C_i - t_i D_i) - z G is the inner product times G; it is then searched for. Weights are 0
and 1 here (who is in the sum), on edwards25519 (128-bit security), in its subgroup of prime order.

As published (as far as we can tell), one key per client serves all its values and all rounds. Nothing binds values of
different clients together: what opens the sum of one coordinate opens any mixture of coordinates and rounds, and with
that, of every client, the difference of any two values (ledger, line 19; test_inner_products.py does it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha512
from typing import Final

import numpy as np

from bilateral.documents import parse_json
from bilateral.errors import LostSumError, MalformedMessageError, ProtocolError
from bilateral.protocols.ciphers.cryptosystem import Dealt
from bilateral.protocols.ciphers.integers import Integers
from bilateral.protocols.ciphers.packages import nacl_bindings
from bilateral.randomness import Randomness

ORDER: Final = 2**252 + 27742317777372353535851937790883648493
POINT: Final = 32
VALUE: Final = 3 * POINT
NEUTRAL: Final = (1).to_bytes(POINT, "little")
BABY_STEPS: Final = 1 << 13


@dataclass(frozen=True)
class InnerProducts:
    """`bits`: of the largest sum, with its sign; the search for it takes 2^(bits / 2) steps at worst."""

    bits: int
    dealer_opens: bool = True

    def num_helpers(self, num_clients: int) -> int:  # noqa: ARG002
        return 0

    def deal(self, clients: Sequence[str], randomness: Randomness) -> Dealt:
        second = times_base(_scalar(randomness))
        secrets = {name: tuple(_scalar(randomness) for _ in range(3)) for name in clients}
        private = {}
        for name, (s, t, u) in secrets.items():
            private[name] = add(times_base(s), times(t, second)) + u.to_bytes(POINT, "little")
        names = json.dumps(list(clients)).encode()
        rows = b"".join(part.to_bytes(POINT, "little") for name in clients for part in secrets[name])
        return Dealt(second + names, private, rows)

    def holder(self, name: str, public: bytes, private: bytes, randomness: Randomness) -> Encryptor:
        return Encryptor(name, public[:POINT], private, randomness)

    def master(self, public: bytes, master: bytes) -> Authority:
        return Authority(_names_in(public), master)

    def opener(self, public: bytes) -> ProductOpener:
        return ProductOpener(_names_in(public), self.bits)


class Encryptor:
    """A client: its public key S_i, and its pad."""

    def __init__(self, name: str, second: bytes, private: bytes, randomness: Randomness) -> None:
        if len(private) != 2 * POINT or not is_point(second) or not is_point(private[:POINT]):
            raise MalformedMessageError(f"{name}: what was dealt is no key of this functional encryption.")
        self._second, self._key = second, private[:POINT]
        self._pad = int.from_bytes(private[POINT:], "little")
        self._randomness = randomness

    def encrypt(self, values: Integers) -> bytes:
        found = []
        for value in values.tolist():
            r = _scalar(self._randomness)
            masked = times_base((value + self._pad) % ORDER)
            found.append(times_base(r) + times(r, self._second) + add(masked, times(r, self._key)))
        return b"".join(found)

    def help_open(self, request: bytes) -> bytes:  # noqa: ARG002
        raise ProtocolError("The authority opens sums, and clients do not.")


class Authority:
    """The dealer: gives the key for a sum over at least two clients."""

    def __init__(self, names: tuple[str, ...], master: bytes) -> None:
        self._names = names
        self._master = master

    def help_open(self, request: bytes) -> bytes:
        """`request` has a byte for each client: 1 for those in the sum. HybridAlpha's filter: one alone is no sum."""
        if len(request) != len(self._names) or set(request) - {0, 1} or sum(request) < 2:
            raise ProtocolError(
                "The authority gives keys for sums over two clients or more of this run, and was asked for another.",
                remedy="At least two clients must upload.",
            )
        rows = [
            [int.from_bytes(self._master[POINT * (3 * i + k) : POINT * (3 * i + k + 1)], "little") for k in range(3)]
            for i, chosen in enumerate(request)
            if chosen
        ]
        total = sum(pad for _, _, pad in rows) % ORDER
        keys = b"".join(s.to_bytes(POINT, "little") + t.to_bytes(POINT, "little") for s, t, _ in rows)
        return total.to_bytes(POINT, "little") + keys


@dataclass(frozen=True)
class ProductOpener:
    """The server: opens sums with the authority's key for them."""

    names: tuple[str, ...]
    bits: int

    def check(self, ciphertext: bytes, count: int, sender: str) -> None:
        if len(ciphertext) != count * VALUE:
            raise MalformedMessageError(
                f"Expected {count} encrypted values from {sender}, got {len(ciphertext) / VALUE:g}.",
                remedy="Both sides must run the same plan.",
            )
        points = range(0, len(ciphertext), POINT)
        if sender not in self.names or not all(is_point(ciphertext[i : i + POINT]) for i in points):
            raise MalformedMessageError(f"What {sender} sent are no points of the group.")

    def request(self, ciphertexts: Mapping[str, bytes]) -> bytes:
        return bytes(int(name in ciphertexts) for name in self.names)

    def check_part(self, part: bytes, count: int, sender: str) -> None:  # noqa: ARG002
        if len(part) < POINT or (len(part) - POINT) % (2 * POINT):
            raise MalformedMessageError(f"What {sender} sent is no key for a sum.")

    def open(
        self,
        ciphertexts: Mapping[str, bytes],
        request: bytes,  # noqa: ARG002
        parts: Mapping[str, bytes],
        count: int,
    ) -> Integers:
        (part,) = parts.values()
        inside = [name for name in self.names if name in ciphertexts]
        if len(part) != POINT * (1 + 2 * len(inside)):
            raise LostSumError("The authority's key is for another number of clients.")
        opened = [opened_values(ciphertexts[name], key_of(part, i), count) for i, name in enumerate(inside)]
        pads = times_base(-total_of(part) % ORDER)
        found = np.empty(count, dtype=np.int64)
        for place in range(count):
            point = pads
            for row in opened:
                point = add(point, row[place])
            found[place] = logarithm(point, self.bits)
        return found


def total_of(part: bytes) -> int:
    """The sum of the pads, from the authority's key."""
    return int.from_bytes(part[:POINT], "little")


def key_of(part: bytes, place: int) -> tuple[int, int]:
    """(s, t) of one client, from the authority's key."""
    start = POINT * (1 + 2 * place)
    pieces = (part[start : start + POINT], part[start + POINT : start + 2 * POINT])
    s, t = (int.from_bytes(piece, "little") for piece in pieces)
    return s, t


def opened_values(ciphertext: bytes, key: tuple[int, int], count: int) -> list[bytes]:
    """(x + u) G for each value of one client."""
    s, t = key
    found = []
    for place in range(count):
        start = VALUE * place
        c, d, e = (ciphertext[start + POINT * k : start + POINT * (k + 1)] for k in range(3))
        found.append(subtract(e, add(times(s, c), times(t, d))))
    return found


def logarithm(point: bytes, bits: int) -> int:
    """The whole number below 2^(bits - 1), either sign, whose multiple of the base this is; small ones come first."""
    table, (stride, back) = _baby_steps(), _giant_steps()
    up = down = point
    for giant in range((1 << bits - 1) // BABY_STEPS + 2):
        for candidate, sign in ((up, 1), (down, -1)):
            place = table.get(candidate)
            if place is not None:
                return sign * giant * BABY_STEPS + place
        up, down = add(up, back), add(down, stride)
    raise LostSumError("A sum does not open: what was encrypted is larger than sums may be, or under another key.")


@lru_cache(maxsize=1)
def _baby_steps() -> dict[bytes, int]:
    """Small multiples of the base, both signs."""
    found, up = {NEUTRAL: 0}, NEUTRAL
    one = times_base(1)
    for number in range(1, BABY_STEPS):
        up = add(up, one)
        found[up] = number
        found[negated(up)] = -number
    return found


@lru_cache(maxsize=1)
def _giant_steps() -> tuple[bytes, bytes]:
    return times_base(BABY_STEPS), times_base(-BABY_STEPS % ORDER)


def times_base(scalar: int) -> bytes:
    return _multiplied(scalar % ORDER, None)


def times(scalar: int, point: bytes) -> bytes:
    return _multiplied(scalar % ORDER, point)


def _multiplied(scalar: int, point: bytes | None) -> bytes:
    """libsodium refuses results that are neutral, which are right here."""
    if scalar == 0 or point == NEUTRAL:
        return NEUTRAL
    data, nacl = scalar.to_bytes(POINT, "little"), nacl_bindings()
    found: bytes = (
        nacl.crypto_scalarmult_ed25519_base_noclamp(data)
        if point is None
        else nacl.crypto_scalarmult_ed25519_noclamp(data, point)
    )
    return found


def add(one: bytes, other: bytes) -> bytes:
    found: bytes = nacl_bindings().crypto_core_ed25519_add(one, other)
    return found


def subtract(one: bytes, other: bytes) -> bytes:
    found: bytes = nacl_bindings().crypto_core_ed25519_sub(one, other)
    return found


def negated(point: bytes) -> bytes:
    """The sign is the highest bit; 0 has none."""
    return point if point == NEUTRAL else point[:-1] + bytes([point[-1] ^ 0x80])


def is_point(data: bytes) -> bool:
    """Of the subgroup of prime order, and not neutral."""
    return len(data) == POINT and bool(nacl_bindings().crypto_core_ed25519_is_valid_point(data))


def _scalar(randomness: Randomness) -> int:
    """Uniform below the order, but for 2^-256; never 0."""
    while not (drawn := int.from_bytes(sha512(randomness.random_bytes(64)).digest(), "little") % ORDER):
        pass
    return drawn


def _names_in(public: bytes) -> tuple[str, ...]:
    try:
        names = parse_json(public[POINT:])
    except ValueError as error:
        raise MalformedMessageError("Expected the public key of this functional encryption, got another.") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not is_point(public[:POINT]):
        raise MalformedMessageError("Expected the public key of this functional encryption, got another.")
    return tuple(names)
