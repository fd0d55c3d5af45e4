"""Safe primes, p = 2 p' + 1 with p' prime, for threshold Paillier."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bilateral.protocols.ciphers.packages import gmpy2
from bilateral.randomness import Randomness

if TYPE_CHECKING:
    import numpy.typing as npt

WINDOW = 1 << 16
SIEVE_TO = 1 << 16


def safe_prime(bits: int, randomness: Randomness) -> Any:
    """A random safe prime of `bits` bits, the two highest set, so that a product of two has twice as many."""
    mp = gmpy2()
    while True:
        start = int.from_bytes(randomness.random_bytes((bits + 7) // 8), "big") >> (-bits % 8)
        start |= 0b11 << (bits - 2) | 0b11
        for step in np.flatnonzero(_survivors(start)).tolist():
            candidate = mp.mpz(start + 4 * step)  # p = 3 modulo 4, so that p' is odd
            half = candidate >> 1
            if candidate.bit_length() != bits:
                break
            if mp.powmod(2, half, candidate) not in (1, candidate - 1):
                continue
            if mp.is_prime(half, 40) and mp.is_prime(candidate, 40):
                return candidate


def _survivors(start: int) -> npt.NDArray[np.bool_]:
    """Which of `start`, `start` + 4, ... have no small factor, nor half of them."""
    alive = np.ones(WINDOW, dtype=np.bool_)
    for prime in _small_primes().tolist():
        inverse = pow(4, -1, prime)
        alive[-start * inverse % prime :: prime] = False  # start + 4 i = 0
        alive[(1 - start) * inverse % prime :: prime] = False  # (start + 4 i - 1) / 2 = 0
    return alive


@cache
def _small_primes() -> npt.NDArray[np.int64]:
    """Odd ones."""
    sieve = np.ones(SIEVE_TO, dtype=np.bool_)
    sieve[:3] = False
    sieve[4::2] = False
    for number in range(3, int(SIEVE_TO**0.5) + 1, 2):
        if sieve[number]:
            sieve[number * number :: number] = False
    return np.flatnonzero(sieve)
