"""The sealed comparison against Python integers: exact over the whole range, at its ends, whatever was drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.gates.sealing import (
    Planned,
    R,
    compare,
    converse,
    dealing,
    sealed_positive,
)
from tests.protocols.share.harness import generator, uniform_words

from bilateral.protocols.share.circuit.description import MAX_FRACTION_BITS, MIN_VALUE_BITS, VALUE_BITS
from bilateral.protocols.share.gates import sealed
from bilateral.protocols.share.gates.sealed import Width

DIGITS = range(1, 12)


def edges(digits):
    """Both ends of the range, zero, and both sides of every power of two: where digits begin to differ."""
    powers = [1 << place for place in range(4 * digits)]
    near = {0, *(power + d for power in (*powers, 1 << (4 * digits)) for d in (-1, 0, 1))}
    limit = 1 << (4 * digits)
    return torch.tensor(sorted({sign * n for n in near for sign in (1, -1) if n < limit}))


def anywhere(digits, count, seed=0):
    """Numbers of all sizes below 2^(4 digits)."""
    sizes = torch.randint(0, 4 * digits + 1, (count,), generator=generator(seed))
    return uniform_words((count,), seed) >> (63 - sizes)


@pytest.mark.parametrize("digits", DIGITS)
def test_the_positive_part_is_exact_at_the_ends_around_zero_and_at_every_power_of_two(digits):
    x = edges(digits).repeat(60)
    for seed in range(3):
        assert torch.equal(sealed_positive(x, digits, seed), x.clamp_min(0))


@given(data=st.data(), digits=st.integers(1, 11), seed=st.integers(0, 2**31))
@settings(max_examples=150, deadline=None)
def test_the_positive_part_and_the_bit_equal_those_of_python_integers_for_any_shares(data, digits, seed):
    limit = 2 ** (4 * digits) - 1
    x = data.draw(st.lists(st.integers(-limit, limit), min_size=1, max_size=70))
    words = st.integers(-(2**63), 2**63 - 1)
    shares = torch.tensor(data.draw(st.lists(words, min_size=len(x), max_size=len(x))))
    found = dealing(Width(len(x), digits), seed)
    done = compare(torch.tensor(x), found, shares)
    assert done.positive.tolist() == [max(number, 0) for number in x]
    m = sealed.planes.spread(done.bits, len(x))
    assert (m ^ found.betas).tolist() == [int(number >= 0) for number in x]


@pytest.mark.parametrize("digits", [8, 11])
def test_the_positive_part_of_a_million_numbers_is_exact(digits):
    x = anywhere(digits, 1_000_000, seed=digits)
    assert torch.equal(sealed_positive(x, digits, seed=7), x.clamp_min(0))


@pytest.mark.long
def test_the_positive_part_of_ten_million_numbers_is_exact():
    for seed in range(10):
        x = anywhere(8, 1_000_000, seed=100 + seed)
        assert torch.equal(sealed_positive(x, 8, seed), x.clamp_min(0))


@pytest.mark.parametrize("r", [0, -1, 1, 2**32, 2**32 - 1, -(2**32), 2**63 - 1, -(2**63), 0x0F0F_0F0F, 0x1_0000_0000])
def test_no_mask_is_a_special_case(r):
    """All zeros, all ones, digits at their ends, and sums that wrap around the ring."""
    x = edges(8)
    width = Width(len(x), 8)
    second = dealing(width, 5).second.r
    found = dealing(width, 5, first={R: lambda drawn: torch.full_like(drawn, r) - second})
    assert bool((found.r == r).all())
    assert torch.equal(compare(x, found).positive, x.clamp_min(0))


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 127, 128, 129, 513, 1000])
def test_any_number_of_elements_fills_planes_to_whole_words(count):
    x = anywhere(8, count, seed=count)
    assert torch.equal(sealed_positive(x, 8), x.clamp_min(0))
    assert Width(count, 8).words == math.ceil(count / 64)


def test_a_number_beyond_the_range_is_compared_wrongly_and_nobody_notices():
    """Why a circuit's range is checked by who owns its weights and inputs."""
    x = torch.tensor([2**32, 2**32 + 5, -(2**32) - 1])
    assert sealed_positive(x, 8).tolist() == [0, 0, -(2**32) - 1]


@pytest.mark.parametrize(
    ("value_bits", "fraction_bits"), [(12, 20), (12, 0), (8, 20), (2, 20), (12, 24), (12, 30), (2, 1)]
)
def test_the_digits_of_a_width_cover_the_stated_range_and_no_digit_more(value_bits, fraction_bits):
    assert MIN_VALUE_BITS <= value_bits <= VALUE_BITS and fraction_bits <= MAX_FRACTION_BITS
    width = Width.of(10, value_bits, fraction_bits)
    assert width.sign_bit - 4 < value_bits + fraction_bits <= width.sign_bit < 63
    limit = 2 ** (value_bits + fraction_bits)
    x = torch.tensor([limit - 1, 1 - limit, limit // 2, -limit // 2, 0, -1, 1, 2, -2, limit - 2])
    assert torch.equal(compare(x, dealing(width)).positive, x.clamp_min(0))


def test_a_comparison_costs_the_bytes_that_the_docstring_says():
    """For 32 bits: 16.5 + 16 bytes dealt for each element, 10.375 told by each party, in five exchanges."""
    count = 64_000
    found = dealing(Width(count, 8))
    dealt = [part.numel() * 8 / count for part in found.sent]
    assert dealt == [16.5, 16.0]
    done = compare(anywhere(8, count), found)
    for told in done.told:
        assert sum(part.numel() * 8 for part in told) / count == 10.375
        assert [tuple(part.shape) for part in told] == [(count,), (11, 1000), (5, 1000), (2, 1000), (1000,)]
    narrow = Width(count, 6)
    assert sum(8 * math.prod(shape) for shape in narrow.dealt_shapes) / count == (6 * 15 + 1 + 7) / 8 + 16
    for text in ("16.5", "10.4"):
        assert text in (sealed.__doc__ or "")


# Products with a bit that was compared before: gradients through a ReLU, the choice of a max pooling.


def times(values, compared, found, seed, shape=None):
    """`values` times the bit of an earlier comparison, by both parties with a dealt product."""
    sent = sealed.deal_bit_product(Planned(seed, "f"), Planned(seed, "s"), found.betas)
    first = sealed.drawn_bit_product(Planned(seed, "f"), len(values))
    parts = first, sealed.dealt_bit_product(Planned(seed, "s"), sent)
    share = uniform_words(values.shape, 17 + seed)
    shares = [x.reshape(shape or x.shape) for x in (share, values - share)]
    results, *_ = converse(*(sealed.times_bit(*three) for three in zip(shares, compared.results, parts, strict=True)))
    assert all(result.shape == shares[0].shape for result in results)
    return sum(results)


@given(
    data=st.data(), digits=st.integers(1, 11), seed=st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_ring_element_times_a_stored_bit_is_that_of_python_integers(data, digits, seed):
    limit = 2 ** (4 * digits) - 1
    pairs = st.tuples(st.integers(-limit, limit), st.integers(-(2**63), 2**63 - 1))
    x, values = zip(*data.draw(st.lists(pairs, min_size=1, max_size=70)), strict=True)
    found = dealing(Width(len(x), digits), seed)
    done = compare(torch.tensor(x), found)
    for again in range(2):  # m and beta serve many products
        product = times(torch.tensor(values), done, found, seed + again)
        assert product.tolist() == [value if number >= 0 else 0 for value, number in zip(values, x, strict=True)]


def test_a_product_with_a_bit_has_the_shape_of_its_value():
    x = anywhere(8, 24)
    found = dealing(Width(24, 8))
    values = uniform_words((24,), 3)
    product = times(values, compare(x, found), found, 0, shape=(2, 3, 4))
    assert torch.equal(product.reshape(-1), torch.where(x >= 0, values, 0))


@pytest.mark.parametrize("digits", DIGITS)
def test_the_dealer_finds_the_betas_of_an_earlier_comparison_from_its_streams(digits):
    width = Width(1000, digits)
    found = dealing(width, 3)
    betas = sealed.beta_of(Planned(3, "first"), Planned(3, "second"), width)
    assert torch.equal(betas, found.betas)
    assert set(betas.tolist()) == {0, 1}
    assert torch.equal(betas, found.first.beta + found.second.beta)
    assert torch.equal(betas * found.r, found.first.r_beta + found.second.r_beta)


def test_the_dealer_goes_on_where_the_parties_go_on():
    """Comparisons in a row are read from one stream, by all three in the same places."""
    wide = [Width(70, 8), Width(3, 5), Width(129, 11)]
    streams = [(Planned(9, "first"), Planned(9, "second")) for _ in range(3)]
    sent = [sealed.deal(*streams[0], width) for width in wide]
    for width, parts in zip(wide, sent, strict=True):
        x = anywhere(width.digits, width.count)
        first = sealed.drawn_part(streams[1][0], width)
        second = sealed.dealt_part(streams[1][1], parts, width)
        betas = sealed.beta_of(*streams[2], width)
        assert torch.equal(betas, first.beta + second.beta)
        share = uniform_words(x.shape, 1)
        (a, b), *_ = converse(
            sealed.compare(share, first, width, is_first=True), sealed.compare(x - share, second, width, is_first=False)
        )
        assert torch.equal(a.positive_part() + b.positive_part(), x.clamp_min(0))


def test_tables_of_the_wrong_digits_make_wrong_results():
    """Sabotage that no view shows, since what is opened stays uniform: results must show it, and do."""
    x = anywhere(8, 4000)
    found = dealing(Width(4000, 8), 2)
    assert torch.equal(compare(x, found).positive, x.clamp_min(0))
    order = [1, 0, *range(2, 8)]
    found.first, found.second = (
        replace(part, tables=part.tables.reshape(8, 15, -1)[order].reshape(120, -1))
        for part in (found.first, found.second)
    )
    small = torch.where(torch.arange(4000) % 2 == 0, 3, -3)
    assert float((compare(small, found).positive != small.clamp_min(0)).double().mean()) > 0.05
