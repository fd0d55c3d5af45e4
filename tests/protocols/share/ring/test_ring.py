"""Ring products equal those of Python's integers modulo 2^64, for every path, shape and value."""

import math
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.errors import NumericalRangeError, PlanError, ProtocolError
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring.cpu_features import supports

KERNELS = tuple(kernel for kernel in ("amx", "avx512", "vector") if supports(kernel))
PATHS = (*KERNELS, "limbs", "torch")
TOP_DIGITS = -0x0080808080808080  # every digit of 8 bits is -128
EXTREMES = (0, 1, -1, 2**63 - 1, -(2**63), 2**32 - 1, -(2**31), 2**31, -(2**32), 2**62, TOP_DIGITS)
quick = settings(max_examples=60, deadline=None)


def wrapped(value):
    """An integer as int64 holds it modulo 2^64."""
    return (value + 2**63) % 2**64 - 2**63


def linear_by_integers(x, weight):
    rows, columns = x.tolist(), weight.tolist()
    return [[wrapped(sum(a * b for a, b in zip(row, column, strict=True))) for column in columns] for row in rows]


def conv2d_by_integers(x, weight, stride, padding, dilation, groups):
    """Loops over everything. Elements outside the image are zero."""
    batch, _, height, width = x.shape
    out, depth, kernel_height, kernel_width = weight.shape
    out_height = (height + 2 * padding[0] - dilation[0] * (kernel_height - 1) - 1) // stride[0] + 1
    out_width = (width + 2 * padding[1] - dilation[1] * (kernel_width - 1) - 1) // stride[1] + 1
    result = torch.empty((batch, out, out_height, out_width), dtype=torch.int64)
    images, kernels = x.tolist(), weight.tolist()
    for n, o, i, j in torch.cartesian_prod(*map(torch.arange, result.shape)).tolist():
        total = 0
        for c in range(depth):
            plane = images[n][o // (out // groups) * depth + c]
            for u in range(kernel_height):
                for v in range(kernel_width):
                    y = i * stride[0] + u * dilation[0] - padding[0]
                    z = j * stride[1] + v * dilation[1] - padding[1]
                    if 0 <= y < height and 0 <= z < width:
                        total += plane[y][z] * kernels[o][c][u][v]
        result[n, o, i, j] = wrapped(total)
    return result


def elements(shape, bits, seed):
    """Random signed numbers of `bits` bits; a third of them are extremes."""
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator)
    extremes = torch.tensor(EXTREMES)[torch.randint(len(EXTREMES), shape, generator=generator)]
    chosen = torch.where(torch.rand(shape, generator=generator) < 0.33, extremes, random) >> (64 - bits)
    return chosen.clamp(min=1 - 2 ** (bits - 1)) if bits < 64 else chosen


@st.composite
def convolutions(draw):
    few = st.integers(1, 3)
    groups, per_group, depth = draw(few), draw(st.integers(1, 5)), draw(few)
    kernel, stride, dilation = ((draw(few), draw(few)) for _ in range(3))
    padding = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    height, width = (
        max(1, dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i]) + draw(st.integers(0, 6)) for i in range(2)
    )
    shape = (draw(st.integers(0, 3)), groups * depth, height, width)
    bits, seed = draw(st.sampled_from((2, 13, 22, 26, 32, 33, 44, 45, 64))), draw(st.integers(0, 2**32))
    x, weight = elements(shape, 64, seed), elements((groups * per_group, depth, *kernel), bits, seed + 1)
    return x, weight, bits, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


@quick
@given(convolutions())
def test_convolutions_equal_those_of_python_integers(case):
    x, weight, bits, window = case
    expected = conv2d_by_integers(x, weight, **window)
    for path in PATHS:
        found = ring.prepare_conv2d(weight, **window, weight_bits=bits, path=path)(x)
        assert found.is_contiguous()
        assert torch.equal(found, expected), path


@quick
@given(
    st.integers(0, 9),
    st.integers(1, 40),
    st.integers(1, 20),
    st.sampled_from((2, 22, 26, 32, 44, 64)),
    st.integers(0, 2**32),
)
def test_matrix_products_equal_those_of_python_integers(batch, depth, out, bits, seed):
    x, weight = elements((batch, depth), 64, seed), elements((out, depth), bits, seed + 1)
    expected = torch.tensor(linear_by_integers(x, weight), dtype=torch.int64).reshape(batch, out)
    for path in PATHS:
        assert torch.equal(ring.prepare_linear(weight, weight_bits=bits, path=path)(x), expected), path


@pytest.mark.parametrize("path", ["kernel", *KERNELS, "limbs"])
@pytest.mark.parametrize("bits", [23, 26, 31, 32, 64])
@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, -1, 0x2000008000020000, -0x2000008000020000, TOP_DIGITS])
def test_the_largest_sums_are_exact(path, bits, value):
    """Deep sums of one extreme product. Among the values is the one whose limbs are all as large as limbs can be."""
    depth, factor = 5000, value if bits == 64 else 1 - 2 ** (bits - 1)
    x, weight = torch.full((2, depth), value), torch.full((3, depth), factor)
    expected = torch.full((2, 3), wrapped(depth * value * factor))
    assert torch.equal(ring.prepare_linear(weight, weight_bits=bits, path=path)(x), expected)
    images, kernels = x.view(2, depth // 8, 2, 4), weight.view(3, depth // 8, 2, 4)
    product = ring.prepare_conv2d(kernels, stride=(1, 1), padding=(0, 0), weight_bits=bits, path=path)
    assert torch.equal(product(images).flatten(1), expected)


@pytest.mark.parametrize("path", KERNELS)
@pytest.mark.parametrize("bits", [23, 26, 64])
@pytest.mark.parametrize(("size", "stride"), [((32, 32), 1), ((9, 13), 1), ((11, 7), 2), ((2, 2), 1)])
def test_kernels_equal_torch_over_several_strips_chunks_and_images(path, bits, size, stride):
    """Depth 315 and 5 images: more than the kernels take at once. Panels reach from one image into the next."""
    x, weight = elements((5, 35, *size), 64, 1), elements((14, 35, 3, 3), bits, 2)
    window = {"stride": (stride, stride), "padding": (1, 1)}
    expected = ring.prepare_conv2d(weight, **window, path="torch")(x)
    assert torch.equal(ring.prepare_conv2d(weight, **window, weight_bits=bits, path=path)(x), expected)


@pytest.mark.parametrize("path", KERNELS)
@pytest.mark.parametrize("bits", [23, 26, 64])
def test_two_threads_give_what_one_gives_also_to_concurrent_callers(path, bits):
    x, weight = elements((3, 20, 19, 17), 64, 3), elements((37, 20, 3, 3), bits, 4)
    convolve = ring.prepare_conv2d(weight, stride=(1, 1), padding=(1, 1), weight_bits=bits, path=path)
    multiply = ring.prepare_linear(weight.flatten(1), path=path)
    samples = elements((400, 180), 64, 5)
    before = torch.get_num_threads()
    found = []
    try:
        torch.set_num_threads(1)
        expected = convolve(x), multiply(samples)
        torch.set_num_threads(2)
        callers = [threading.Thread(target=lambda: found.append((convolve(x), multiply(samples)))) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        torch.set_num_threads(before)
    assert len(found) == 3
    assert all(torch.equal(a, b) for result in found for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("path", PATHS)
def test_inputs_and_weights_need_not_be_contiguous(path):
    x = elements((4, 9, 7, 3), 64, 6).permute(0, 3, 1, 2)
    weight = elements((3, 3, 5, 3), 64, 7).transpose(0, 2)[:, :, :, ::2]
    window = {"stride": (1, 1), "padding": (0, 0)}
    expected = conv2d_by_integers(x, weight, **window, dilation=(1, 1), groups=1)
    assert torch.equal(ring.prepare_conv2d(weight, **window, path=path)(x), expected)
    samples, matrix = elements((6, 8), 64, 8).T, elements((6, 10), 64, 9).T
    assert ring.prepare_linear(matrix, path=path)(samples).tolist() == linear_by_integers(samples, matrix)


@quick
@given(st.integers(0, 40), st.lists(st.floats(-(2.0**20), 2.0**20), max_size=5))
def test_encoding_rounds_to_the_nearest_unit(fraction_bits, values):
    values = torch.tensor(values, dtype=torch.float64)
    encoded = ring.encode(values, fraction_bits)
    assert encoded.tolist() == [round(value * 2**fraction_bits) for value in values.tolist()]
    decoded = ring.decode(encoded, fraction_bits)
    assert decoded.dtype == torch.float64
    assert bool(((decoded - values).abs() <= 2.0 ** -(fraction_bits + 1)).all())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**42, -(2.0**42)])
def test_encoding_refuses_what_does_not_fit_and_does_not_tell_the_value(value):
    with pytest.raises(NumericalRangeError, match=r"below 2\^42 with 20 fractional bits, got 1 of 2") as caught:
        ring.encode(torch.tensor([0.5, value]), 20)
    assert caught.value.remedy
    assert ring.encode(torch.tensor([2.0**41]), 20).tolist() == [2**61]


@pytest.mark.parametrize("weight", [2**25, -(2**25), 2**40, -(2**63), 2**63 - 1])
def test_weights_beyond_weight_bits_are_refused(weight):
    with pytest.raises(NumericalRangeError, match="weight_bits=26"):
        ring.prepare_linear(torch.tensor([[0, weight]]), weight_bits=26)
    with pytest.raises(NumericalRangeError, match="weight_bits=26"):
        ring.prepare_conv2d(torch.tensor([[[[weight]]]]), stride=(1, 1), padding=(0, 0), weight_bits=26)
    fits = torch.tensor([[2**25 - 1, 1 - 2**25]])
    assert ring.prepare_linear(fits, weight_bits=26)(torch.tensor([[1, 1]])).tolist() == [[0]]


@pytest.mark.parametrize(
    "x", [torch.zeros(2, 4), torch.zeros(2, 5, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)]
)
def test_inputs_of_another_kind_or_shape_are_refused(x):
    with pytest.raises(ProtocolError, match=r"Expected int64 of shape \(any, 4\) on cpu"):
        ring.prepare_linear(torch.ones(3, 4, dtype=torch.int64))(x)


def test_impossible_windows_are_refused():
    weight = torch.ones(4, 1, 3, 3, dtype=torch.int64)
    for wrong in ({"stride": (0, 1)}, {"padding": (-1, 0)}, {"groups": 3}, {"dilation": (1, 0)}, {"weight_bits": 65}):
        with pytest.raises(PlanError):
            ring.prepare_conv2d(weight, **{"stride": (1, 1), "padding": (0, 0)} | wrong)
    with pytest.raises(ProtocolError, match="fits into"):
        ring.prepare_conv2d(weight, stride=(1, 1), padding=(0, 0))(torch.zeros(1, 1, 2, 5, dtype=torch.int64))
    for wrong in (weight.float(), weight[0], weight[:0]):
        with pytest.raises(ProtocolError, match="int64 weights of 4 dimensions"):
            ring.prepare_conv2d(wrong, stride=(1, 1), padding=(0, 0))


def test_a_map_does_not_show_its_weights():
    for path in PATHS:
        assert "777" not in repr(ring.prepare_linear(torch.full((1, 1), 777), path=path))


WITHOUT_NUMBA = """
import sys
import torch
from bilateral.errors import PlanError
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring.cpu_features import supports
assert "numba" not in sys.modules
sys.modules["numba"] = None  # as if it were not installed
weight = torch.full((1, 1), -(2**63))
assert ring.prepare_linear(weight)(torch.tensor([[3]])).tolist() == [[-(2**63)]]
try:
    ring.prepare_linear(weight, path="kernel")
except PlanError as refused:
    assert "limbs" in refused.remedy
else:
    raise SystemExit("path 'kernel' was not refused")
"""


def test_importing_loads_no_numba_and_without_numba_limbs_do_the_work():
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
