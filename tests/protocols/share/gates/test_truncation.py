"""Truncation of shares: floor(y / 2^m), or one less, and never anything else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.harness import generator, uniform_words

from bilateral.protocols.share.gates import truncation
from bilateral.protocols.share.ring.packing import pack_bits, unpack_bits

LIMIT = 2**62
EDGES = [0, 1, -1, 2, -2, LIMIT - 1, -LIMIT, LIMIT - 2, -LIMIT + 1, LIMIT // 2, -LIMIT // 2, 2**32, -(2**32), 2**31]
SHARE_EDGES = [0, 1, -1, 2**63 - 1, -(2**63), 2**62, -(2**62), 2**62 - 1, -(2**62) - 1]
ALLOWED = {0, 1}
"""Units in the last place: rounded down or up."""
quick = settings(max_examples=300, deadline=None)


def wrapped(value):
    return (value + 2**63) % 2**64 - 2**63


def truncated(y0, y1, shift, seed=0):
    """The protocol's step with fresh correlations, as the three parties compute it."""
    source = generator(seed)
    alpha, beta = (torch.randint(0, 2, y0.shape, generator=source).bool() for _ in range(2))
    share = torch.randint(-(2**31), 2**31 - 1, y0.shape, generator=source).to(torch.int32)
    dealt = truncation.dealt_share(alpha, beta, share)
    epsilon = truncation.second_bit(y1) ^ beta
    first, delta = truncation.first_share(y0, shift, alpha, share, epsilon)
    second = truncation.second_share(y1, shift, beta, dealt, delta, epsilon)
    return first + second


def truncated_by_integers(y0, y1, shift, alpha, beta, share):
    """The docstring's equations with Python's integers, modulo 2^64 at the end only."""
    first, second = (y0 + 2**62) % 2**64, y1 % 2**64
    p, q = int(first < 2**63), int(second < 2**63)
    delta, epsilon = p ^ alpha, q ^ beta
    dealt = (alpha * beta - share) % 2**32
    product = (
        delta * epsilon
        + (1 - 2 * delta) * alpha * epsilon
        + delta * (1 - 2 * epsilon) * beta
        + (1 - 2 * delta) * (1 - 2 * epsilon) * (share + dealt)
    )
    total = (first >> shift) + (second >> shift) + 1 - 2 ** (62 - shift) - 2 ** (64 - shift) * (1 - product)
    return wrapped(total)


@given(
    y=st.one_of(st.sampled_from(EDGES), st.integers(-LIMIT, LIMIT - 1)),
    y0=st.one_of(st.sampled_from(SHARE_EDGES), st.integers(-(2**63), 2**63 - 1)),
    shift=st.integers(1, truncation.MAX_SHIFT),
    bits=st.tuples(st.booleans(), st.booleans()),
    share=st.one_of(st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)]), st.integers(-(2**31), 2**31 - 1)),
)
@quick
def test_shares_of_a_truncated_number_equal_those_of_python_integers(y, y0, shift, bits, share):
    y1 = wrapped(y - y0)
    alpha, beta = (torch.tensor([bit]) for bit in bits)
    shares = torch.tensor([share], dtype=torch.int32)
    first, second = torch.tensor([y0]), torch.tensor([y1])
    epsilon = truncation.second_bit(second) ^ beta
    dealt = truncation.dealt_share(alpha, beta, shares)
    own, delta = truncation.first_share(first, shift, alpha, shares, epsilon)
    found = int(own + truncation.second_share(second, shift, beta, dealt, delta, epsilon))
    assert found == truncated_by_integers(y0, y1, shift, *map(int, bits), share)
    assert found - (y >> shift) in ALLOWED


@pytest.mark.parametrize("shift", range(1, truncation.MAX_SHIFT + 1))
def test_truncation_is_never_wrong_for_any_shift_edge_and_share(shift):
    y = torch.tensor(EDGES).repeat_interleave(len(SHARE_EDGES))
    y0 = torch.tensor(SHARE_EDGES).repeat(len(EDGES))
    for seed in range(8):
        error = truncated(y0, y - y0, shift, seed) - (y >> shift)
        assert set(error.tolist()) <= ALLOWED


@pytest.mark.parametrize("shift", [1, 13, 20, 21, 30, 31, 32])
def test_a_million_random_numbers_are_off_by_one_unit_at_most(shift):
    count = 500_000
    y0 = uniform_words((count,), shift)
    y = uniform_words((count,), 100 + shift) >> 1  # all of [-2^62, 2^62)
    near = torch.randint(0, 2**20, (count,), generator=generator(shift))
    for values in (y, LIMIT - 1 - near, near - LIMIT):
        error = truncated(y0, values - y0, shift, seed=shift) - (values >> shift)
        assert {int(error.min()), int(error.max())} <= ALLOWED


def test_local_truncation_would_have_failed_on_the_same_numbers():
    """The reason for the dealt bits: large numbers wrap often enough for a test to see it."""
    count, shift = 100_000, 20
    y0 = uniform_words((count,), 3)
    y = torch.randint(2**60, 2**61, (count,), generator=generator(4))
    local = (y0 >> shift) + ((y - y0) >> shift)
    assert ((local - (y >> shift)).abs() > 1).float().mean() > 0.05


@pytest.mark.parametrize("count", [1, 7, 8, 9, 65, 1000])
@pytest.mark.parametrize("shift", [1, 20, 27, 32])
def test_what_the_parties_call_equals_the_plain_formulas(count, shift):
    """Packed bits, masks and biases in one pass: the same numbers as the functions above give."""
    shape = (3, 2, count)
    y0, y1, mask, dealt = (uniform_words(shape, seed) for seed in range(4))
    bias = uniform_words((2,), 5)
    share = uniform_words(shape, 6).to(torch.int32)
    alpha, beta = (uniform_words(shape, seed) < 0 for seed in (7, 8))
    packed_alpha, packed_beta = pack_bits(alpha), pack_bits(beta)

    product = truncation.deal(packed_alpha, packed_beta, share)
    assert torch.equal(product, truncation.dealt_share(alpha, beta, share))
    helping, packed_epsilon = truncation.start_second(y1.clone(), dealt, packed_beta)
    assert torch.equal(helping, y1 - dealt)
    epsilon = truncation.second_bit(y1 - dealt) ^ beta
    assert torch.equal(unpack_bits(packed_epsilon, shape), epsilon)
    first, packed_delta = truncation.finish_first(y0.clone(), mask, bias, shift, packed_alpha, share, packed_epsilon)
    expected, delta = truncation.first_share(y0 - mask + bias[:, None], shift, alpha, share, epsilon)
    assert torch.equal(first, expected)
    assert torch.equal(unpack_bits(packed_delta, shape), delta)
    second = truncation.finish_second(helping, shift, packed_beta, product, packed_delta, packed_epsilon)
    assert torch.equal(second, truncation.second_share(y1 - dealt, shift, beta, product, delta, epsilon))


@pytest.mark.parametrize("y", [LIMIT, -LIMIT - 2**60])
def test_beyond_the_bound_on_products_truncation_is_wrong_for_some_shares(y):
    """So callers must keep it; on the positive side one unit is too much."""
    y0 = torch.cat([torch.tensor(SHARE_EDGES), uniform_words((4096,), 5)])
    wrong = (truncated(y0, y - y0, 20) - (y >> 20)).abs() > 1
    assert bool(wrong.any())
