"""AMX's products equal torch's int64 ones (which test_ring.py compares with Python's integers), for any shape."""

import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.ring.test_ring import elements

from bilateral.protocols.share.ring.cpu_features import supports
from bilateral.protocols.share.ring.window import Window

if not supports("amx"):
    pytest.skip("this processor, or this system, has no AMX for 8-bit integers", allow_module_level=True)

from bilateral.protocols.share.ring import amx, amx_kernels

BITS = (2, 8, 16, 23, 24, 25, 31, 32, 33, 64)
quick = settings(max_examples=60, deadline=None)


@quick
@given(st.integers(1, 150), st.integers(1, 200), st.integers(1, 40), st.sampled_from(BITS), st.integers(0, 2**32))
def test_matrix_products_of_any_shape_are_exact(batch, depth, rows, bits, seed):
    x, weight = elements((batch, depth), 64, seed), elements((rows, depth), bits, seed + 1)
    assert torch.equal(amx.AmxLinear(weight, bits)(x), F.linear(x, weight))


@st.composite
def convolutions(draw):
    kernel, stride, dilation = ((draw(st.integers(1, 3)), draw(st.integers(1, 3))) for _ in range(3))
    padding = (draw(st.integers(0, 4)), draw(st.integers(0, 4)))
    height, width = (
        max(1, dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i]) + draw(st.integers(0, 18)) for i in range(2)
    )
    channels = draw(st.sampled_from((1, 3, 7, 8, 9, 16, 20, 31, 32, 40, 63, 64, 65, 96, 128)))
    shape = (draw(st.integers(1, 3)), channels, height, width)
    bits, seed = draw(st.sampled_from(BITS)), draw(st.integers(0, 2**32))
    weight = elements((draw(st.integers(1, 40)), channels, *kernel), bits, seed + 1)
    return elements(shape, 64, seed), weight, bits, Window(kernel, stride, padding, dilation, 1)


@quick
@given(convolutions())
def test_convolutions_of_any_shape_are_exact(case):
    x, weight, bits, window = case
    expected = F.conv2d(x, weight, None, window.stride, window.padding, window.dilation)
    found = amx.AmxConv2d(weight, window, bits)(x)
    assert found.is_contiguous()
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("bits", "digits"), [(2, 3), (22, 3), (23, 3), (24, 4), (25, 4), (31, 4), (32, 8), (33, 8), (64, 8)]
)
def test_weights_of_so_many_bits_take_so_many_digits_and_the_largest_of_them_are_exact(bits, digits):
    """The top digit is signed, and takes a carry: 2^23 - 1 does not fit three digits, 2^22 - 1 does."""
    assert amx.num_digits(bits) == digits
    largest = 2 ** (bits - 1) - 1
    weight = torch.tensor([[largest, -largest, largest - 1, 1 - largest]]).repeat(9, 5)
    x = elements((17, 20), 64, bits)
    assert torch.equal(amx.AmxLinear(weight, bits)(x), F.linear(x, weight))


@pytest.mark.parametrize("value", [-0x0080808080808080, -0x7F7F7F7F7F7F7F80, 0x7F7F7F7F7F7F7F7F, -(2**63)])
def test_the_deepest_sums_of_the_largest_digits_are_exact(value):
    """`MAX_DEPTH` products, whose digits are all -128, or all 127, or nearly so."""
    depth = amx_kernels.MAX_DEPTH
    x, weight = torch.full((3, depth), value), torch.full((8, depth), value)
    assert amx.fits(weight)
    assert not amx.fits(F.pad(weight, (0, 1)))
    assert torch.equal(amx.AmxLinear(weight, 64)(x), F.linear(x, weight))


def test_digits_of_minus_128_reach_the_bound_that_the_guarantee_names():
    """Four sums of MAX_DEPTH products of 2^14 stay within 32 bits, and one tile of depth more would not."""
    assert 4 * amx_kernels.MAX_DEPTH * 2**14 < 2**31 <= 4 * (amx_kernels.MAX_DEPTH + amx_kernels.DEPTH) * 2**14


@pytest.mark.parametrize("bits", [23, 64])
def test_many_strips_chunks_and_parts_of_a_batch_are_exact(bits):
    """Depth 2160 is two chunks, 6 images of 24 x 23 several strips and, of 240 channels, several parts."""
    x, weight = elements((6, 240, 24, 23), 64, 1), elements((20, 240, 3, 3), bits, 2)
    found = amx.AmxConv2d(weight, Window((3, 3), (1, 1), (1, 1), (1, 1), 1), bits)(x)
    assert torch.equal(found, F.conv2d(x, weight, padding=1))
    samples, matrix = elements((700, 1300), 64, 3), elements((33, 1300), bits, 4)
    assert torch.equal(amx.AmxLinear(matrix, bits)(samples), F.linear(samples, matrix))


def test_threads_that_are_new_and_threads_side_by_side_give_the_same():
    """Tiles are configured for each thread and given back; torch's own work in between does not disturb."""
    x, weight = elements((2, 70, 19, 17), 64, 5), elements((37, 70, 3, 3), 64, 6)
    product = amx.AmxConv2d(weight, Window((3, 3), (1, 1), (1, 1), (1, 1), 1), 64)
    expected = F.conv2d(x, weight, padding=1)
    floats = torch.randn(64, 64)
    rights, before = [], torch.get_num_threads()

    def work():
        for _ in range(10):
            floats @ floats
            rights.append(torch.equal(product(x), expected))

    try:
        torch.set_num_threads(2)
        for _ in range(2):
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        torch.set_num_threads(before)
    assert rights == [True] * 60
