"""Users' own networks: what has a rule is computed rightly, what has none is refused by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.protocols.share.harness import Group, fill, queries_like, secret_and_plain
from torch import nn

from bilateral.errors import BilateralError, ModelError, NumericalRangeError, UnsupportedLayerError
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.description import Add, MaxPool, Relu
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.computing.dealer import widths
from bilateral.protocols.share.gates.styles import HARDENED, SEALED

SHAPE = (2, 8, 8)


class Own(nn.Module):
    """A network whose forward is `body(self, x)`, with some layers to use in it."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.conv, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(2, 4, 1)
        self.norm, self.flat_norm = nn.BatchNorm2d(4), nn.BatchNorm1d(4)
        self.pool, self.drop, self.relu = nn.AdaptiveAvgPool2d((2, 4)), nn.Dropout(0.7), nn.ReLU()
        self.inplace = nn.ReLU(inplace=True)
        self.wide, self.head, self.middle = nn.Linear(256, 3), nn.Linear(4, 3), nn.Linear(32, 3)
        fill(self)

    def forward(self, x):
        return self.body(self, x)


def _with_unused_branch(m, x):
    _ = m.second(x)
    return m.wide(m.conv(x).flatten(1))


def _with_shared_relu(m, x):
    h = m.relu(m.conv(x))
    return m.wide((F.max_pool2d(h, 3, 1, 1) + h).flatten(1))


def _with_shared_layer(m, x):
    h = m.conv(x)
    return m.wide((m.norm(h) + h).flatten(1))


def _overwritten_by_module(m, x):
    h = m.conv(x)
    return m.wide((m.inplace(h) + h).flatten(1))


def _overwritten_by_function(m, x):
    h = m.conv(x)
    return m.wide((F.relu(h, inplace=True) + h).flatten(1))


def _with_addition_in_place(m, x):
    h = m.norm(m.conv(x))
    h += m.second(x)
    return m.wide(m.relu(h).flatten(1))


SUPPORTED = {
    "view": lambda m, x: m.wide(F.relu(m.conv(x)).view(x.size(0), -1)),
    "view with shape": lambda m, x: m.wide(torch.relu(m.conv(x)).view(x.shape[0], 256)),
    "reshape": lambda m, x: m.wide(torch.reshape(m.conv(x).relu(), (-1, 256))),
    "flatten": lambda m, x: m.wide(m.conv(x).flatten(1)),
    "mean": lambda m, x: m.head(m.conv(x).mean((2, 3))),
    "mean of list": lambda m, x: m.head(m.conv(x).mean([-1, -2])),
    "mean by name": lambda m, x: m.head(torch.mean(m.conv(x), dim=(2, 3))),
    "kept mean": lambda m, x: m.head(torch.flatten(m.conv(x).mean(dim=(3, 2), keepdim=True), 1)),
    "dropout": lambda m, x: m.middle(torch.flatten(m.pool(m.drop(m.conv(x))), 1)),
    "functional dropout": lambda m, x: m.wide(F.dropout(m.conv(x), 0.5, m.training).flatten(1)),
    "pool of a dropped relu": lambda m, x: m.head(F.max_pool2d(m.drop(m.relu(m.conv(x))), 8).flatten(1)),
    "adaptive pool": lambda m, x: m.head(F.adaptive_avg_pool2d(m.conv(x), 1).flatten(1)),
    "functional pools": lambda m, x: m.head(
        F.avg_pool2d(F.max_pool2d(m.conv(x), 3, stride=2, padding=0), 3).flatten(1)
    ),
    "padded pool": lambda m, x: m.wide(F.max_pool2d(m.relu(m.conv(x)), 3, 1, 1).flatten(1)),
    "torch pool": lambda m, x: m.head(torch.max_pool2d(F.relu(m.conv(x)), (8, 8)).flatten(1)),
    "residual": lambda m, x: m.wide((m.conv(x) + m.second(x)).flatten(1)),
    "torch.add": lambda m, x: m.wide(torch.add(m.conv(x), m.second(x)).flatten(1)),
    "method add": lambda m, x: m.wide(m.conv(x).add(m.second(x)).flatten(1)),
    "added in place": _with_addition_in_place,
    "concatenation": lambda m, x: m.head(torch.cat((x, x), dim=1).mean((2, 3))),
    "concatenation from the end": lambda m, x: m.head(torch.concat([x, m.drop(x)], dim=-3).mean((2, 3))),
    "relu used twice": _with_shared_relu,
    "norm folded": lambda m, x: m.wide(m.relu(m.norm(m.conv(x))).flatten(1)),
    "norm twice": lambda m, x: m.wide(m.norm(m.norm(m.conv(x))).flatten(1)),
    "norm after relu": lambda m, x: m.wide(m.norm(m.relu(m.conv(x))).flatten(1)),
    "norm of a shared layer": _with_shared_layer,
    "flat norm": lambda m, x: m.head(m.flat_norm(m.conv(x).mean((2, 3)))),
    "one layer used twice": lambda m, x: m.wide((m.conv(x) + m.norm(m.conv(x))).flatten(1)),
    "an unused branch": _with_unused_branch,
}


@pytest.fixture(scope="module")
def group():
    return Group()


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_network_of_the_users_own_agrees_with_float(group, name):
    secret, plain, expected = secret_and_plain(Own(SUPPORTED[name]), queries_like(SHAPE), group=group)
    assert (secret - plain).abs().max() < 2**-12
    assert (secret - expected).abs().max() < 2**-12


REFUSED = {
    "Sigmoid `0`": nn.Sequential(nn.Sigmoid()),
    "LayerNorm `0`": nn.Sequential(nn.LayerNorm(8)),
    "GroupNorm `0`": nn.Sequential(nn.GroupNorm(1, 2)),
    "ConvTranspose2d `0`": nn.Sequential(nn.ConvTranspose2d(2, 3, 2)),
    "LeakyReLU `1`": nn.Sequential(nn.ReLU(), nn.LeakyReLU()),
    "Conv2d `0` .*padding": nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")),
    "Conv2d `0` .*padding with": nn.Sequential(nn.Conv2d(2, 3, 3, padding="same")),
    "MaxPool2d `0` .*ceil_mode": nn.Sequential(nn.MaxPool2d(3, 2, ceil_mode=True)),
    "MaxPool2d `0` .*dilation": nn.Sequential(nn.MaxPool2d(2, dilation=2)),
    "MaxPool2d `0` .*directly after a ReLU": nn.Sequential(nn.MaxPool2d(3, padding=1)),
    "AvgPool2d `0` .*count_include_pad": nn.Sequential(nn.AvgPool2d(3, padding=1, count_include_pad=False)),
    "AvgPool2d `0` .*divisor_override": nn.Sequential(nn.AvgPool2d(2, divisor_override=3)),
    "AvgPool2d `0` .*ceil_mode": nn.Sequential(nn.AvgPool2d(3, ceil_mode=True)),
    "AdaptiveAvgPool2d `0` .*divide evenly": nn.Sequential(nn.AdaptiveAvgPool2d(3)),
    "BatchNorm2d `0` .*running": nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False)),
    "Softmax `1`": nn.Sequential(nn.Flatten(), nn.Softmax(1)),
    "`mul`": Own(lambda m, x: m.conv(x) * m.second(x)),
    "`add` .*not a value of the network": Own(lambda m, x: m.conv(x) + 1),
    "`add` .*plain sum": Own(lambda m, x: torch.add(m.conv(x), m.second(x), alpha=2)),
    "`cat` .*dim=1": Own(lambda m, x: torch.cat([m.conv(x), m.second(x)], 2)),
    "`transpose`": Own(lambda m, x: m.conv(x).transpose(2, 3)),
    "`mean` .*height and width": Own(lambda m, x: m.conv(x).mean(1)),
    "`view` .*samples apart": Own(lambda m, x: m.conv(x).view(-1)),
    "`flatten` .*samples apart": Own(lambda m, x: m.conv(x).flatten(0, 1)),
    "`dropout` .*at random": Own(lambda m, x: F.dropout(m.conv(x))),
    "`getitem`": Own(lambda m, x: m.conv(x)[:, :2]),
    "`sigmoid`": Own(lambda m, x: torch.sigmoid(x)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_rule_is_refused_by_name_and_says_what_is_supported(what):
    with pytest.raises(UnsupportedLayerError, match=what) as caught:
        compile_model(REFUSED[what], queries_like(SHAPE))
    assert "Linear, Conv2d" in caught.value.remedy


def test_one_dimensional_convolution_is_refused_by_name():
    with pytest.raises(ModelError, match=r"Conv1d|flat or an image"):
        compile_model(nn.Sequential(nn.Conv1d(2, 3, 3)), queries_like((2, 9)))


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (lambda m, x: (m.conv(x), m.second(x)), "one tensor"),
        (lambda m, x: {"logits": m.conv(x)}, "one tensor"),
        (lambda m, x: m.conv(x) if x.sum() > 0 else x, "cannot be traced"),
    ],
)
def test_a_network_that_is_no_function_of_one_tensor_is_refused(body, match):
    with pytest.raises(ModelError, match=match):
        compile_model(Own(body), queries_like(SHAPE))


def test_a_result_that_is_computed_after_the_output_is_refused():
    def body(m, x):
        result = m.conv(x)
        m.second(x)
        return result

    with pytest.raises(ModelError, match="computes something that it does not return"):
        compile_model(Own(body), queries_like(SHAPE))


def test_a_second_input_is_refused():
    class Two(nn.Module):
        def forward(self, x, y):
            return x + y

    with pytest.raises(ModelError, match="several inputs"):
        compile_model(Two(), queries_like(SHAPE))


def test_samples_of_another_shape_than_the_network_takes_are_a_model_error():
    with pytest.raises(BilateralError):
        compile_model(Own(SUPPORTED["view"]), queries_like((3, 8, 8)))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mean"),
        pytest.param("add"),
        "view",
        "scale",
    ],
)
def test_a_parameter_is_refused_whatever_its_name(name):
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer(name, torch.ones(2, 1, 1))

        def forward(self, x):
            return x + getattr(self, name)

    with pytest.raises(UnsupportedLayerError, match=name):
        compile_model(Normalised(), queries_like(SHAPE))


BY_NAME = {
    "relu": lambda m, x: m.wide(F.relu(input=m.conv(x)).flatten(1)),
    "module": lambda m, x: m.wide(m.conv(input=x).flatten(1)),
    "cat": lambda m, x: m.wide(torch.cat(tensors=[m.conv(x)], dim=1).flatten(1)),
}


@pytest.mark.parametrize(
    "body",
    [
        BY_NAME["relu"],
        pytest.param(BY_NAME["module"]),
        pytest.param(BY_NAME["cat"]),
    ],
)
def test_arguments_by_name_are_computed_or_refused(group, body):
    try:
        secret, _, expected = secret_and_plain(Own(body), queries_like(SHAPE), group=group)
    except ModelError:
        return
    assert (secret - expected).abs().max() < 2**-12


@pytest.mark.parametrize("body", [_overwritten_by_module, _overwritten_by_function])
def test_a_value_that_was_changed_in_place_and_read_later_is_computed_rightly_or_refused(group, body):
    try:
        secret, _, expected = secret_and_plain(Own(body), queries_like(SHAPE), group=group)
    except BilateralError:
        return
    assert (secret - expected).abs().max() < 2**-12


def test_relu_and_max_pooling_change_places_only_where_nobody_else_reads_the_relu():
    swapped = compile_model(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), queries_like(SHAPE)).circuit
    assert [type(step) for step in swapped.steps] == [MaxPool, Relu]
    shared = Own(_with_shared_relu)
    kinds = [type(step) for step in compile_model(shared, queries_like(SHAPE)).circuit.steps][1:4]
    assert kinds == [Relu, MaxPool, Add]


@pytest.mark.parametrize("size", [2000.0, 1e9, float("nan"), float("inf")])
def test_weights_that_fixed_point_cannot_hold_are_refused(size):
    model = Own(SUPPORTED["view"])
    with torch.no_grad():
        model.conv.weight[0, 0, 0, 0] = size
    with pytest.raises(NumericalRangeError):
        compile_model(model, 1e-3 * queries_like(SHAPE))


def test_activations_out_of_range_are_refused_with_their_size_and_place():
    with pytest.raises(NumericalRangeError, match=r"reaches \d+ at .*below 4096"):
        compile_model(Own(SUPPORTED["view"]), queries_like(SHAPE, size=3000.0))


@pytest.mark.parametrize(("value_bits", "digits"), [(12, 8), (8, 7), (6, 7), (4, 6), (3, 6)])
def test_a_narrower_range_takes_fewer_digits_and_the_answers_are_still_right(value_bits, digits):
    """Eight bits before the point and twenty behind it are seven digits of four bits, not eight."""
    model, queries = Own(SUPPORTED["view"]), 0.1 * queries_like(SHAPE)
    compiled = compile_model(model, queries, value_bits=value_bits)
    assert compiled.circuit.value_bits == value_bits
    assert compiled.circuit.comparisons
    for width in widths(compiled.circuit, SEALED, len(queries)):
        assert width.digits == digits
    for style in (SEALED, HARDENED):
        found = Group(style=style).predict(queries, compiled)
        assert (found - predict(compiled, queries)).abs().max() < 2**-12


@pytest.mark.parametrize("value_bits", [2, 3, 6, 11])
def test_samples_that_come_near_a_stated_range_are_refused_with_the_size_that_they_reach(value_bits):
    """Four times of room are wanted, since nobody sees a comparison that was wrong."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU())
    nn.init.ones_(model[0].weight)
    inside = torch.full((1, 1), 2.0**value_bits / 4 - 2.0**-8)
    assert compile_model(model, inside, value_bits=value_bits).circuit.value_bits == value_bits
    with pytest.raises(NumericalRangeError, match=f"compares numbers below {2**value_bits} and wants 4 times of room"):
        compile_model(model, inside + 2.0**-8, value_bits=value_bits)


@pytest.mark.parametrize("value_bits", [-1, 0, 1, 13, 64])
def test_a_range_that_no_comparison_has_is_a_model_error(value_bits):
    with pytest.raises(ModelError, match="2 to 12 bits"):
        compile_model(Own(SUPPORTED["view"]), queries_like(SHAPE), value_bits=value_bits)


def test_samples_that_are_no_numbers_are_refused():
    with pytest.raises(NumericalRangeError):
        compile_model(Own(SUPPORTED["view"]), torch.full((1, *SHAPE), float("nan")))


@pytest.mark.parametrize("exponent", [23, 24, 30, 41])
def test_products_that_wrap_around_the_ring_are_refused(exponent):
    """2^24 times 1 with 40 fraction bits is 2^64, which is 0: small, but wrong."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    nn.init.ones_(model[0].weight)
    with pytest.raises(NumericalRangeError):
        compile_model(model, torch.full((1, 1), 2.0**exponent))


def test_range_checks_need_at_least_one_sample():
    with pytest.raises(BilateralError):
        compile_model(Own(SUPPORTED["view"]), torch.empty(0, *SHAPE))
