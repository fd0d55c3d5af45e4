"""Threshold Paillier: any `threshold` of the clients open a sum together, fewer learn nothing of it.

Damgard and Jurik's scheme (s = 1) with Shoup's sharing: N = p q of safe primes; d = 0 modulo m = p' q' and 1 modulo N
is shared by a polynomial over Z_(N m), so that nobody divides. Encryption has its randomness from a fixed base, h^r
with h = x^(2 N) and r of half the bits of N (Damgard, Jurik and Nielsen 2010, section 4.2). Values are packed: as many
to a ciphertext as their sums leave room for, and at the top of each a lane that counts the terms. A sum that is opened
wrong shows there, and is refused.

The dealer draws the primes, and could open everything. Parts come without a proof that they are right: a wrong one
loses the sum, and nobody is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np

from bilateral.errors import LostSumError, MalformedMessageError, ProtocolError
from bilateral.protocols.ciphers.cryptosystem import Dealt
from bilateral.protocols.ciphers.integers import Integers
from bilateral.protocols.ciphers.packages import gmpy2
from bilateral.protocols.ciphers.safe_primes import safe_prime
from bilateral.randomness import Randomness

LEAST_KEY_BITS: Final = 2048
COUNT_BITS: Final = 32
"""Of the lane that counts terms."""
_WINDOW_BITS: Final = 6
_HEADER: Final = 4


@dataclass(frozen=True)
class PublicKey:
    """N, and the base that randomness is a power of; how many have shares, and how many of them open."""

    modulus: int
    base: int
    num_shares: int
    threshold: int

    @property
    def key_bits(self) -> int:
        return self.modulus.bit_length()

    @property
    def width(self) -> int:
        """Bytes of a ciphertext."""
        return (2 * self.key_bits + 7) // 8

    @cached_property
    def square(self) -> Any:
        return gmpy2().mpz(self.modulus) ** 2

    def as_bytes(self) -> bytes:
        size = (self.key_bits + 7) // 8
        numbers = (size, self.num_shares, self.threshold)
        return (
            b"".join(n.to_bytes(_HEADER, "big") for n in numbers)
            + self.modulus.to_bytes(size, "big")
            + (self.base.to_bytes(self.width, "big"))
        )

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, data: bytes) -> PublicKey:
        """Also refuses keys that are too short: a dealer's choice is not everybody's."""
        size, shares, threshold = (int.from_bytes(data[_HEADER * i : _HEADER * (i + 1)], "big") for i in range(3))
        start = 3 * _HEADER
        if not 0 < threshold <= shares <= 1 << 16 or size > 1 << 12 or len(data) <= start + size:
            raise MalformedMessageError("Expected a public key of threshold Paillier, got something else.")
        found = cls(
            int.from_bytes(data[start : start + size], "big"),
            int.from_bytes(data[start + size :], "big"),
            shares,
            threshold,
        )
        wrong = found.key_bits < LEAST_KEY_BITS or len(data) != start + size + found.width
        if wrong or found.as_bytes() != data or not is_unit(found, gmpy2().mpz(found.base)):
            raise MalformedMessageError(
                f"Expected a public key of threshold Paillier with {LEAST_KEY_BITS} bits or more, got another.",
                remedy="Whoever deals must run the same plan.",
            )
        return found


@dataclass(frozen=True)
class ThresholdPaillier:
    """`honest`: the fraction of clients that keep to themselves what they have; the others do not open alone."""

    lane_bits: int
    key_bits: int = LEAST_KEY_BITS
    honest: float = 0.5
    dealer_opens: bool = False

    def num_helpers(self, num_clients: int) -> int:
        """As Truex et al. have it, n - t + 1 with t honest ones: those who are not honest are one short."""
        return num_clients - self.num_honest(num_clients) + 1

    def num_honest(self, num_clients: int) -> int:
        """More than `honest` of all, and at least 2, or one alone would open."""
        return min(num_clients, max(2, math.floor(self.honest * num_clients) + 1))

    def deal(self, clients: Sequence[str], randomness: Randomness) -> Dealt:
        p, q = (safe_prime(self.key_bits // 2, randomness) for _ in range(2))
        if p == q:
            raise ProtocolError("Both primes of a Paillier key came out the same: the generator is broken.")
        modulus, order = p * q, (p >> 1) * (q >> 1)
        mp = gmpy2()
        threshold = self.num_helpers(len(clients))
        secret = order * mp.invert(order, modulus)  # 0 modulo the order, 1 modulo N
        ring = modulus * order
        coefficients = [secret, *(_below(ring, randomness) for _ in range(threshold - 1))]
        root = _below(modulus, randomness)
        base = mp.powmod(root * root, modulus, modulus * modulus)
        public = PublicKey(int(modulus), int(base), len(clients), threshold)
        shares = {name: _evaluated(coefficients, place, ring) for place, name in enumerate(clients, 1)}
        return Dealt(
            public.as_bytes(),
            {
                name: place.to_bytes(_HEADER, "big") + int(share).to_bytes(2 * public.width, "big")
                for place, (name, share) in enumerate(shares.items(), 1)
            },
        )

    def holder(self, name: str, public: bytes, private: bytes, randomness: Randomness) -> ShareHolder:
        return ShareHolder(name, PublicKey.of(public), self.lane_bits, private, randomness)

    def master(self, public: bytes, master: bytes) -> ShareHolder:
        raise NotImplementedError("clients open sums, not their dealer")

    def opener(self, public: bytes) -> PaillierOpener:
        return PaillierOpener(PublicKey.of(public), self.lane_bits)


class ShareHolder:
    """A client with its share of the key."""

    def __init__(self, name: str, key: PublicKey, lane_bits: int, private: bytes, randomness: Randomness) -> None:
        self._name = name
        self._key = key
        self._lane_bits = lane_bits
        self._place = int.from_bytes(private[:_HEADER], "big")
        self._share = int.from_bytes(private[_HEADER:], "big")
        self._randomness = randomness
        if not 1 <= self._place <= key.num_shares:
            raise MalformedMessageError(f"{name}: the dealt share has the place {self._place}, which there is not.")

    def encrypt(self, values: Integers) -> bytes:
        key, square = self._key, self._key.square
        powers = _powers(key)
        found = []
        for plain in packed(values, self._lane_bits, key.key_bits):
            masked = (1 + plain % key.modulus * key.modulus) % square
            exponent = self._randomness.random_bytes(key.key_bits // 16)
            found.append(masked * powers.of(int.from_bytes(exponent, "big")) % square)
        return b"".join(int(c).to_bytes(key.width, "big") for c in found)

    def help_open(self, request: bytes) -> bytes:
        mp, key = gmpy2(), self._key
        exponent = 2 * math.factorial(key.num_shares) * self._share
        parts = [mp.powmod(c, exponent, key.square) for c in ciphertexts_in(key, request, "the server")]
        return self._place.to_bytes(_HEADER, "big") + b"".join(int(c).to_bytes(key.width, "big") for c in parts)


@dataclass(frozen=True)
class PaillierOpener:
    """The server: multiplies ciphertexts, and puts parts together."""

    key: PublicKey
    lane_bits: int

    def check(self, ciphertext: bytes, count: int, sender: str) -> None:
        wanted = math.ceil(count / num_lanes(self.lane_bits, self.key.key_bits))
        _expect_length(ciphertext, wanted * self.key.width, sender)
        ciphertexts_in(self.key, ciphertext, sender)

    def request(self, ciphertexts: Mapping[str, bytes]) -> bytes:
        square = self.key.square
        first, *others = [ciphertexts_in(self.key, ciphertexts[name], name) for name in sorted(ciphertexts)]
        for row in others:
            first = [mine * other % square for mine, other in zip(first, row, strict=True)]
        return b"".join(int(c).to_bytes(self.key.width, "big") for c in first)

    def check_part(self, part: bytes, count: int, sender: str) -> None:
        wanted = math.ceil(count / num_lanes(self.lane_bits, self.key.key_bits))
        _expect_length(part, _HEADER + wanted * self.key.width, sender)
        place = int.from_bytes(part[:_HEADER], "big")
        if not 1 <= place <= self.key.num_shares:
            raise ProtocolError(f"The part of {sender} is of share {place}, of {self.key.num_shares}.")
        ciphertexts_in(self.key, part[_HEADER:], sender)

    def open(
        self,
        ciphertexts: Mapping[str, bytes],
        request: bytes,  # noqa: ARG002
        parts: Mapping[str, bytes],
        count: int,
    ) -> Integers:
        mp, key = gmpy2(), self.key
        by_place = {int.from_bytes(part[:_HEADER], "big"): part[_HEADER:] for part in parts.values()}
        if len(by_place) < key.threshold:
            raise LostSumError(f"{len(by_place)} different shares helped to open a sum, {key.threshold} are needed.")
        places = sorted(by_place)[: key.threshold]
        delta = math.factorial(key.num_shares)
        weights = [2 * lagrange_at_zero(place, places, delta) for place in places]
        columns = zip(*(ciphertexts_in(key, by_place[place], "a helper") for place in places), strict=True)
        unscale = mp.invert(4 * delta * delta, key.modulus)
        plains = []
        for column in columns:
            product = mp.mpz(1)
            for part, weight in zip(column, weights, strict=True):
                product = product * mp.powmod(part, weight, key.square) % key.square
            if product % key.modulus != 1:
                raise LostSumError("The parts of a sum do not open it: one of them is wrong, or of another sum.")
            plains.append(int((product - 1) // key.modulus * unscale % key.modulus))
        return unpacked(plains, count, self.lane_bits, key, len(ciphertexts))


def num_lanes(lane_bits: int, key_bits: int) -> int:
    """Values in one ciphertext, below the lane that counts terms."""
    return (key_bits - 2 - COUNT_BITS) // lane_bits


def packed(values: Integers, lane_bits: int, key_bits: int) -> list[int]:
    """Signed values in lanes of one large integer each, with a 1 above them."""
    lanes = num_lanes(lane_bits, key_bits)
    found = []
    for start in range(0, len(values), lanes):
        total = 1 << lane_bits * lanes
        for lane, value in enumerate(values[start : start + lanes].tolist()):
            total += value << lane_bits * lane
        found.append(total)
    return found


def unpacked(plains: Sequence[int], count: int, lane_bits: int, key: PublicKey, num_terms: int) -> Integers:
    """The inverse for a sum of `num_terms`, whose values fit their lanes; refuses what has another count of terms."""
    lanes, size = num_lanes(lane_bits, key.key_bits), 1 << lane_bits
    found = np.zeros(len(plains) * lanes, dtype=np.int64)
    for row, plain in enumerate(plains):
        rest = plain
        for lane in range(lanes):
            value = rest % size
            if value >= size >> 1:
                value -= size
            rest = (rest - value) >> lane_bits
            found[row * lanes + lane] = value
        if rest != num_terms:
            raise LostSumError(
                f"An opened sum does not count its {num_terms} terms: a ciphertext or a part of it is not what it "
                "should be.",
                remedy="The round is lost; the model is as it was.",
            )
    return found[:count]


def lagrange_at_zero(place: int, places: Sequence[int], delta: int) -> int:
    """`delta` times the weight of the value at `place`, a whole number."""
    above, below = delta, 1
    for other in places:
        if other != place:
            above *= -other
            below *= place - other
    assert above % below == 0
    return above // below


def is_unit(key: PublicKey, number: Any) -> bool:
    return bool(0 < number < key.square and gmpy2().gcd(number, key.modulus) == 1)


def ciphertexts_in(key: PublicKey, data: bytes, sender: str) -> list[Any]:
    """The numbers in a message, each invertible modulo N^2."""
    if not data or len(data) % key.width:
        raise MalformedMessageError(f"Expected whole ciphertexts of {key.width} bytes from {sender}, got {len(data)}.")
    mp = gmpy2()
    found = [mp.mpz(int.from_bytes(data[i : i + key.width], "big")) for i in range(0, len(data), key.width)]
    if not all(is_unit(key, number) for number in found):
        raise MalformedMessageError(f"A ciphertext from {sender} is no unit modulo N^2.")
    return found


class _Powers:
    """Powers of one base, by a table of its windows."""

    def __init__(self, key: PublicKey) -> None:
        self._square = key.square
        mp, size = gmpy2(), 1 << _WINDOW_BITS
        self._rows: list[list[Any]] = []
        step = mp.mpz(key.base)
        for _ in range(math.ceil(key.key_bits / 2 / _WINDOW_BITS)):
            row = [mp.mpz(1)]
            for _ in range(size - 1):
                row.append(row[-1] * step % self._square)
            self._rows.append(row)
            step = row[-1] * step % self._square

    def of(self, exponent: int) -> Any:
        found = gmpy2().mpz(1)
        for row in self._rows:
            digit = exponent & (1 << _WINDOW_BITS) - 1
            if digit:
                found = found * row[digit] % self._square
            exponent >>= _WINDOW_BITS
        assert exponent == 0
        return found


@lru_cache(maxsize=4)
def _powers(key: PublicKey) -> _Powers:
    return _Powers(key)


def _below(bound: Any, randomness: Randomness) -> Any:
    """Uniform below `bound` up to 2^-128."""
    drawn = randomness.random_bytes((int(bound).bit_length() + 7) // 8 + 16)
    return gmpy2().mpz(int.from_bytes(drawn, "big")) % bound


def _evaluated(coefficients: Sequence[Any], place: int, ring: Any) -> Any:
    value = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = (value * place + coefficient) % ring
    return value % ring


def _expect_length(data: bytes, wanted: int, sender: str) -> None:
    if len(data) != wanted:
        raise MalformedMessageError(
            f"Expected {wanted} bytes of ciphertexts from {sender}, got {len(data)}.",
            remedy="Both sides must run the same plan.",
        )
