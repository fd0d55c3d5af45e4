"""Shamir's secret sharing of 32-byte secrets over the prime field of 2^256 + 297 elements.

A secret is the value at 0 of a random polynomial of degree `threshold - 1`; a share is its value at a point. Guarantee:
`threshold` shares give the secret, fewer are uniformly distributed whatever the secret is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from bilateral.errors import ProtocolError, ThresholdError
from bilateral.randomness import Randomness

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, points: Sequence[int], randomness: Randomness) -> dict[int, bytes]:
    """One share for each of `points`; any `threshold` of them give the secret back."""
    if len(secret) != SECRET_BYTES:
        raise ProtocolError(f"Expected a secret of {SECRET_BYTES} bytes, got {len(secret)}.")
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ProtocolError("Expected different points above 0; the value at 0 is the secret itself.")
    if not 1 <= threshold <= len(points):
        raise ProtocolError(
            f"Expected a threshold between 1 and {len(points)} (the number of shares), got {threshold}."
        )
    coefficients = [randomness.integer_below(PRIME) for _ in range(threshold - 1)]
    constant = int.from_bytes(secret, "little")
    return {point: _evaluate(constant, coefficients, point).to_bytes(SHARE_BYTES, "little") for point in points}


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the `threshold` shares with the smallest points."""
    if len(shares) < threshold:
        raise ThresholdError(f"Expected {threshold} shares of a secret, got {len(shares)}.")
    points = tuple(sorted(shares)[:threshold])
    secret = 0
    for point, coefficient in zip(points, _lagrange_at_zero(points), strict=True):
        value = int.from_bytes(shares[point], "little")
        if len(shares[point]) != SHARE_BYTES or value >= PRIME:
            raise ProtocolError(f"The share at point {point} is no element of the field.")
        secret += value * coefficient
    secret %= PRIME
    if secret >= 1 << (8 * SECRET_BYTES):
        raise ProtocolError("The shares do not belong to one secret.")
    return secret.to_bytes(SECRET_BYTES, "little")


def _evaluate(constant: int, coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value + coefficient) * point % PRIME
    return (value + constant) % PRIME


@lru_cache(maxsize=256)  # the server reconstructs many secrets from the same holders
def _lagrange_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """l_i(0) = prod_{j != i} x_j / (x_j - x_i), with one inversion for all: 1 / a = b (1 / (a b))."""
    product = 1
    for point in points:
        product = product * point % PRIME
    denominators = []
    for own in points:
        denominator = own
        for other in points:
            if other != own:
                denominator = denominator * (other - own) % PRIME
        denominators.append(denominator)
    before = [1]
    for denominator in denominators:
        before.append(before[-1] * denominator % PRIME)
    inverse, coefficients = pow(before[-1], -1, PRIME), []
    for place in reversed(range(len(points))):
        coefficients.append(product * inverse * before[place] % PRIME)
        inverse = inverse * denominators[place] % PRIME
    return tuple(reversed(coefficients))
