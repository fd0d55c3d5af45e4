"""The positive part on shares: exact for every number in range, whatever was drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.harness import compared, generator, uniform_words

from bilateral.protocols.share.circuit.description import MAX_FRACTION_BITS, VALUE_BITS
from bilateral.protocols.share.gates.judged import Blinding, factor_bits, odd_inverse
from bilateral.protocols.share.gates.shuffling import random_orders
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED
from bilateral.protocols.share.ring.streams import Stream

SEED = bytes(32)
styles = pytest.mark.parametrize("style", [HARDENED, PUBLISHED], ids=lambda style: style.name)


def edges(fraction_bits):
    limit = 2 ** (VALUE_BITS + fraction_bits)
    near = [limit, limit - 1, limit - 2, limit // 2, 3, 2, 1]
    return torch.tensor([0, *near, *(-t for t in near)])


@styles
@pytest.mark.parametrize("fraction_bits", [0, 1, 12, 20, 24, MAX_FRACTION_BITS])
def test_the_positive_part_is_exact_up_to_the_bound_and_around_zero(style, fraction_bits):
    t = edges(fraction_bits).repeat(40, 16)
    for seed in range(3):
        _, found = compared(t, fraction_bits, style, seed)
        assert torch.equal(found, t.clamp_min(0))


@styles
def test_the_positive_part_of_a_million_numbers_is_exact(style):
    sizes = torch.randint(0, VALUE_BITS + 21, (1000, 1000), generator=generator(0))
    t = uniform_words((1000, 1000), 1) >> (63 - sizes)  # every octave below the bound
    _, found = compared(t, 20, style, seed=7)
    assert torch.equal(found, t.clamp_min(0))


@styles
@given(
    fraction_bits=st.integers(0, MAX_FRACTION_BITS),
    values=st.lists(st.integers(-(2**VALUE_BITS), 2**VALUE_BITS), min_size=1, max_size=9),
    offset=st.integers(-3, 3),
    batch=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_the_positive_part_equals_that_of_python_integers(style, fraction_bits, values, offset, batch, seed):
    limit = 2 ** (VALUE_BITS + fraction_bits)
    numbers = [max(-limit, min(limit, (value << fraction_bits) + offset)) for value in values]
    _, found = compared(torch.tensor([numbers] * batch), fraction_bits, style, seed)
    assert found.tolist() == [[max(number, 0) for number in numbers]] * batch


@styles
@pytest.mark.parametrize("shape", [(1, 1), (0, 5), (3, 0), (2, 1)])
def test_small_and_empty_comparisons_work(style, shape):
    t = -torch.ones(shape, dtype=torch.int64)
    u, found = compared(t, 20, style)
    assert u.shape == found.shape == shape
    assert not found.any()


@styles
@pytest.mark.parametrize("fraction_bits", [0, 20, MAX_FRACTION_BITS])
def test_the_blinded_number_is_as_documented(style, fraction_bits):
    """u = s (k t + e) with k odd, 0 < e < k, in the drawn order, and below 2^62 in size."""
    t = edges(fraction_bits).repeat(20, 20)
    u, _ = compared(t, fraction_bits, style, seed=3)
    stream = Stream.of((3).to_bytes(8, "little") * 4, "comparison", 0, 0)
    drawn = Blinding.draw(stream, tuple(t.shape), fraction_bits, style)
    k, e, s = drawn.factors, drawn.offsets, drawn.signs
    assert bool((k % 2 == 1).all()) and int(k.min()) >= 3 and int(k.max()) < 2 ** factor_bits(fraction_bits)
    assert bool(((e > 0) & (e < k)).all())
    plain = [
        [sign * (factor * value + offset) for sign, factor, value, offset in zip(*columns, strict=True)]
        for columns in zip(s.tolist(), k.tolist(), t.tolist(), e.tolist(), strict=True)
    ]
    assert max(abs(number) for row in plain for number in row) <= 2**62
    orders = [range(t.shape[1])] * len(t) if drawn.orders is None else drawn.orders.tolist()
    assert u.tolist() == [[row[i] for i in order] for row, order in zip(plain, orders, strict=True)]
    assert (drawn.orders is None) == (style is PUBLISHED)


def test_a_number_far_beyond_the_bound_is_judged_wrongly_so_the_compiler_must_keep_it():
    t = torch.full((1, 1000), 2 ** (VALUE_BITS + 20 + 4))
    _, found = compared(t, 20)
    assert not torch.equal(found, t)


@given(st.integers(-(2**63), 2**63 - 1).map(lambda x: x | 1))
@settings(max_examples=300, deadline=None)
def test_odd_inverse_is_the_inverse(x):
    inverse = int(odd_inverse(torch.tensor([x])))
    assert x * inverse % 2**64 == 1


def test_odd_inverse_of_small_and_large_factors_is_pythons():
    numbers = [*range(1, 4000, 2), *range(2**31 - 999, 2**31, 2), 2**63 - 1, -1, -(2**63) + 1]
    found = odd_inverse(torch.tensor(numbers)).tolist()
    assert [x % 2**64 for x in found] == [pow(number, -1, 2**64) for number in numbers]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_orders_are_permutations_and_both_parties_draw_the_same(size):
    first, second = (random_orders(Stream.of(SEED, "comparison", 4, 0), 7, size) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first.sort(dim=1).values, torch.arange(size).expand(7, size))


def test_every_order_of_four_elements_is_equally_likely():
    draws = 24_000
    orders = random_orders(Stream.of(SEED, "comparison", 0, 0), draws, 4)
    counts = torch.bincount((orders * torch.tensor([64, 16, 4, 1])).sum(1))
    counts = counts[counts > 0].double()
    assert len(counts) == 24
    chi2 = float(((counts - draws / 24) ** 2 / (draws / 24)).sum())
    assert chi2 < 56.0  # 23 degrees of freedom: exceeded with probability 1.4e-4, and the seed is fixed
