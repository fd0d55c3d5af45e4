"""Limbs add up to the number they are of, and their products stay within what float64 holds exactly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.protocols.share.ring.limbs import Split, signed_limbs

words = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(st.lists(words, min_size=1), st.sampled_from(((22, 3), (16, 4))))
def test_limbs_of_a_word_add_up_and_are_bounded(values, shape):
    bits, count = shape
    limbs = [limb.tolist() for limb in signed_limbs(torch.tensor(values), bits, count)]
    for i, value in enumerate(values):
        parts = [int(limb[i]) for limb in limbs]
        assert sum(part << (bits * j) for j, part in enumerate(parts)) % 2**64 == value % 2**64
        assert all(abs(part) <= 2 ** (bits - 1) for part in parts)


@pytest.mark.parametrize("weight_bits", range(1, 65))
def test_sums_of_max_depth_products_are_exact_in_float64(weight_bits):
    """The largest weight of so many bits, its limbs, and the largest limb of x."""
    split = Split.for_weights(weight_bits)
    largest = 2 ** (weight_bits - 1) - 1
    limbs = signed_limbs(torch.tensor([largest, -largest, -largest // 3]), split.weight_bits, split.weight_limbs)
    top = max(int(limb.abs().max()) for limb in limbs)
    assert split.max_depth * top * 2 ** (split.x_bits - 1) <= 2**53
    assert split.max_depth >= 128


@pytest.mark.parametrize(("weight_bits", "products"), [(13, 3), (22, 3), (26, 4), (32, 4), (44, 5), (45, 6), (64, 6)])
def test_small_weights_need_fewer_products(weight_bits, products):
    split = Split.for_weights(weight_bits)
    assert sum(split.weight_limbs_that_count(i) for i in range(split.x_limbs)) == products
