"""Single layers through the whole protocol: pooling, joining and averaging give what torch gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.harness import Group, fill, generator, queries_like, secret_and_plain
from torch import nn

from bilateral.errors import ModelError
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.description import AvgPool, Circuit, Concat, MaxPool, Relu
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, predict
from bilateral.protocols.share.gates.styles import STYLES

UNIT = 2.0**-20
pools = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))


@pytest.fixture(scope="module", params=STYLES.values(), ids=STYLES)
def group(request):
    return Group(style=request.param)


def without_weights(input_shape, *steps):
    """A network that only compares, sums or joins: its result has no rounding at all."""
    return FixedPointModel(Circuit(input_shape, steps), ())


def on_grid(shape, seed):
    """Numbers that fixed point holds exactly."""
    return torch.randint(-(2**21), 2**21, shape, generator=generator(seed)).double() / 2**20


@given(pool=pools, size=st.tuples(st.integers(4, 7), st.integers(4, 7)), batch=st.integers(1, 2))
@settings(max_examples=25, deadline=None)
def test_max_pooling_is_torchs_for_every_kernel_and_stride(group, pool, size, batch):
    kernel, stride = pool[:2], pool[2:]
    x = on_grid((batch, 2, *size), seed=sum(pool))
    found = group.predict(x, without_weights((2, *size), MaxPool((0,), kernel, stride, (0, 0))))
    assert torch.equal(found, F.max_pool2d(x, kernel, stride))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [((3, 3), (2, 2), (1, 1)), ((3, 2), (1, 2), (1, 1)), ((5, 5), (1, 1), (2, 2))]
)
def test_padded_overlapping_max_pooling_after_a_relu_is_torchs(group, kernel, stride, padding):
    x = on_grid((2, 3, 7, 8), seed=1)
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(kernel, stride, padding)).eval()
    found = group.predict(x, compile_model(model, x))
    assert torch.equal(found, model(x))


def test_ties_in_max_pooling_are_no_trouble(group):
    x = torch.tensor([0.0, 2.0**-20, -(2.0**-20), 1.0]).double()[torch.randint(0, 4, (3, 2, 6, 6))]
    found = group.predict(x, without_weights((2, 6, 6), MaxPool((0,), (3, 3), (1, 1), (0, 0))))
    assert torch.equal(found, F.max_pool2d(x, 3, 1))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((2, 2), (2, 2), (0, 0)), ((4, 4), (4, 4), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((3, 2), (1, 1), (1, 0))],
)
def test_average_pooling_has_no_rounding_whether_or_not_it_divides_by_a_power_of_two(group, kernel, stride, padding):
    x = on_grid((2, 3, 8, 8), seed=2)
    model = nn.AvgPool2d(kernel, stride, padding)
    found = group.predict(x, compile_model(model, x))
    assert (found - model(x)).abs().max() < 1e-15


def test_relu_alone_is_exact(group):
    x = on_grid((4, 50), seed=3)
    assert torch.equal(group.predict(x, without_weights((50,), Relu((0,)))), F.relu(x))


@pytest.mark.parametrize("kernel", [2, 3, 4, 6])
def test_a_layer_after_average_pooling_takes_in_the_division(group, kernel):
    model = nn.Sequential(nn.AvgPool2d(kernel), nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    x = queries_like((2, 12, 12))
    model(x)
    secret, plain, expected = secret_and_plain(fill(model), x, group=group)
    assert (secret - plain).abs().max() <= 64 * UNIT
    assert (secret - expected).abs().max() < 2**-12


class Joined(nn.Module):
    """A value, its average over 2x2 pixels and over 4x4 pixels: three different numbers of fraction bits."""

    def __init__(self, join):
        super().__init__()
        self.conv, self.join = nn.Conv2d(2, 3, 1), join
        self.head = nn.LazyLinear(5)

    def forward(self, x):
        x = self.conv(x)
        first, second = F.avg_pool2d(x, 2, stride=4), F.avg_pool2d(x, 4)
        third = F.max_pool2d(x, 4)
        joined = torch.cat([third, first, second], 1) if self.join == "concat" else third + first + second
        return self.head(torch.flatten(F.relu(joined), 1))


@pytest.mark.parametrize("join", ["concat", "add"])
def test_values_with_different_fraction_bits_are_aligned_before_they_are_joined(group, join):
    model, x = Joined(join), queries_like((2, 8, 8))
    model(x)
    secret, plain, expected = secret_and_plain(fill(model), x, group=group)
    assert (secret - plain).abs().max() <= 64 * UNIT
    assert (secret - expected).abs().max() < 2**-12


def test_concatenation_of_one_value_with_itself_is_exact(group):
    x = on_grid((2, 3, 4, 4), seed=4)
    steps = AvgPool((0,), (2, 2), (1, 1), (0, 0)), MaxPool((0,), (2, 2), (1, 1), (0, 0)), Concat((1, 2, 1))
    found = group.predict(x, without_weights((3, 4, 4), *steps))
    average, largest = F.avg_pool2d(x, 2, 1), F.max_pool2d(x, 2, 1)
    assert torch.equal(found, torch.cat([average, largest, average], 1))


def test_averages_over_different_windows_cannot_be_joined():
    class Model(nn.Module):
        def forward(self, x):
            return F.avg_pool2d(x, 3, stride=1) + F.avg_pool2d(x, 5, stride=1, padding=1)

    with pytest.raises(ModelError, match="averaged over different windows"):
        compile_model(Model(), queries_like((1, 9, 9)))


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1},
        {"stride": (1, 3), "padding": (2, 0), "dilation": (1, 2)},
        {"groups": 2},
        {"groups": 4, "bias": False},
    ],
)
def test_convolutions_of_all_settings_agree_with_torch(group, options):
    model = fill(nn.Sequential(nn.Conv2d(4, 8, 3, **options), nn.ReLU()))
    secret, plain, expected = secret_and_plain(model, queries_like((4, 9, 10)), group=group)
    assert (secret - plain).abs().max() <= UNIT
    assert (secret - expected).abs().max() < 2**-14


def test_plain_fixed_point_equals_python_integers(group):
    """The plaintext oracle itself, against integers: one dense layer, rounded to the nearest."""
    model, x = fill(nn.Sequential(nn.Linear(5, 3)), size=5.0), queries_like((5,), count=4)
    compiled = compile_model(model, x)
    (layer,) = compiled.layers
    expected = [
        [
            (sum(w * round(float(v) * 2**20) for w, v in zip(row, sample, strict=True)) + b + 2**19) >> 20
            for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
        ]
        for sample in x.double()
    ]
    assert (predict(compiled, x) * 2**20).tolist() == expected
    assert bool(((group.predict(x, compiled) * 2**20 - torch.tensor(expected)).abs() <= 1).all())
