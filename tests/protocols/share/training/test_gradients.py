"""Gradients of a step on shares are those of autograd in float64, and those of the same step in the clear."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.harness import fill
from tests.protocols.share.training.stepping import Step, converse, step_of
from torch import nn

from bilateral.errors import ModelError
from bilateral.models.zoo import build_model
from bilateral.protocols.share.circuit.description import Circuit, Dense, Relu, Scale
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.circuit.trainable import compile_trainable
from bilateral.protocols.share.training.terms import ONE, StepTerms

TOLERANCE = 1e-4
SHAPE = (2, 8, 8)


class Own(nn.Module):
    """A network whose forward is `body(self, x)`, with some layers to use in it."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.conv, self.other = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(2, 4, 1, bias=False)
        self.same, self.grouped = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, groups=2)
        self.dilated, self.oblong = nn.Conv2d(2, 4, 3, dilation=2), nn.Conv2d(2, 4, (1, 3), (2, 1), (0, 1))
        self.wide, self.head, self.middle = nn.Linear(256, 3), nn.Linear(4, 3, bias=False), nn.Linear(8, 3)
        self.leaky, self.drop_half, self.drop_third = nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Dropout(0.3)
        self.channels = nn.Dropout2d(0.4)
        fill(self)

    def forward(self, x):
        return self.body(self, x)


def _residual(m, x):
    h = F.relu(m.conv(x))
    return m.wide((h + m.same(h)).flatten(1))


def _shared(m, x):
    h = m.same(F.relu(m.same(m.conv(x))))
    return m.wide(F.relu(h).flatten(1))


def _two_readers(m, x):
    """Two layers that train read one value: it is told once for each, under one mask."""
    return m.wide(F.relu(m.conv(x) + m.other(x)).flatten(1))


def _joined(m, x):
    h = torch.cat([m.conv(x), F.relu(m.other(x))], dim=1)
    return m.middle(F.adaptive_avg_pool2d(h, 1).flatten(1))


NETWORKS = {
    "residual sum": _residual,
    "shared weights": _shared,
    "two layers of one value": _two_readers,
    "concatenation": _joined,
    "concatenation with the input": lambda m, x: m.head(torch.cat([x, F.relu(x)], dim=1).mean((2, 3))),
    "grouped and strided": lambda m, x: m.middle(m.grouped(F.relu(m.conv(x))).mean((2, 3))),
    "dilated": lambda m, x: m.head(F.relu(m.dilated(x)).mean((2, 3))),
    "oblong": lambda m, x: m.head(F.relu(m.oblong(x)).mean((2, 3))),
    "max pooling": lambda m, x: m.head(F.max_pool2d(m.same(F.relu(m.conv(x))), 8).flatten(1)),
    "max pooling before relu": lambda m, x: m.head(F.relu(F.max_pool2d(m.conv(x), 4)).mean((2, 3))),
    "overlapping max pooling": lambda m, x: m.head(F.max_pool2d(F.relu(m.conv(x)), 3, 1, 1).mean((2, 3))),
    "max pooling of an average": lambda m, x: m.head(F.max_pool2d(F.relu(F.avg_pool2d(m.conv(x), 2)), 4).flatten(1)),
    "averages of nine": lambda m, x: m.head(F.adaptive_avg_pool2d(F.avg_pool2d(m.conv(x), 3, 1), 1).flatten(1)),
    "overlapping padded averages": lambda m, x: m.wide(F.avg_pool2d(m.conv(x), 3, 1, 1).flatten(1)),
    "adaptive averages": lambda m, x: m.head(F.adaptive_avg_pool2d(F.relu(m.conv(x)), (2, 4)).mean((2, 3))),
    "an average at the end": lambda m, x: F.adaptive_avg_pool2d(m.conv(x), 1).flatten(1),
    "a sum at the end": lambda m, x: m.head(m.other(x).mean((2, 3))) + m.wide(F.relu(m.conv(x)).flatten(1)),
    "leaky": lambda m, x: m.wide(m.leaky(m.conv(x)).flatten(1)),
    "max pooling of leaky": lambda m, x: m.head(F.max_pool2d(m.leaky(m.conv(x)), 8).flatten(1)),
    "dropout of a half": lambda m, x: m.wide(m.drop_half(F.relu(m.conv(x))).flatten(1)),
    "dropout of three tenths": lambda m, x: m.wide(m.drop_third(F.relu(m.conv(x))).flatten(1)),
    "dropout of channels": lambda m, x: m.wide(F.relu(m.channels(m.conv(x))).flatten(1)),
    "max pooling of dropout": lambda m, x: m.head(F.max_pool2d(m.drop_third(m.conv(x)), 8).flatten(1)),
    "dropout of the input": lambda m, x: m.wide(F.relu(m.conv(m.drop_half(x))).flatten(1)),
    "no relu": lambda m, x: m.wide(m.same(m.conv(x)).flatten(1)),
}


def largest_error(found, expected):
    """Relative to the largest number of each part, of all parts that train; both have the same ones."""
    errors = []
    for pair, wanted in zip(found, expected, strict=True):
        for gradient, exact in zip(pair, wanted, strict=True):
            assert (gradient is None) == (exact is None)
            if exact is not None:
                assert gradient.shape == exact.shape
                errors.append(float((gradient - exact).abs().max() / exact.abs().max().clamp_min(1e-3)))
    return max(errors)


def assert_exact(step, tolerance=TOLERANCE):
    taken = step.take()
    assert len(taken.first) == len(taken.second) == step.terms.gradient_words
    assert largest_error(step.terms.decode(taken.words), step.in_float()) < tolerance
    return taken


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_autograd_in_float64(name, loss):
    assert_exact(step_of(Own(NETWORKS[name]), SHAPE, loss, 3))


@pytest.mark.parametrize("outputs", [2, 10])
def test_cross_entropy_of_two_and_of_ten_classes(outputs):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))
    fill(model)
    assert_exact(step_of(model, (6,), "ce", 12))


def test_a_regression_with_one_output():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    fill(model)
    assert_exact(step_of(model, (6,), "mse", 12))


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_a_batch_of_one(loss):
    assert_exact(step_of(Own(_residual), SHAPE, loss, 1))


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("factor", [ONE // 3, 12_345, ONE - 1])
def test_a_factor_below_one_counts_every_sample_less(loss, factor):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    fill(model)
    # A small factor leaves fewer bits of each delta.
    assert_exact(step_of(model, (6,), loss, 8, factor=factor), TOLERANCE * max(1, 0.1 * ONE / factor))


def test_frozen_layers_have_no_gradient_and_others_have_theirs():
    for frozen in ("conv.weight", "conv.bias", "same.weight", "same.bias", "wide.weight", "wide.bias"):
        model = Own(_shared)
        model.get_parameter(frozen).requires_grad_(False)
        assert_exact(step_of(model, SHAPE, "ce", 2))


def test_a_network_whose_biases_alone_train():
    model = Own(_shared)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    step = step_of(model, SHAPE, "mse", 2)
    assert not any(weight for weight, _ in step.terms.trains)
    assert_exact(step)


def test_units_at_exactly_zero_send_nothing_back_as_in_torch():
    """Behind units that are dead for every sample, a layer without a bias gives exact zeros."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    fill(model)
    with torch.no_grad():
        model[0].bias.fill_(-50.0)
        model[2].bias.zero_()
    step = step_of(model, (6,), "ce", 12)
    assert float(step.in_float()[1][1].abs().max()) == 0.0
    assert float(step.terms.decode(step.take().words)[1][1].abs().max()) == 0.0


def test_a_network_without_biases():
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    fill(model)
    assert_exact(step_of(model, (6,), "ce", 8))


def test_only_the_last_layer_trains_behind_a_layer_that_is_given_in_shares():
    """The first layer is sealed, for its weights do not train but its bias does."""
    model = Own(lambda m, x: m.wide(F.relu(m.conv(x)).flatten(1)))
    model.conv.weight.requires_grad_(False)
    assert_exact(step_of(model, SHAPE, "ce", 2))


def test_a_layer_that_leads_nowhere_has_a_gradient_of_zero():
    circuit = Circuit((4,), (Dense((0,), 5), Dense((0,), 3)))
    layers = tuple(
        PrivateLayer(torch.randint(-(1 << 20), 1 << 20, shape), torch.zeros(shape[0], dtype=torch.int64))
        for shape in ((5, 4), (3, 4))
    )
    terms = StepTerms(circuit, "mse", 2, ((True, True), (True, True)))
    step = Step(terms, layers, torch.randn(2, 4), torch.randn(2, 3)).without_limits()
    gradients = terms.decode(assert_exact(step).words)
    assert not gradients[0][0].any() and not gradients[0][1].any()


def test_an_average_that_was_not_scaled_is_refused():
    trainable = compile_trainable(Own(NETWORKS["averages of nine"]), SHAPE)
    steps = [step for step in trainable.circuit.steps if not isinstance(step, Scale)]
    with pytest.raises(ModelError):
        StepTerms(Circuit(SHAPE, tuple(steps)), "mse", 2, trainable.trains)


def test_a_scale_by_one_of_what_is_whole_changes_nothing():
    circuit = Circuit((3,), (Dense((0,), 3), Scale((1,), ONE), Relu((2,)), Dense((3,), 2)))
    layers = tuple(
        PrivateLayer(torch.randint(-(1 << 20), 1 << 20, shape), torch.zeros(shape[0], dtype=torch.int64))
        for shape in ((3, 3), (2, 3))
    )
    terms = StepTerms(circuit, "ce", 4, ((True, True), (True, True)))
    assert_exact(Step(terms, layers, torch.randn(4, 3), torch.tensor([0, 1, 1, 0])).without_limits())


@pytest.mark.parametrize("name", ["mlp-3", "lenet", "resnet-8"])
def test_gradients_of_networks_of_the_zoo_go_back_to_their_parameters(name):
    shape = {"mlp-3": (20,), "lenet": (1, 28, 28), "resnet-8": (3, 8, 8)}[name]
    options = {"batch_norm": False} if name == "resnet-8" else {}
    model = build_model(name, input_shape=shape, num_outputs=10, seed=0, **options)
    step = step_of(model, shape, "ce", 2)
    found = compile_trainable(model, shape).gradients(model, step.terms.decode(step.take().words))
    exact = copy.deepcopy(model).double()
    F.cross_entropy(exact(step.inputs), step.targets, reduction="sum").backward()
    for key, parameter in exact.named_parameters():
        error = (found[key] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 2 * TOLERANCE, key


# The same in the clear.


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_differ_from_the_step_in_the_clear_by_units_of_truncation(name, loss):
    """No number of a step is above 2^5 or so here, and no gradient adds up more than some hundred products."""
    step = step_of(Own(NETWORKS[name]), SHAPE, loss, 3)
    difference = step.terms.decode(step.take().words - step.plain())
    for pair in difference:
        for part in pair:
            assert part is None or part.abs().max() < 2.0**-10


def test_a_dropped_number_sends_back_exactly_nothing():
    """With half of the numbers dropped, those before the dropped ones have gradients of zero, to the last unit."""
    model = nn.Sequential(nn.Linear(1, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    fill(model)
    for dropout in (0.5, 0.3):
        model[1].p = dropout
        step = step_of(model, (1,), "ce", 1)
        gradient = step.terms.decode(step.take().words)[0][1]
        exact = step.in_float()[0][1]
        assert 10 < int((exact == 0).sum()) < 54
        assert not gradient[exact == 0].any()


# Networks made at random.


@st.composite
def networks(draw):
    """A few layers on small images, with branches, then a head."""
    layers, channels, size = [], 2, 6
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["conv", "residual", "max", "average", "dropout"]))
        if kind == "conv":
            out, kernel = draw(st.sampled_from([2, 4])), draw(st.integers(1, min(3, size)))
            stride, padding, groups = (
                draw(st.integers(1, 2)),
                draw(st.integers(0, kernel // 2)),
                draw(st.integers(1, 2)),
            )
            layers.append(nn.Conv2d(channels, out, kernel, stride, padding, groups=groups, bias=draw(st.booleans())))
            channels, size = out, (size + 2 * padding - kernel) // stride + 1
        elif kind == "residual":
            layers.append(Residual(channels))
        elif kind == "dropout":
            layers.append(nn.Dropout(draw(st.sampled_from([0.25, 0.5, 0.1]))))
        elif size >= 2:
            kernel, stride = draw(st.integers(2, min(3, size))), draw(st.integers(1, 2))
            layers.append(nn.MaxPool2d(kernel, stride) if kind == "max" else nn.AvgPool2d(kernel, stride))
            size = (size - kernel) // stride + 1
        if draw(st.booleans()):
            layers.append(draw(st.sampled_from([nn.ReLU(), nn.LeakyReLU(0.1)])))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size * size, draw(st.integers(1, 4))))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x)


@settings(max_examples=25)
@given(networks(), st.sampled_from(["mse", "ce"]), st.integers(1, 4), st.integers(0, 1000))
def test_any_small_network_has_the_gradients_of_float64(model, loss, batch_size, number):
    fill(model, seed=number)
    assert_exact(step_of(model, (2, 6, 6), loss, batch_size, number=number), 3 * TOLERANCE)


# What follows from seeds.


def test_the_same_seeds_give_the_same_integers_and_others_do_not():
    step = step_of(Own(_residual), SHAPE, "ce", 2)
    first, second = step.take(), step.take()
    assert torch.equal(first.first, second.first)
    assert torch.equal(first.second, second.second)
    for a, b in zip(first.told, second.told, strict=True):
        assert all(torch.equal(x, y) for (_, x), (_, y) in zip(a, b, strict=True))
    step.number = 1
    third = step.take()
    assert not torch.equal(first.first, third.first)
    assert (first.words - third.words).double().norm() < TOLERANCE * first.words.double().norm()


def test_what_is_prepared_ahead_changes_nothing():
    step = step_of(Own(_residual), SHAPE, "ce", 2)
    second = step.second()
    second.prepare()
    ahead = converse(step.first().work(), second.work(step.inputs, step.targets))
    assert torch.equal(ahead.words, step.take().words)
