"""Secret sharing against full interpolation, and what fewer shares say: nothing."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.errors import ProtocolError, ThresholdError
from bilateral.protocols.mask import shamir
from bilateral.randomness import SeededRandomness


def is_prime(n, bases=range(2, 60)):
    """Miller-Rabin."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        value = pow(base, odd, n)
        if value in (1, n - 1):
            continue
        for _ in range(twos - 1):
            value = value * value % n
            if value == n - 1:
                break
        else:
            return False
    return True


def solve_for_constant(shares, prime):
    """Slow oracle: Gaussian elimination of the whole Vandermonde system; the constant coefficient."""
    size = len(shares)
    rows = [[pow(x, k, prime) for k in range(size)] + [int.from_bytes(y, "little")] for x, y in shares.items()]
    for column in range(size):
        pivot = next(r for r in range(column, size) if rows[r][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        inverse = pow(rows[column][column], prime - 2, prime)
        rows[column] = [value * inverse % prime for value in rows[column]]
        for other in range(size):
            if other != column:
                factor = rows[other][column]
                rows[other] = [(a - factor * b) % prime for a, b in zip(rows[other], rows[column], strict=True)]
    return rows[0][size]


def test_the_field_is_prime_and_the_smallest_above_all_secrets():
    assert is_prime(shamir.PRIME)
    assert not any(is_prime(2**256 + offset) for offset in range(1, 297))
    assert [n for n in range(2, 60) if is_prime(n, range(2, n))][:6] == [2, 3, 5, 7, 11, 13]  # the oracle itself


@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.integers(0, 6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_threshold_of_shares_gives_the_secret_as_full_interpolation_does(secret, threshold, spare, choose):
    points = choose.sample(range(1, 1000), threshold + spare)
    shares = shamir.split(secret, threshold, points, SeededRandomness(choose.randrange(10**6)))
    assert all(len(share) == shamir.SHARE_BYTES for share in shares.values())
    some = {point: shares[point] for point in choose.sample(points, threshold)}
    assert shamir.combine(some, threshold) == secret
    assert shamir.combine(shares, threshold) == secret
    assert solve_for_constant(some, shamir.PRIME) == int.from_bytes(secret, "little")


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_the_smallest_and_the_largest_secret_come_back(secret):
    shares = shamir.split(secret, 3, [1, 2, 3], SeededRandomness(0))
    assert shamir.combine(shares, 3) == secret


def test_fewer_than_threshold_shares_are_uniform_whatever_the_secret(monkeypatch):
    """All polynomials over a small field, counted: any two of three shares take every pair of values equally often."""
    prime = 7
    monkeypatch.setattr(shamir, "PRIME", prime)
    for constant in range(prime):
        for points in combinations((1, 2, 5), 2):
            seen = Counter(
                tuple(shamir._evaluate(constant, [first, second], point) for point in points)
                for first in range(prime)
                for second in range(prime)
            )
            assert set(seen.values()) == {1}
            assert len(seen) == prime**2


@pytest.mark.parametrize("threshold", range(2, 10))
def test_one_share_less_than_the_threshold_interpolates_to_something_else(threshold):
    """The polynomial has its full degree."""
    shares = shamir.split(bytes(32), threshold, range(1, threshold + 1), SeededRandomness(0))
    del shares[threshold]
    assert solve_for_constant(shares, shamir.PRIME) != 0


def test_coefficients_are_drawn_afresh_for_every_secret():
    randomness = SeededRandomness(0)
    assert shamir.split(bytes(32), 2, [1, 2], randomness) != shamir.split(bytes(32), 2, [1, 2], randomness)


def test_too_few_shares_are_refused_with_a_count():
    shares = shamir.split(bytes(32), 3, [1, 2, 3], SeededRandomness(0))
    del shares[2]
    with pytest.raises(ThresholdError, match="Expected 3 shares of a secret, got 2"):
        shamir.combine(shares, 3)


@pytest.mark.parametrize("share", [b"", bytes(32), bytes(34), b"\xff" * 33])
def test_a_share_that_is_no_field_element_is_refused(share):
    shares = shamir.split(bytes(32), 2, [1, 2], SeededRandomness(0))
    with pytest.raises(ProtocolError, match="point 2"):
        shamir.combine({**shares, 2: share}, 2)


def test_shares_that_belong_to_no_secret_are_refused():
    outside = (2**256 + 5).to_bytes(33, "little")
    with pytest.raises(ProtocolError, match="do not belong to one secret"):
        shamir.combine({1: outside}, 1)


@pytest.mark.parametrize(
    ("secret", "threshold", "points"),
    [(bytes(31), 1, [1]), (bytes(32), 2, [1]), (bytes(32), 0, [1]), (bytes(32), 1, [0]), (bytes(32), 1, [1, 1])],
)
def test_sharing_that_makes_no_sense_is_refused(secret, threshold, points):
    with pytest.raises(ProtocolError):
        shamir.split(secret, threshold, points, SeededRandomness(0))
