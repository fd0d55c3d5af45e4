"""Planes of bits: the compiled loops are the tensor expressions, and those are what Python integers say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bilateral.protocols.share.gates import planes
from bilateral.protocols.share.gates.planes import DIGIT_BITS, ENTRIES, Level, levels, num_words

COUNTS = st.one_of(st.sampled_from([1, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1000]), st.integers(1, 1200))
DIGITS = st.integers(1, 16)
SEEDS = st.integers(0, 2**32)
EXTREMES = [0, -1, 1, -2, 2**63 - 1, -(2**63), 0x0F0F0F0F0F0F0F0F, -0x0F0F0F0F0F0F0F10, 2**32 - 1, 2**32]


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Uniform words."""
    words = torch.randint(-(2**31), 2**31, (*shape, 2), generator=generator)
    return (words[..., 0] << 32) ^ (words[..., 1] & 0xFFFFFFFF)


def numbers(generator: torch.Generator, count: int) -> Tensor:
    """Uniform numbers, with extremes among them."""
    found = uniform(generator, count)
    places = torch.randint(0, count, (min(count, len(EXTREMES)),), generator=generator)
    found[places] = torch.tensor(EXTREMES)[: len(places)]
    return found


def bit(plane: Tensor, index: int) -> int:
    return int(plane[index // 64]) >> (index % 64) & 1


def bits_of(plane: Tensor, count: int) -> list[int]:
    return [bit(plane, i) for i in range(count)]


def digit_of(number: int, place: int) -> int:
    return number >> (DIGIT_BITS * place) & 15


def share_out(generator: torch.Generator, secret: Tensor) -> tuple[Tensor, Tensor]:
    """Xor shares."""
    first = uniform(generator, *secret.shape)
    return first, first ^ secret


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, count=COUNTS, num_planes=st.integers(0, 64))
def test_planes_hold_the_bits(seed, count, num_planes):
    x = numbers(torch.Generator().manual_seed(seed), count)
    found = planes.to_planes(x, num_planes)
    assert found.shape == (num_planes, num_words(count))
    assert torch.equal(found, planes.planes_by_tensors(x, num_planes))
    for plane in {0, num_planes // 2, num_planes - 1} & set(range(num_planes)):
        assert bits_of(found[plane], count) == [number >> plane & 1 for number in x.tolist()]
        assert int(found[plane, -1]) % 2**64 >> ((count - 1) % 64 + 1) == 0


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, count=COUNTS, num_digits=DIGITS, extra=st.integers(0, 2), in_place=st.booleans())
def test_thermometers_say_what_digits_are_above(seed, count, num_digits, extra, in_place):
    generator = torch.Generator().manual_seed(seed)
    r = numbers(generator, count)
    bits = planes.to_planes(r, min(64, DIGIT_BITS * num_digits + extra))
    share = uniform(generator, ENTRIES * num_digits, num_words(count))
    slow = planes.thermometers_by_tensors(bits, share)
    plain = slow ^ share
    kept = share.clone()
    assert torch.equal(planes.thermometers(bits, share, out=kept if in_place else None), slow)
    assert torch.equal(planes.thermometers(bits, kept, out=kept) if not in_place else kept, slow)
    for index in (0, count // 2, count - 1):
        digits = [digit_of(int(r[index]), place) for place in range(num_digits)]
        assert [bit(row, index) for row in plain] == [int(digit > v) for digit in digits for v in range(ENTRIES)]


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, count=COUNTS, num_digits=DIGITS, extra=st.integers(0, 2))
def test_shares_of_what_is_looked_up(seed, count, num_digits, extra):
    generator = torch.Generator().manual_seed(seed)
    y, r = numbers(generator, count), numbers(generator, count)
    y[::3] = r[::3]
    num_planes = min(64, DIGIT_BITS * num_digits + extra)
    first = uniform(generator, ENTRIES * num_digits, num_words(count))
    second = planes.thermometers(planes.to_planes(r, num_planes), first)
    public = planes.to_planes(y, num_planes)
    found = [planes.look_up(share, public, is_first) for share, is_first in ((first, True), (second, False))]
    assert torch.equal(found[0], planes.look_up_by_tensors(first, public, True))
    assert torch.equal(found[1], planes.look_up_by_tensors(second, public, False))
    both = found[0] ^ found[1]
    for index in (0, count // 2, count - 1):
        pairs = [(digit_of(int(y[index]), j), digit_of(int(r[index]), j)) for j in range(num_digits)]
        assert [bit(row, index) for row in both] == [int(a < b) for a, b in pairs] + [int(a == b) for a, b in pairs]


def test_all_pairs_of_digits():
    pairs = torch.cartesian_prod(torch.arange(16), torch.arange(16))
    y, r = planes.to_planes(pairs[:, 0].contiguous(), 4), planes.to_planes(pairs[:, 1].contiguous(), 4)
    first = uniform(torch.Generator().manual_seed(1), ENTRIES, num_words(len(pairs)))
    both = planes.look_up(first, y, True) ^ planes.look_up(planes.thermometers(r, first), y, False)
    assert bits_of(both[0], 256) == [int(a < b) for a, b in pairs.tolist()]
    assert bits_of(both[1], 256) == [int(a == b) for a, b in pairs.tolist()]


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, count=COUNTS, is_first=st.booleans())
def test_selection(seed, count, is_first):
    generator = torch.Generator().manual_seed(seed)
    y, beta, r_beta, r = (numbers(generator, count) for _ in range(4))
    bits = uniform(generator, num_words(count))
    found = planes.select(y, bits, beta, r_beta, r, is_first)
    assert torch.equal(found, planes.select_by_tensors(y, bits, beta, r_beta, r, is_first))
    for place in range(4):
        given_up = [y.clone(), beta.clone(), r_beta.clone(), r.clone()]
        planes.select(given_up[0], bits, *given_up[1:], is_first, out=given_up[place])
        assert torch.equal(given_up[place], found)
    for i in range(count):
        base = int(y[i]) * int(beta[i]) - int(r_beta[i])
        true = (int(y[i]) if is_first else 0) - int(r[i]) - base if bit(bits, i) else base
        assert (int(found[i]) - true) % 2**64 == 0


def test_selection_of_two_parties_multiplies_by_the_bit():
    generator = torch.Generator().manual_seed(3)
    x, r, (beta, m) = numbers(generator, 300), numbers(generator, 300), torch.randint(0, 2, (2, 300))
    shares = [(first := numbers(generator, 300), secret - first) for secret in (beta, r * beta, r)]
    plane = planes.to_planes(m, 1)[0]
    found = [planes.select(x + r, plane, *(pair[party] for pair in shares), party == 0) for party in (0, 1)]
    assert torch.equal(found[0] + found[1], x * (m ^ beta))


def test_levels_of_eight_digits():
    assert [(level.num_opened, level.num_products) for level in levels(8)] == [(11, 7), (5, 3), (2, 1)]
    assert levels(1) == ()
    assert [level.num_groups for level in levels(13)] == [13, 7, 4, 2]


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, words=st.integers(1, 40), num_groups=st.integers(2, 16), is_first=st.booleans())
def test_levels_are_the_tensor_expressions(seed, words, num_groups, is_first):
    generator = torch.Generator().manual_seed(seed)
    level = Level(num_groups)
    lt, eq = uniform(generator, num_groups, words), uniform(generator, num_groups, words)
    masks, opened = (uniform(generator, level.num_opened, words) for _ in range(2))
    products = uniform(generator, level.num_products, words)
    masked = planes.mask_level(level, lt, eq, masks)
    assert torch.equal(masked, planes.mask_by_tensors(level, lt, eq, masks))
    assert torch.equal(planes.products_of(level, masks), planes.products_by_tensors(level, masks))
    found = planes.join_level(level, lt, eq, opened, masks, products, is_first)
    slow = planes.join_by_tensors(level, lt, eq, opened, masks, products, is_first)
    assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(found, slow, strict=True))
    eq[0] = 0  # of the lowest group nobody asks
    assert torch.equal(planes.mask_level(level, lt, eq, masks), masked)
    again = planes.join_level(level, lt, eq, opened, masks, products, is_first)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def compare(generator: torch.Generator, y: Tensor, r: Tensor, num_digits: int) -> Tensor:
    """The plane [low digits of y < low digits of r], by both parties and the dealer."""
    words = num_words(len(y))
    first = uniform(generator, ENTRIES * num_digits, words)
    tables = first, planes.thermometers(planes.to_planes(r, DIGIT_BITS * num_digits), first)
    public = planes.to_planes(y, DIGIT_BITS * num_digits)
    found = [planes.look_up(table, public, party == 0) for party, table in enumerate(tables)]
    state = [(rows[:num_digits], rows[num_digits:]) for rows in found]
    for level in levels(num_digits):
        secret = uniform(generator, level.num_opened, words)
        masks = share_out(generator, secret)
        products = share_out(generator, planes.products_of(level, secret))
        told = [planes.mask_level(level, *state[party], masks[party]) for party in (0, 1)]
        opened = told[0] ^ told[1]
        state = [
            planes.join_level(level, *state[party], opened, masks[party], products[party], party == 0)
            for party in (0, 1)
        ]
    assert all(len(lt) == 1 for lt, _ in state)
    return state[0][0][0] ^ state[1][0][0]


@pytest.mark.parametrize("num_digits", range(1, 17))
@settings(max_examples=6, deadline=None)
@given(seed=SEEDS, count=COUNTS)
def test_comparison_of_two_parties_and_a_dealer(num_digits, seed, count):
    generator = torch.Generator().manual_seed(seed)
    y = numbers(generator, count)
    near = torch.randint(-1, 2, (count,), generator=generator)
    digit = torch.randint(0, 16, (count,), generator=generator)
    changed = y ^ (torch.randint(1, 16, (count,), generator=generator) << (DIGIT_BITS * digit))  # in one digit only
    zeros, ones = torch.zeros_like(y), torch.full_like(y, -1)
    kinds = torch.stack([numbers(generator, count), y + near, changed, zeros, ones])
    r = kinds[torch.randint(0, len(kinds), (count,), generator=generator), torch.arange(count)]
    keep = 16**num_digits - 1
    expected = [int((a & keep) < (b & keep)) for a, b in zip(y.tolist(), r.tolist(), strict=True)]
    assert bits_of(compare(generator, y, r, num_digits), count) == expected


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, count=COUNTS)
def test_what_is_dealt_of_a_selection_completes_the_first_partys_shares(seed, count):
    """beta and r * beta, whatever the first party has drawn: compiled, by tensors, and in integers."""
    source = torch.Generator().manual_seed(seed)
    blind, r = uniform(source, num_words(count)), numbers(source, count)
    beta_share, r_beta_share = numbers(source, count), numbers(source, count)
    found = planes.deal_selection(blind, r, beta_share, r_beta_share)
    bits = planes.spread(blind, count)
    assert torch.equal(bits, planes.spread_by_tensors(blind, count))
    assert bits.tolist() == bits_of(blind, count)
    assert torch.equal(found[0] + beta_share, bits)
    assert torch.equal(found[1] + r_beta_share, torch.where(bits == 1, r, 0))
