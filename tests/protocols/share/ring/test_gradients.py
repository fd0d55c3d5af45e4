"""Transposes of linear maps, and gradients of their weights, equal what Python's integers give modulo 2^64."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.ring.test_ring import PATHS, elements, linear_by_integers, wrapped

from bilateral.errors import ProtocolError
from bilateral.protocols.share.ring import gradients
from bilateral.protocols.share.ring.window import Window

quick = settings(max_examples=60, deadline=None)


def transpose_by_integers(delta, weight, window, size):
    """Every product of the convolution, added to the pixel that it came from."""
    depth = weight.shape[1]
    found = [[[[0] * size[1] for _ in range(size[0])] for _ in range(depth * window.groups)] for _ in range(len(delta))]
    words, weights = delta.tolist(), weight.tolist()
    for n, o, i, j, c, u, v, y, z in _products(delta.shape, weight.shape, window, size):
        found[n][o // (len(weight) // window.groups) * depth + c][y][z] += words[n][o][i][j] * weights[o][c][u][v]
    return torch.tensor([[[[wrapped(x) for x in line] for line in plane] for plane in image] for image in found])


def gradient_by_integers(delta, x, shape, window):
    """Every product of the convolution, added to the weight that it came from."""
    found = [[[[0] * shape[3] for _ in range(shape[2])] for _ in range(shape[1])] for _ in range(shape[0])]
    words, images = delta.tolist(), x.tolist()
    for n, o, i, j, c, u, v, y, z in _products(delta.shape, shape, window, x.shape[2:]):
        found[o][c][u][v] += words[n][o][i][j] * images[n][o // (shape[0] // window.groups) * shape[1] + c][y][z]
    return torch.tensor([[[[wrapped(w) for w in line] for line in plane] for plane in row] for row in found])


def _products(delta_shape, weight_shape, window, size):
    batch, _, height, width = delta_shape
    for n, o, i, j, c, u, v in torch.cartesian_prod(
        *map(torch.arange, (batch, weight_shape[0], height, width, *weight_shape[1:]))
    ).tolist():
        y = i * window.stride[0] + u * window.dilation[0] - window.padding[0]
        z = j * window.stride[1] + v * window.dilation[1] - window.padding[1]
        if 0 <= y < size[0] and 0 <= z < size[1]:
            yield n, o, i, j, c, u, v, y, z


@st.composite
def convolutions(draw):
    """A window that need not reach the last pixels, and padding that may be wider than it."""
    few = st.integers(1, 3)
    groups, per_group, depth = draw(few), draw(few), draw(few)
    kernel, stride, dilation = ((draw(few), draw(few)) for _ in range(3))
    padding = (draw(st.integers(0, 4)), draw(st.integers(0, 4)))
    size = tuple(max(1, dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i]) + draw(st.integers(0, 5)) for i in range(2))
    window = Window(kernel, stride, padding, dilation, groups)
    batch, seed = draw(st.integers(1, 2)), draw(st.integers(0, 2**32))
    delta = elements((batch, groups * per_group, *window.output_size(*size)), 64, seed)
    return delta, elements((batch, groups * depth, *size), 64, seed + 1), window, seed + 2


@quick
@given(convolutions(), st.sampled_from((13, 26, 64)))
def test_transposed_convolutions_equal_those_of_python_integers(case, bits):
    delta, x, window, seed = case
    weight = elements((delta.shape[1], x.shape[1] // window.groups, *window.kernel), bits, seed)
    expected = transpose_by_integers(delta, weight, window, x.shape[2:])
    for path in (None, *PATHS):
        apply = gradients.prepare_conv2d_transpose(weight, window, x.shape[2:], weight_bits=bits, path=path)
        assert torch.equal(apply(delta), expected), path


@quick
@given(convolutions())
def test_gradients_of_convolutions_equal_those_of_python_integers(case):
    delta, x, window, _ = case
    expected = gradient_by_integers(delta, x, (delta.shape[1], x.shape[1] // window.groups, *window.kernel), window)
    for path in (None, *PATHS):
        assert torch.equal(gradients.conv2d_weight_gradient(delta, x, window, path=path), expected), path


@quick
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 20), st.integers(0, 2**32))
def test_dense_layers_equal_those_of_python_integers(batch, out, width, seed):
    delta, x, weight = (elements(shape, 64, seed + i) for i, shape in enumerate(_dense_shapes(batch, out, width)))
    products = torch.tensor(linear_by_integers(delta, weight.T))
    sums = torch.tensor(linear_by_integers(delta.T, x.T))
    for path in (None, *PATHS):
        assert torch.equal(gradients.prepare_linear_transpose(weight, path=path)(delta), products), path
        assert torch.equal(gradients.linear_weight_gradient(delta, x, path=path), sums), path


def _dense_shapes(batch, out, width):
    return (batch, out), (batch, width), (out, width)


def of_convolution(window, channels, rows, size, batch):
    delta = elements((batch, rows, *window.output_size(*size)), 64, 1)
    return delta, elements((batch, channels, *size), 64, 2)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("window", "channels", "rows", "size"),
    [
        (Window((3, 3), (1, 1), (1, 1), (1, 1), 1), 5, 53, (16, 16)),  # rows beyond those of a block, whole vectors
        (Window((5, 5), (1, 1), (0, 0), (1, 1), 1), 3, 7, (29, 31)),  # pixels beyond a chunk, broken vectors
        (Window((3, 3), (2, 2), (1, 1), (1, 1), 1), 4, 6, (33, 32)),
        (Window((3, 3), (1, 1), (1, 1), (1, 1), 3), 9, 15, (20, 20)),
        (Window((3, 1), (1, 2), (1, 0), (2, 1), 4), 4, 4, (20, 21)),  # depthwise
    ],
)
def test_large_layers_agree_with_torch_and_are_transposes_of_each_other(path, window, channels, rows, size):
    """<delta, conv(weight, x)> is linear in each of the three: its derivatives must agree with torch's convolution."""
    delta, x = of_convolution(window, channels, rows, size, batch=5)
    weight = elements((rows, channels // window.groups, *window.kernel), 64, 3)
    settings_of = (window.stride, window.padding, window.dilation, window.groups)
    inner = (torch.nn.functional.conv2d(x, weight, None, *settings_of) * delta).sum()
    gradient = gradients.conv2d_weight_gradient(delta, x, window, path=path)
    assert torch.equal((gradient * weight).sum(), inner)
    assert torch.equal(gradient, gradients.conv2d_weight_gradient(delta, x, window, path="torch"))
    transposed = gradients.prepare_conv2d_transpose(weight, window, size, path=path)(delta)
    assert torch.equal((transposed * x).sum(), inner)


@quick
@given(convolutions())
def test_both_ways_to_transpose_a_convolution_agree(case):
    """Whichever an image of this size would get."""
    delta, x, window, seed = case
    window = dataclasses.replace(window, stride=(1, 1), groups=1)
    size = tuple(x.shape[2:])
    delta = elements((2, 3, *window.output_size(*size)), 64, seed)
    weight = elements((3, 2, *window.kernel), 64, seed + 1)
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for waste in (1e9, 1e-9):
            patch.setattr(gradients, "WASTE", waste)
            found.append(gradients.prepare_conv2d_transpose(weight, window, size)(delta))
    assert torch.equal(*found)


def test_large_batches_are_added_up_in_parts(monkeypatch):
    window = Window((5, 5), (1, 1), (0, 0), (1, 1), 1)
    delta, weight = elements((7, 6, 8, 8), 64, 1), elements((6, 4, 5, 5), 64, 2)
    expected = gradients.prepare_conv2d_transpose(weight, window, (12, 12))(delta)
    monkeypatch.setattr(gradients, "COLUMN_WORDS", 2 * 100 * 64)
    assert torch.equal(gradients.prepare_conv2d_transpose(weight, window, (12, 12))(delta), expected)


def test_two_threads_give_what_one_gives():
    before = torch.get_num_threads()
    for groups in (1, 2, 6):
        window = Window((3, 3), (1, 1), (1, 1), (1, 1), groups)
        delta, x = of_convolution(window, 18, 30, (23, 19), batch=4)
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            try:
                found.append(gradients.conv2d_weight_gradient(delta, x, window))
            finally:
                torch.set_num_threads(before)
        assert torch.equal(*found)


def test_large_batches_are_unfolded_in_parts(monkeypatch):
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), 1)
    delta, x = of_convolution(window, 2, 3, (9, 9), batch=5)
    expected = gradients.conv2d_weight_gradient(delta, x, window, path="limbs")
    monkeypatch.setattr(gradients, "UNFOLDED_WORDS", 2 * 2 * 9 * 81)
    assert torch.equal(gradients.conv2d_weight_gradient(delta, x, window, path="limbs"), expected)


@pytest.mark.parametrize("path", [None, *PATHS])
def test_inputs_need_not_be_contiguous(path):
    window = Window((3, 3), (1, 1), (0, 0), (1, 1), 1)
    delta, x = elements((5, 7, 2, 3), 64, 1).permute(2, 3, 0, 1), elements((9, 7, 4, 2), 64, 2).permute(3, 2, 1, 0)
    expected = gradient_by_integers(delta, x, (3, 4, 3, 3), window)
    assert torch.equal(gradients.conv2d_weight_gradient(delta, x, window, path=path), expected)


def test_an_empty_batch_has_a_gradient_of_zeros():
    window, empty = Window((2, 2), (1, 1), (0, 0), (1, 1), 1), torch.zeros(0, 3, 4, 4, dtype=torch.int64)
    assert not gradients.conv2d_weight_gradient(empty[:, :2, :3, :3], empty, window).any()
    assert gradients.linear_weight_gradient(empty[:, :, 0, 0], empty[:, 0, 0]).shape == (3, 4)


def test_what_does_not_belong_together_is_refused():
    window = Window((2, 2), (1, 1), (0, 0), (1, 1), 1)
    x = torch.zeros(2, 3, 4, 4, dtype=torch.int64)
    for delta in (x[:, :, :2, :3], x[:1, :, :3, :3], x[:, :, :3, :3].double(), x[:, :, 0, 0]):
        with pytest.raises(ProtocolError, match=r"Expected"):
            gradients.conv2d_weight_gradient(delta, x, window)
    apply = gradients.prepare_conv2d_transpose(torch.ones(5, 3, 2, 2, dtype=torch.int64), window, (4, 4))
    for delta in (torch.zeros(2, 5, 4, 4, dtype=torch.int64), torch.zeros(2, 5, 3, 3)):
        with pytest.raises(ProtocolError, match=r"Expected int64 of shape \(any, 5, 3, 3\)"):
            apply(delta)
