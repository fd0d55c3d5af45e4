"""Safe primes are drawn once for all runs of these tests: drawing them is most of what a small run takes."""

from __future__ import annotations

import itertools

import pytest

from bilateral.protocols.ciphers import threshold_paillier
from bilateral.protocols.ciphers.safe_primes import safe_prime
from bilateral.randomness import SecureRandomness


@pytest.fixture(scope="session")
def primes():
    return [safe_prime(1024, SecureRandomness()) for _ in range(2)]


@pytest.fixture(autouse=True)
def primes_at_hand(primes, monkeypatch):
    """Keys of 2048 bits have these; of other sizes, fresh ones."""
    turns = itertools.cycle(primes)

    def drawn(bits, randomness):
        return next(turns) if bits == 1024 else safe_prime(bits, randomness)

    monkeypatch.setattr(threshold_paillier, "safe_prime", drawn)
