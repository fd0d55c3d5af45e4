"""No number leaves its range without a word: steps end in an error on both sides, or their gradients are right.

`bounds.follow` is held to a step without any modulus, in which whatever leaves its range is seen to.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.harness import fill, generator, uniform_words
from tests.protocols.share.training.stepping import ROOM, Step, by_gates, errors_of_both, step_of, tiny_terms
from tests.protocols.share.training.test_gradients import NETWORKS, SHAPE, Own, assert_exact, networks
from torch import nn

from bilateral.errors import DataError, NumericalRangeError
from bilateral.protocols.share.circuit.description import Add, Circuit, Dense
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.gates.truncation import logical_shift
from bilateral.protocols.share.training import norms
from bilateral.protocols.share.training.bounds import LEAST_MARGIN, PRODUCT_BITS, Limits, follow, limits_for
from bilateral.protocols.share.training.following import COMPARED_BITS
from bilateral.protocols.share.training.parties import encode_batch, seed_of_step
from bilateral.protocols.share.training.plain import Plain, plain_step
from bilateral.protocols.share.training.roles import (
    SUM_BITS,
    First,
    FirstModel,
)
from bilateral.protocols.share.training.script import run, step
from bilateral.protocols.share.training.sizing import expected_norms
from bilateral.protocols.share.training.tape import DELTA_BITS, LARGEST
from bilateral.protocols.share.training.terms import StepTerms
from bilateral.protocols.share.training.watching import (
    GROUP,
    NUM_SUMS,
    group_size,
    groups_of,
    in_groups,
    signed_sums,
    signed_sums_by_tensors,
)

CLIENTS = 3


# The random sums.


def sums_of(x, number):
    """The random sums of one watched tensor, in the clear (they are linear)."""
    role = First(tiny_terms(), FirstModel((), (), (), {}), (), b"a" * 32, b"b" * 32, "dora")
    return role._sums(x, number)


ADVERSARIAL = {
    "one number": lambda n: torch.eye(n)[0],
    "two equal": lambda n: torch.eye(n)[0] + torch.eye(n)[1],
    "a one and a half": lambda n: torch.eye(n)[0] + 0.5 * torch.eye(n)[1],
    "all equal": torch.ones,
    "falling": lambda n: 0.5 ** torch.arange(n),
    "normal": lambda n: torch.randn(n, generator=generator(3)),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_three_of_sixteen_sums_of_a_group_of_twice_the_limit_are_beyond_it(name):
    """Paley and Zygmund's bound, over 20 draws of 64 sums."""
    x = ADVERSARIAL[name](256).double()
    limit = 1 << 30
    x = (x * (2 * limit / x.norm())).ceil().long()[:, None]
    beyond = torch.cat([sums_of(x, number).reshape(-1) for number in range(20)]).abs() > limit
    assert float(beyond.double().mean()) > 3 / 16


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_half_of_the_sums_of_a_group_with_a_number_above_the_limit_are_beyond_it(name):
    limit = 1 << 30
    x = ADVERSARIAL[name](256).double()
    x = (x * 0.1 * limit / x.abs().max()).long()[:, None]
    x[17] = limit + 1
    beyond = torch.cat([sums_of(x, number).reshape(-1) for number in range(20)]).abs() > limit
    assert float(beyond.double().mean()) > 0.5 - 4 * 0.5 / math.sqrt(20 * NUM_SUMS)


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 700))
def test_groups_have_every_number_once_and_channels_lie_in_few_of_them(batch, channels, pixels):
    shape = (batch, channels) if pixels == 0 else (batch, channels, pixels)
    x = torch.arange(1, math.prod(shape) + 1).reshape(shape)
    groups = in_groups(x)
    found = groups.reshape(-1)
    assert torch.equal(found[found != 0].sort().values, x.reshape(-1))
    length = batch * max(1, pixels)
    assert groups.shape[1] == group_size(channels, length) <= max(GROUP, length)
    assert (groups_of(x).count, groups_of(x).size) == tuple(groups.shape)
    for channel in x.transpose(0, 1).reshape(channels, -1):
        met = torch.isin(groups, channel).any(1).sum()
        assert met <= -(-length // GROUP)


@pytest.mark.parametrize("size", [1, 64, 3000])
def test_what_is_opened_at_the_end_is_how_many_sums_are_beyond_their_limits(size):
    x = torch.randint(-(1 << 30), 1 << 30, (size, 2), generator=generator(size))
    for scale in (0.2, 0.7, 1.5, 6.0):
        limit = int(scale * 2**30 * math.sqrt(size))

        def walk(role, share):
            role.watch("x", share)
            count = yield from role.settle()
            return torch.tensor([count])

        taken = by_gates(walk, x, limits={"x": limit})
        seen = by_gates(_sums_alone, x).words
        assert int(taken.first) == int(taken.second) == int((seen.abs() > limit).sum())


def _sums_alone(role, share):
    role.watch("x", share)
    return role._watched[0][1]()
    yield


def test_sums_just_at_the_limit_are_not_beyond_it():
    def walk(role, share):
        role.watch("x", share)
        count = yield from role.settle()
        return torch.tensor([count])

    for number, beyond in ((1000, 0), (-1000, 0), (1001, NUM_SUMS), (-1001, NUM_SUMS)):
        assert int(by_gates(walk, torch.tensor([[number]]), limits={"x": 1000}).first) == beyond


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 9), st.sampled_from([0, 1, 2, 7, 64, 250, 700]), st.integers(0, 1000))
def test_compiled_sums_with_random_signs_are_those_of_tensors(batch, channels, pixels, seed):
    """Of values as they lie in memory, channels of one group and of several, and several channels in one."""
    x = uniform_words((batch, channels) if pixels == 0 else (batch, channels, pixels), seed)
    groups = in_groups(x)
    signs = uniform_words((groups.shape[1],), seed + 5000)
    assert torch.equal(signed_sums(x, signs), signed_sums_by_tensors(groups, signs))


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 9), st.integers(0, 40), st.integers(0, 1000))
def test_compiled_norms_are_those_of_tensors_and_add_up_to_the_norm(batch, channels, pixels, shift, seed):
    """t^2 + (2 (t + P) B + B^2) - 2 P B = (t + B)^2, for what the parties take for t once words are cut."""
    shape = (batch, channels) if pixels == 0 else (batch, channels, pixels)
    told, blind, mask = (uniform_words(shape, 3 * seed + place) for place in range(3))
    first, second, dealt = (
        norms.first_part(told, blind, shift),
        norms.second_part(told, mask, shift),
        norms.dealt_part(blind, mask, shift),
    )
    assert torch.equal(first, norms.first_by_tensors(told, blind, shift))
    assert torch.equal(second, norms.second_by_tensors(told, mask, shift))
    assert torch.equal(dealt, norms.dealt_by_tensors(blind, mask, shift))
    cut = [logical_shift(words, shift) for words in (told, blind, mask)]
    whole = (cut[0] - cut[1] + cut[2]).square().transpose(0, 1).reshape(channels, -1).sum(1)
    assert torch.equal(first + second - 2 * dealt, whole)


# Whole steps.


def spiked(step, size, seed=0):
    """The same step with a few large numbers in its inputs, as large as a second party lets them be."""
    inputs = step.inputs.clone()
    place = torch.randint(inputs[0].numel(), (1,), generator=generator(seed))
    inputs.flatten(1)[0, place] = size
    return replace(step, inputs=inputs)


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("name", NETWORKS)
def test_each_limit_that_is_crossed_ends_the_step_on_both_sides(name, loss):
    """Every gate that is watched, one after the other: within eight times its norm all is well, a tenth is too much."""
    made = step_of(Own(NETWORKS[name]), SHAPE, loss, 2)
    labels = list(made.limits)
    shape = made.terms.shape_of_step
    assert len(labels) == len(shape.watched) + len(shape.norms), "two things of one name"
    sizes = measured(made, dropout=made.seeds[1])[0]
    assert set(labels) == set(sizes)
    assert errors_of_both(replace(made, limits={k: 8 * int(v) + 1000 for k, v in sizes.items()})) == [None, None]
    for label in labels:
        errors = errors_of_both(replace(made, limits=made.limits | {label: int(sizes[label] / 10)}))
        assert all(type(error) is NumericalRangeError for error in errors), label
        assert str(errors[0]) == str(errors[1])
        assert "left their range" in str(errors[0])


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_right_or_ends_in_an_error_however_large_numbers_get(name, loss):
    outcomes_of(name, loss)


def test_steps_were_right_and_ended_in_errors_and_were_refused():
    """The control of the test before: all three were met."""
    names = ("residual sum", "overlapping max pooling", "averages of nine")
    assert set.union(*(outcomes_of(name, "mse") for name in names)) == {"right", "error", "refused"}


def units_of_delta(made):
    """Twenty units in the last place of what comes back from the loss, relative to it: where the softmax is sure, it is
    nearly nothing."""
    _, bias = made.in_float()[-1]
    return 0.0 if bias is None else 20 * 2.0**-20 / max(float(bias.abs().max()), 2.0**-20)


def outcomes_of(name, loss):
    """Weights, then inputs and targets, driven up until the server refuses, or the step ends in an error."""
    outcomes = set()
    for size in (0.2, 2.0, 20.0):
        for spike in (0.0, 12.0, 100.0):
            made = spiked(step_of(Own(NETWORKS[name]), SHAPE, loss, 2).with_weights_times(size), spike)
            examples = 0.05 * made.inputs
            if loss == "mse":
                made = replace(made, targets=made.targets * (1 + spike))
            try:
                made = made.with_limits_of(examples)
            except NumericalRangeError:
                outcomes.add("refused")
                continue
            errors = errors_of_both(made)
            assert (errors[0] is None) == (errors[1] is None)
            if errors[0] is None:
                outcomes.add("right")
                assert_exact(made, max(3e-3, units_of_delta(made)))
            else:
                outcomes.add("error")
                assert all(type(error) is NumericalRangeError for error in errors)
    return outcomes


def test_outputs_whose_sum_leaves_the_range_of_the_softmax_end_the_step():
    """Three layers give 16,000 and their sum is an output: each is in range, differences of outputs are not."""
    circuit = Circuit((1,), (Dense((0,), 2), Dense((0,), 2), Dense((0,), 2), Add((1, 2)), Add((4, 3))))
    weight, bias = torch.tensor([[16_000 << 20], [-16_000 << 20]]), torch.zeros(2, dtype=torch.int64)
    terms = StepTerms(circuit, "ce", 1, ((True, True),) * 3)
    layers = (PrivateLayer(weight, bias),) * 3
    made = Step(terms, layers, torch.ones(1, 1), torch.tensor([1])).without_limits()
    most = (LARGEST << 20) - 1024
    limits = {"layer 0": most, "layer 1": most, "layer 2": most, "value 5": most, "loss": 1 << 21}
    assert set(limits) <= set(made.limits)
    limits = made.limits | limits
    assert [type(error) for error in errors_of_both(replace(made, limits=limits))] == [NumericalRangeError] * 2
    unwatched = replace(made, limits=limits | {"value 5": ROOM})
    assert errors_of_both(unwatched) == [None, None]
    with pytest.raises(AssertionError):
        assert_exact(unwatched)


def convolved(size):
    """A step whose first outputs are normal, each about so large, 16 times 256 of each of 8 channels."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 3))
    with torch.no_grad():
        model[0].weight.normal_(0, size / 3)
        model[3].weight.mul_(1 / size)
    return step_of(model, (1, 16, 16), "ce", 16)


def test_numbers_far_below_their_limit_are_not_stopped_for_being_many():
    """As in LeNet on MNIST, whose outputs of a layer reached 22, and one random sum of 6,272 of them 2,183."""
    made = convolved(20.0)
    outputs = made.layers[0].weight.double() * 2.0**-20
    outputs = nn.functional.conv2d(made.inputs.double(), outputs, padding=1)
    assert float(outputs.abs().max()) < 0.01 * LARGEST
    sums = signed_sums(outputs.long(), uniform_words((groups_of(outputs).size,), 1))
    assert float(sums.abs().max()) > 2048  # by which such a step ended before decision 54
    assert_exact(made.with_limits_of(made.inputs, CLIENTS))


def test_too_little_room_for_sums_is_an_error_before_anything_is_told_and_names_where():
    made = convolved(60.0)
    with pytest.raises(NumericalRangeError, match=r"'layer 0' come too near .* room for ones [2-5]\.\d times as large"):
        made.with_limits_of(made.inputs, CLIENTS)


def test_sums_of_like_batches_are_as_large_as_those_of_examples_whatever_the_size_of_the_batch():
    """A batch of many samples fills its groups no more than so far: what is expected of it does not grow on."""
    for batch_size in (4, 16, 64):
        made = step_of(Own(NETWORKS["residual sum"]), SHAPE, "ce", batch_size)
        expected = expected_norms(made.terms, made.model, made.inputs[:4])
        role = Plain(made.terms, made.model)
        run(step(role, *encode_batch(made.terms, made.inputs, made.targets)))
        for label in ("layer 0", "layer 1"):
            assert 0.6 < role.group_norms[label] * 2.0**-20 / expected[label] < 1.6


def test_limits_of_a_network_of_zeros_are_numbers_that_can_be_compared():
    """Nothing goes back through weights of zero, so nothing else would bound what may."""
    made = step_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,), "mse", 2).with_weights_times(0)
    made = made.with_limits_of(made.inputs)
    assert all(1 <= limit < 1 << 60 for limit in made.limits.values())
    assert errors_of_both(made) == [None, None]


def test_limits_are_sized_by_an_example_or_more():
    made = step_of(nn.Sequential(nn.Linear(3, 2)), (3,), "mse", 2)
    with pytest.raises(DataError, match="No example"):
        made.with_limits_of(made.inputs[:0])


@pytest.mark.parametrize("name", ["residual sum", "averages of nine", "dropout of three tenths", "max pooling"])
@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_limits_that_are_sized_by_like_examples_stop_no_step(name, loss):
    model = Own(NETWORKS[name])
    examples = step_of(model, SHAPE, loss, 8, number=99).inputs
    for number in range(8):
        made = step_of(model, SHAPE, loss, 8, number=number).with_weights_times(0.2).with_limits_of(examples)
        assert errors_of_both(made) == [None, None]


def test_a_network_without_room_is_refused_before_anything_is_told():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    made = step_of(model, (6,), "mse", 4).with_weights_times(3000)
    with pytest.raises(NumericalRangeError, match=r"comes too near the limit|has no room for this network"):
        made.with_limits_of(made.inputs)


@pytest.mark.parametrize("number", [1024.01, float("nan"), float("inf"), -5000.0])
@pytest.mark.parametrize("which", ["inputs", "targets"])
def test_inputs_and_targets_beyond_their_range_are_refused_by_who_has_them(which, number):
    made = step_of(nn.Sequential(nn.Linear(3, 2)), (3,), "mse", 2)
    getattr(made, which)[1, 1] = number
    with pytest.raises(NumericalRangeError):
        encode_batch(made.terms, made.inputs, made.targets)


def test_a_channel_of_large_inputs_is_refused_by_who_has_them():
    made = step_of(Own(NETWORKS["leaky"]), SHAPE, "ce", 2)
    made.inputs[:, 1] = 16.1
    with pytest.raises(NumericalRangeError, match="root mean square"):
        encode_batch(made.terms, made.inputs, made.targets)


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_a_batch_of_another_shape_is_refused_by_who_has_it(loss):
    made = step_of(nn.Sequential(nn.Linear(3, 2)), (3,), loss, 2)
    wrong = [(made.inputs[:1], made.targets), (made.inputs, made.targets[:1]), (made.inputs[:, :2], made.targets)]
    wrong.append((made.inputs, made.targets.float()[:, None]))
    if loss == "ce":
        wrong += [(made.inputs, torch.tensor([0, 2])), (made.inputs, torch.tensor([-1, 0]))]
    for inputs, targets in wrong:
        with pytest.raises(DataError):
            encode_batch(made.terms, inputs, targets)


# Without any modulus.


class Big(torch.Tensor):
    """Whole numbers of any size: float64, to whom a shift is a product."""

    def __lshift__(self, bits):
        return self * 2.0**bits


class Endless(Plain):
    """The step in the clear on numbers that never wrap around; notes which leave the range they have on shares.

    `limits`: as `follow` has them; None to measure only.
    """

    def __init__(self, terms, model, limits, dropout):
        super().__init__(terms, model, dropout)
        self.limits, self.outside, self.is_within = limits, [], True
        self.sizes, self.largest_delta = {}, 0.0

    def expect(self, x, bits, what):
        if x.numel() and float(x.abs().max()) >= 2.0**bits:
            self.outside.append(what)

    def mask(self, purpose, number, x):
        self.expect(x, 63, purpose)
        return (yield from super().mask(purpose, number, x))

    def apply(self, layer, masked, shift):
        made_by, weight = self.terms.linear_steps[layer], self._model.layers[layer].weight.double()
        x, bias = masked.part.as_subclass(torch.Tensor), self._model.layers[layer].bias.double()
        if made_by.kind == "dense":
            y = nn.functional.linear(x, weight, bias)
        else:
            window = made_by.stride, made_by.padding, made_by.dilation, made_by.groups
            y = nn.functional.conv2d(x, weight, bias, *window)
        return (yield from self.truncate(y.as_subclass(Big), shift))

    def apply_transposed(self, layer, masked, shift):
        made_by, weight = self.terms.linear_steps[layer], self._model.layers[layer].weight.double()
        delta = masked.part.as_subclass(torch.Tensor)
        shape = (len(delta), *self.terms.linear_sources[layer].shape)
        if made_by.kind == "dense":
            y = delta @ weight
        else:
            window = made_by.stride, made_by.padding, made_by.dilation, made_by.groups
            y = torch.nn.grad.conv2d_input(shape, weight, delta, *window)
        return (yield from self.truncate(y.as_subclass(Big), shift))

    def truncate(self, x, shift):
        self.expect(x, PRODUCT_BITS, "a truncation")
        return (x * 2.0**-shift).round()
        yield

    def compare(self, x, bits):
        self.expect(x, bits, "a comparison")
        return (yield from super().compare(x, bits))

    def gradient(self, layer, value, delta):
        made_by, shape = self.terms.linear_steps[layer], self._model.layers[layer].weight.shape
        x, d = (part.masked.part.as_subclass(torch.Tensor) for part in (value, delta))
        if made_by.kind == "dense":
            return (d.T @ x).as_subclass(Big)
        window = made_by.stride, made_by.padding, made_by.dilation, made_by.groups
        return torch.nn.grad.conv2d_weight(x, shape, d, *window).as_subclass(Big)
        yield

    def blind(self, purpose, number, masked, norm):
        found = yield from super().blind(purpose, number, masked, norm)
        size = self.norms[norm.label]
        self.sizes[norm.label] = (size * 2.0**norm.kept_bits) ** 2 * 2.0**norm.shift
        self.expect(torch.tensor(self.sizes[norm.label]), COMPARED_BITS, norm.label)
        self.is_within &= self.limits is None or size <= self.limits.norms[norm.label]
        return found

    def watch(self, label, x):
        groups = in_groups(x).as_subclass(torch.Tensor)
        bits = DELTA_BITS if label.startswith("delta") else 20
        norm, largest = float(groups.norm(dim=1).max()), float(groups.abs().max())
        self.sizes[label] = norm
        of_deltas = label.startswith(("delta", "loss"))
        if of_deltas:
            self.largest_delta = max(self.largest_delta, largest * 2.0**-bits, norm / 2 * 2.0**-bits)
        if self.limits is not None:
            limit = (self.limits.deltas if of_deltas else self.limits.values) * 2.0**bits
            self.expect(groups.abs().sum(1) + limit, SUM_BITS, f"sums of {label}")
            self.is_within &= largest <= limit and norm < 2 * limit


def endless(made, limits, dropout=None):
    """The step without a modulus."""
    role = Endless(made.terms, made.model, limits, dropout and seed_of_step(made.terms, dropout))
    inputs, targets = encode_batch(made.terms, made.inputs, made.targets)
    words = run(step(role, inputs.double().as_subclass(Big), targets.double().as_subclass(Big)))
    role.expect(words, PRODUCT_BITS + 1 - math.log2(CLIENTS), "a gradient")
    return role


def measured(made, dropout=None):
    """(What is compared with each limit, by label; limits just above what is met)."""
    role = endless(made, None, dropout)
    return role.sizes, Limits(1.01 * role.largest_delta + 1e-6, {k: 1.01 * v + 1e-3 for k, v in role.norms.items()})


def followed(model, shape, loss, batch_size, weights, inputs, number=0):
    """(What `follow` says of tight limits, what left its range without a modulus, whether a watch would tell)."""
    fill(model, seed=number)
    made = step_of(model, shape, loss, batch_size, number=number, size=2.0**inputs).with_weights_times(2.0**weights)
    made.inputs.clamp_(-15.9, 15.9)
    if loss == "mse":
        made.targets = (made.targets * 2**inputs).clamp(-1000, 1000)
    limits = measured(made)[1]
    role = endless(made, limits)
    return follow(made.terms, made.layers, limits, CLIENTS), role.outside, not role.is_within


@settings(max_examples=60)
@given(
    networks(),
    st.sampled_from(["mse", "ce"]),
    st.integers(1, 3),
    st.floats(-4, 14),
    st.floats(-4, 4),
    st.integers(0, 1000),
)
def test_numbers_within_limits_that_follow_admits_never_leave_their_range(
    model, loss, batch_size, weights, inputs, number
):
    said, outside, is_told = followed(model, (2, 6, 6), loss, batch_size, weights, inputs, number)
    assert said is not None or is_told or not outside


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("name", NETWORKS)
def test_follow_admits_every_network_of_common_size_and_nothing_that_leaves_its_range(name, loss):
    for weights in (-2, 1, 4, 8, 12):
        said, outside, is_told = followed(Own(NETWORKS[name]), SHAPE, loss, 2, weights, 1.0)
        assert said is not None or is_told or not outside
        if weights == -2:
            assert said is None


def test_follow_says_which_number_might_leave_its_range():
    said, outside, is_told = followed(Own(NETWORKS["residual sum"]), SHAPE, "mse", 2, 13, 1.0)
    assert said is not None and "might reach" in said
    assert "a comparison" in outside and is_told


def test_limits_leave_room_above_what_is_expected_and_less_for_more_clients():
    made = step_of(Own(NETWORKS["residual sum"]), SHAPE, "ce", 2).with_weights_times(0.2)
    norms = plain_step(made.terms, made.model, *encode_batch(made.terms, made.inputs, made.targets))[1]
    limits = limits_for(made.terms, made.layers, norms, CLIENTS)
    assert follow(made.terms, made.layers, limits, CLIENTS) is None
    assert follow(made.terms, made.layers, limits, 100 * CLIENTS) is not None
    assert all(limits.norms[label] >= LEAST_MARGIN * norms[label] for label in norms)
    many = limits_for(made.terms, made.layers, norms, 100)
    assert all(many.norms[label] <= limits.norms[label] for label in norms)
