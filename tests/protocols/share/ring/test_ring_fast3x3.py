"""The fast 3x3 algorithm equals torch's int64 convolution (which test_ring.py compares with Python's integers)."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring.cpu import FastConv2d, KernelConv2d
from bilateral.protocols.share.ring.fast3x3 import weight_points
from bilateral.protocols.share.ring.window import Window


def elements(shape, bits, seed):
    """Random signed numbers of `bits` bits; a third of them the largest or the smallest."""
    generator = torch.Generator().manual_seed(seed)
    largest = 2 ** (bits - 1) - 1
    extremes = torch.tensor((largest, -largest, 0))[torch.randint(3, shape, generator=generator)]
    random = torch.randint(-largest, largest, shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.33, extremes, random)


def window(padding):
    return Window((3, 3), (1, 1), padding, (1, 1), 1)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(3, 13), st.integers(3, 13)),
    st.integers(1, 17),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from((2, 26, 30, 31, 64)),
    st.integers(0, 2**32),
)
def test_blocks_of_any_shape_equal_a_convolution(shape, rows, padding, bits, seed):
    x, weight = elements(shape, 64, seed), elements((rows, shape[1], 3, 3), bits, seed + 1)
    expected = F.conv2d(x, weight, padding=padding)
    assert torch.equal(FastConv2d(weight, window(padding), bits)(x), expected)


@pytest.mark.parametrize("bits", [30, 64])
@pytest.mark.parametrize("threads", [1, 2])
def test_several_chunks_strips_and_threads_equal_a_convolution(bits, threads):
    """130 channels are three chunks, 3 images of 5x4 blocks several strips. Panels reach from image to image."""
    x, weight = elements((3, 130, 14, 11), 64, 1), elements((35, 130, 3, 3), bits, 2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = FastConv2d(weight, window((1, 1)), bits)(x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, F.conv2d(x, weight, padding=1))


@pytest.mark.parametrize("bits", [26, 64])
@pytest.mark.parametrize(("batch", "size", "fast"), [(1, 8, False), (1, 16, True), (4, 8, True)])
def test_the_fast_algorithm_is_taken_where_it_saves_products_and_the_result_is_the_same(bits, batch, size, fast):
    x, weight = elements((batch, 33, size, size), 64, 3), elements((32, 33, 3, 3), bits, 4)
    product = KernelConv2d(weight, window((1, 1)), bits)
    expected = ring.prepare_conv2d(weight, stride=(1, 1), padding=(1, 1), path="torch")(x)
    for _ in range(40 // batch):  # packing pays for a map that is used for a while
        assert torch.equal(product(x), expected)
    assert ("_fast" in vars(product)) == fast
    assert "_direct" in vars(product)


def test_points_of_weights_of_30_bits_fit_32_bits():
    """What the narrow kernel needs, for the largest weights there are."""
    largest = 2**29 - 1
    assert int(weight_points(torch.full((1, 1, 3, 3), largest)).max()) == 4 * largest < 2**31
