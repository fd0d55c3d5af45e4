"""What every cryptosystem must do: open sums exactly, and refuse what is none of its own."""

from __future__ import annotations

import numpy as np
import pytest
from tests.protocols.ciphers.conftest import NAMES, SYSTEMS

from bilateral.errors import LostSumError, ProtocolError
from bilateral.randomness import SecureRandomness

LIMITS = {"paillier": 2**36, "ckks": 2**36, "inner-products": 2**18}
COUNT = 7


def holders(name, dealt):
    keys, system = dealt[name], SYSTEMS[name]
    return {who: system.holder(who, keys.public, keys.private[who], SecureRandomness()) for who in NAMES}


def opened(name, dealt, ciphertexts, helpers, count=COUNT):
    keys, system = dealt[name], SYSTEMS[name]
    opener = system.opener(keys.public)
    request = opener.request(ciphertexts)
    if system.dealer_opens:
        parts = {"dealer": system.master(keys.public, keys.master).help_open(request)}
    else:
        own = holders(name, dealt)
        parts = {who: own[who].help_open(request) for who in helpers}
    for who, part in parts.items():
        opener.check_part(part, count, who)
    return opener.open(ciphertexts, request, parts, count)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("inside", [("a", "b"), ("b", "d", "e"), NAMES])
def test_sums_are_those_of_the_plain_integers_whoever_is_in_them(name, dealt, inside):
    draws, limit = np.random.default_rng(len(inside)), LIMITS[name]
    values = {who: draws.integers(-limit, limit, COUNT) for who in inside}
    values[inside[0]][:3] = (0, -limit, limit)
    own = holders(name, dealt)
    ciphertexts = {who: own[who].encrypt(values[who]) for who in inside}
    opener = SYSTEMS[name].opener(dealt[name].public)
    for who in inside:
        opener.check(ciphertexts[who], COUNT, who)
    found = opened(name, dealt, ciphertexts, ("a", "c", "e"))
    assert found.tolist() == sum(values.values()).tolist()


@pytest.mark.parametrize("name", SYSTEMS)
def test_encryptions_of_the_same_values_are_different_each_time(name, dealt):
    own = holders(name, dealt)["a"]
    values = np.zeros(COUNT, dtype=np.int64)
    first, second = own.encrypt(values), own.encrypt(values)
    assert first != second
    head = min(len(first), len(second)) // 2
    assert first[head:] != second[head:]


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_no_ciphertext_of_so_many_values_is_refused_by_its_sender(name, dealt):
    opener = SYSTEMS[name].opener(dealt[name].public)
    good = holders(name, dealt)["a"].encrypt(np.arange(COUNT))
    many = holders(name, dealt)["a"].encrypt(np.arange(5000 if name == "ckks" else 200))
    for bad in (b"", b"x", good[:-1], good[: len(good) // 2], many, bytes(len(good)), b"\xff" * len(good)):
        with pytest.raises(ProtocolError, match=r"from a|a sent"):
            opener.check(bad, COUNT, "a")


@pytest.mark.parametrize("name", SYSTEMS)
def test_parts_that_are_none_are_refused(name, dealt):
    opener = SYSTEMS[name].opener(dealt[name].public)
    for bad in (b"", b"x" * 7, b"\xff" * 999):
        with pytest.raises(ProtocolError):
            opener.check_part(bad, COUNT, "a")


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_ciphertext_of_another_run_gives_no_sum(name, dealt, dealt_to_others):
    mine, other = holders(name, dealt)["a"], holders(name, dealt_to_others)["b"]
    ciphertexts = {"a": mine.encrypt(np.arange(COUNT)), "b": other.encrypt(np.arange(COUNT))}
    with pytest.raises(ProtocolError):
        opener = SYSTEMS[name].opener(dealt[name].public)
        opener.check(ciphertexts["b"], COUNT, "b")
        opened(name, dealt, ciphertexts, ("a", "c", "e"))


@pytest.mark.parametrize("name", SYSTEMS)
def test_parts_of_another_runs_keys_open_nothing(name, dealt, dealt_to_others):
    own = holders(name, dealt)
    ciphertexts = {who: own[who].encrypt(np.arange(COUNT)) for who in ("a", "b")}
    system = SYSTEMS[name]
    opener = system.opener(dealt[name].public)
    request = opener.request(ciphertexts)
    with pytest.raises(ProtocolError):
        if system.dealer_opens:
            other = dealt_to_others[name]
            parts = {"dealer": system.master(other.public, other.master).help_open(request)}
        else:
            others = holders(name, dealt_to_others)
            parts = {who: others[who].help_open(request) for who in ("a", "b", "c")}
        opener.open(ciphertexts, request, parts, COUNT)


@pytest.mark.parametrize("name", ["ckks", "inner-products"])
def test_public_keys_that_are_none_are_refused(name, dealt):
    for bad in (b"", b"x" * 40, dealt[name].public[:-1]):
        with pytest.raises((ProtocolError, LostSumError)):
            SYSTEMS[name].opener(bad)
