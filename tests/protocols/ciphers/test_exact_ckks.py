"""CKKS over whole numbers: exact, and nothing of an opening but the sum."""

from __future__ import annotations

import numpy as np
import pytest

from bilateral.errors import MalformedMessageError, ProtocolError
from bilateral.protocols.ciphers.exact_ckks import BITS, DEGREE, LARGEST_ERROR, MODULI, ExactCkks, _context, _vector

SYSTEM = ExactCkks()


def parties(dealt):
    keys = dealt["ckks"]
    return {n: SYSTEM.holder(n, keys.public, keys.private[n], None) for n in ("a", "b")}, SYSTEM.opener(keys.public)


def test_the_parameters_have_128_bits_by_the_standards_table():
    """At most 218 bits of moduli for 8192 coefficients and a ternary secret (homomorphicencryption.org, 2018)."""
    assert (DEGREE, sum(MODULI) <= 218) == (8192, True)


def test_the_server_has_no_secret_key(dealt):
    assert not _context(dealt["ckks"].public, "the dealer").has_secret_key()
    with pytest.raises(MalformedMessageError, match="secret key where it should not be"):
        SYSTEM.holder("a", dealt["ckks"].private["a"], dealt["ckks"].private["a"], None)
    with pytest.raises(MalformedMessageError, match="secret key where it should not be"):
        SYSTEM.holder("a", dealt["ckks"].public, dealt["ckks"].public, None)


def test_sums_of_many_values_at_the_edge_are_exact(dealt):
    own, opener = parties(dealt)
    draws = np.random.default_rng(0)
    values = {name: draws.integers(-(2 ** (BITS - 2)), 2 ** (BITS - 2), 9000) for name in own}
    ciphertexts = {name: own[name].encrypt(values[name]) for name in own}
    part = own["b"].help_open(opener.request(ciphertexts))
    assert np.array_equal(np.frombuffer(part, "<i8"), values["a"] + values["b"])


def test_errors_at_the_edge_are_far_below_what_is_refused(dealt):
    own, _ = parties(dealt)
    values = np.random.default_rng(1).integers(-(2 ** (BITS - 1)), 2 ** (BITS - 1), 4096)
    context = _context(dealt["ckks"].private["a"], "the dealer")
    found = np.array(_vector(context, own["a"].encrypt(values), "a").decrypt())
    assert 0 < np.abs(found - values).max() < LARGEST_ERROR / 10


def test_what_is_opened_is_a_function_of_the_values_alone(dealt):
    """The error of an approximate opening tells the key to whoever has the ciphertext (Li and Micciancio)."""
    own, opener = parties(dealt)
    values = np.arange(100)
    parts = {own["a"].help_open(opener.request({n: h.encrypt(values) for n, h in own.items()})) for _ in range(3)}
    assert len(parts) == 1


def test_numbers_that_are_not_whole_are_not_opened(dealt):
    import tenseal as ts

    own, _ = parties(dealt)
    context = _context(dealt["ckks"].private["a"], "the dealer")
    with pytest.raises(ProtocolError, match="nothing of it is told"):
        own["a"].help_open(ts.ckks_vector(context, [0.5, 1.0]).serialize())
    with pytest.raises(ProtocolError, match="nothing of it is told"):
        own["a"].help_open(ts.ckks_vector(context, [2.0**45]).serialize())
