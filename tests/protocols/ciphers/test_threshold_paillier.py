"""Threshold Paillier against a slow Paillier, share by share."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.ciphers.conftest import NAMES

from bilateral.errors import LostSumError, MalformedMessageError
from bilateral.protocols.ciphers.safe_primes import safe_prime
from bilateral.protocols.ciphers.threshold_paillier import (
    PublicKey,
    ThresholdPaillier,
    ciphertexts_in,
    lagrange_at_zero,
    num_lanes,
    packed,
    unpacked,
)
from bilateral.randomness import SecureRandomness, SeededRandomness

SYSTEM = ThresholdPaillier(40)


def key_of(dealt):
    return PublicKey.of(dealt["paillier"].public)


def holder(dealt, name):
    keys = dealt["paillier"]
    return SYSTEM.holder(name, keys.public, keys.private[name], SecureRandomness())


@pytest.mark.parametrize("bits", [32, 64, 128])
def test_safe_primes_are_primes_whose_halves_are_primes(bits):
    for seed in range(5):
        found = safe_prime(bits, SeededRandomness(seed))
        assert found.bit_length() == bits
        assert gmpy2.is_prime(found, 50)
        assert gmpy2.is_prime(found // 2, 50)


def test_the_key_is_as_long_as_the_plan_says_and_no_share_is_the_secret(dealt):
    key = key_of(dealt)
    assert key.key_bits == 2048
    assert (key.num_shares, key.threshold) == (5, 3)
    assert len(set(dealt["paillier"].private.values())) == 5


@pytest.mark.parametrize(("clients", "honest", "helpers"), [(2, 2, 1), (3, 2, 2), (4, 3, 2), (5, 3, 3), (10, 6, 5)])
def test_as_many_open_as_there_are_not_honest_and_one(clients, honest, helpers):
    assert (SYSTEM.num_honest(clients), SYSTEM.num_helpers(clients)) == (honest, helpers)
    assert replace(SYSTEM, honest=0.99).num_helpers(clients) == 1


def test_any_three_of_five_open_and_no_two_do(dealt):
    """Fewer shares are refused; and forced to, they open something else."""
    own = {name: holder(dealt, name) for name in NAMES}
    ciphertexts = {name: own[name].encrypt(np.array([5, -7])) for name in ("a", "b")}
    opener = SYSTEM.opener(dealt["paillier"].public)
    request = opener.request(ciphertexts)
    parts = {name: own[name].help_open(request) for name in NAMES}
    for chosen in itertools.combinations(NAMES, 3):
        found = opener.open(ciphertexts, request, {name: parts[name] for name in chosen}, 2)
        assert found.tolist() == [10, -14]
    with pytest.raises(LostSumError, match="2 different shares"):
        opener.open(ciphertexts, request, {name: parts[name] for name in ("a", "e")}, 2)
    with pytest.raises(LostSumError, match="2 different shares"):
        opener.open(ciphertexts, request, {"a": parts["a"], "b": parts["b"], "c": parts["a"]}, 2)
    forced = replace(opener, key=replace(opener.key, threshold=2))
    with pytest.raises(LostSumError, match="do not open it"):
        forced.open(ciphertexts, request, {name: parts[name] for name in ("a", "e")}, 2)


def test_a_changed_part_loses_the_sum_and_gives_no_wrong_numbers(dealt):
    own = {name: holder(dealt, name) for name in ("a", "b", "c")}
    ciphertexts = {name: own[name].encrypt(np.array([1])) for name in ("a", "b")}
    opener = SYSTEM.opener(dealt["paillier"].public)
    request = opener.request(ciphertexts)
    parts = {name: own[name].help_open(request) for name in own}
    swapped = parts["b"][:4] + parts["c"][4:]
    with pytest.raises(LostSumError):
        opener.open(ciphertexts, request, {**parts, "b": swapped}, 1)


def test_an_opened_sum_of_other_terms_than_it_should_have_is_refused(dealt):
    """A single upload opened in place of a sum of two is found by its count, by an honest server."""
    own = {name: holder(dealt, name) for name in ("a", "b", "c")}
    ciphertexts = {name: own[name].encrypt(np.array([1])) for name in ("a", "b")}
    opener = SYSTEM.opener(dealt["paillier"].public)
    parts = {name: own[name].help_open(ciphertexts["a"]) for name in own}
    with pytest.raises(LostSumError, match="does not count its 2 terms"):
        opener.open(ciphertexts, ciphertexts["a"], parts, 1)


def test_the_plaintext_is_what_slow_paillier_encrypts(dealt):
    """c = (1 + N)^m r^N for some r: opened with the whole key, put together from the shares by hand."""
    key = key_of(dealt)
    private = dealt["paillier"].private
    (c,) = ciphertexts_in(key, holder(dealt, "a").encrypt(np.array([123])), "a")
    delta = math.factorial(5)
    exponent = sum(
        lagrange_at_zero(int.from_bytes(private[n][:4], "big"), (1, 2, 3), delta)
        * int.from_bytes(private[n][4:], "big")
        for n in ("a", "b", "c")
    )
    root = gmpy2.powmod(c, exponent, key.square)
    plain = (root - 1) // key.modulus * gmpy2.invert(delta, key.modulus) % key.modulus
    assert plain == packed(np.array([123]), 40, 2048)[0]


@given(st.lists(st.integers(-(2**38), 2**38), min_size=1, max_size=120), st.integers(1, 2))
@settings(max_examples=50, deadline=None)
def test_packing_is_undone_and_sums_stay_in_their_lanes(values, terms):
    array = np.array(values, dtype=np.int64)
    key = PublicKey((1 << 2048) - 1, 4, 3, 2)
    total = [terms * plain for plain in packed(array, 40, 2048)]
    assert all(plain < key.modulus for plain in total)
    assert unpacked(total, len(values), 40, key, terms).tolist() == (terms * array).tolist()
    assert len(total) == math.ceil(len(values) / num_lanes(40, 2048))


@given(st.sets(st.integers(1, 12), min_size=2, max_size=6), st.lists(st.integers(-100, 100), min_size=1, max_size=6))
def test_shares_meet_in_the_value_at_zero(places, coefficients):
    coefficients = coefficients[: len(places)]
    delta = math.factorial(12)
    values = {x: sum(c * x**power for power, c in enumerate(coefficients)) for x in places}
    found = sum(lagrange_at_zero(x, sorted(places), delta) * y for x, y in values.items())
    assert found == delta * coefficients[0]


def test_short_keys_and_what_is_no_key_are_refused(dealt):
    key = key_of(dealt)
    short = PublicKey((1 << 1024) - 105, 9, 3, 2).as_bytes()
    good = key.as_bytes()
    for bad in (b"", short, good[:-1], good + b"x", replace(key, threshold=6).as_bytes(), b"\xff" * len(good)):
        with pytest.raises(MalformedMessageError):
            PublicKey.of(bad)


def test_numbers_that_are_no_units_are_refused(dealt):
    key = key_of(dealt)
    for number in (0, key.modulus, int(key.square), int(key.square) + 1):
        with pytest.raises(MalformedMessageError):
            ciphertexts_in(
                key, number.to_bytes(key.width + 1, "big")[1:] if number < 1 << 4096 else b"\xff" * key.width, "a"
            )
