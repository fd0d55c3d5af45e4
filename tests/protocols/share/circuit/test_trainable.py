"""Networks as they are trained on shares: gradients through folding are torch's, and the rest is refused by name."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.circuit.test_circuit import anything
from tests.protocols.share.harness import fill, generator
from torch import nn

from bilateral.errors import MalformedMessageError, ModelError, NumericalRangeError, UnsupportedLayerError
from bilateral.models.modes import training_copy
from bilateral.models.zoo import build_model
from bilateral.protocols.share.circuit.description import (
    TRAINING_KINDS,
    AvgPool,
    ChannelDropout,
    Circuit,
    Concat,
    Conv,
    Dense,
    Dropout,
    LeakyRelu,
    MaxPool,
    Relu,
    Scale,
    Value,
)
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, predict
from bilateral.protocols.share.circuit.trainable import compile_trainable
from bilateral.protocols.share.circuit.walk import walk

SHAPE = (2, 8, 8)


def samples_of(shape, count=5, seed=0):
    return torch.randn(count, *shape, dtype=torch.float64, generator=generator(seed))


class Own(nn.Module):
    """A network whose forward is `body(self, x)`, with some layers to use in it."""

    def __init__(self, body, **also):
        super().__init__()
        self.body = body
        self.conv, self.second = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.Conv2d(2, 4, 1)
        self.same, self.grouped = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, groups=2)
        self.norm, self.flat_norm = nn.BatchNorm2d(4), nn.BatchNorm1d(4)
        self.wide, self.head, self.square = nn.Linear(256, 3), nn.Linear(4, 3, bias=False), nn.Linear(4, 4)
        self.middle = nn.Linear(8, 3)
        for name, module in also.items():
            self.add_module(name, module)
        fill(self)

    def forward(self, x):
        return self.body(self, x)

    def train(self, mode=True):
        """Its BatchNorm is frozen."""
        super().train(mode)
        self.norm.eval()
        self.flat_norm.eval()
        return self


class InFloat:
    """The circuit's steps in float64, with the layers' parameters as autograd's leaves."""

    def __init__(self, trainable, model):
        circuit = trainable.circuit
        self.leaves = []
        for step, layer in zip(circuit.linear_steps, trainable.encode(model), strict=True):
            bits = circuit.values[step.sources[0]].fraction_bits
            weight, bias = layer.weight.double() * 2.0**-20, layer.bias.double() * 2.0 ** -(20 + bits)
            self.leaves.append((weight.requires_grad_(), bias.requires_grad_()))
        self.circuit = circuit

    def run(self, x):
        values = [x]
        layers = iter(self.leaves)
        for step in self.circuit.steps:
            inputs = [values[source] for source in step.sources]
            match step:
                case Dense():
                    y = F.linear(inputs[0], *next(layers))
                case Conv():
                    y = F.conv2d(inputs[0], *next(layers), step.stride, step.padding, step.dilation, step.groups)
                case Relu():
                    y = F.relu(inputs[0])
                case LeakyRelu():
                    y = F.leaky_relu(inputs[0], step.slope * 2.0**-20)
                case MaxPool():
                    y = F.max_pool2d(inputs[0], step.kernel, step.stride, step.padding)
                case AvgPool():
                    y = F.avg_pool2d(inputs[0], step.kernel, step.stride, step.padding)
                case Concat():
                    y = torch.cat(inputs, 1)
                case Scale() | Dropout() | ChannelDropout():
                    y = inputs[0]  # the division is in `avg_pool2d`
                case _:
                    y = sum(inputs) if step.kind == "add" else inputs[0].reshape(len(x), *step.shape)
            values.append(y)
        return values[-1]


def gradients_agree(model, shape, tolerance=1e-4):
    """Of a random linear function of the outputs; those of the circuit's layers are autograd's, in float64."""
    trainable = compile_trainable(model, shape)
    x = samples_of(shape)
    plain = copy.deepcopy(model).double().eval()
    outputs = plain(x)
    weights = samples_of(outputs.shape[1:], len(x), seed=1)
    (outputs * weights).sum().backward()
    network = InFloat(trainable, model)
    behind = x if trainable.front is None else copy.deepcopy(trainable.front).double()(x)
    found = network.run(behind)
    assert (found - outputs).abs().max() < tolerance
    (found * weights).sum().backward()
    layer_gradients = [
        tuple(leaf.grad if trains else None for leaf, trains in zip(pair, parts, strict=True))
        for pair, parts in zip(network.leaves, trainable.trains, strict=True)
    ]
    gradients = trainable.gradients(model, layer_gradients)
    expected = {name: p.grad for name, p in plain.named_parameters() if p.requires_grad}
    assert set(gradients) == set(expected)
    for name, gradient in expected.items():
        wanted = torch.zeros_like(gradients[name]) if gradient is None else gradient
        assert gradients[name].dtype == torch.float64
        assert (gradients[name] - wanted).norm() <= tolerance * (1 + wanted.norm()), name
    return trainable


def _shared(m, x):
    h = m.same(F.relu(m.same(m.conv(x))))
    return m.wide(F.relu(h).flatten(1))


def _frozen_norm_of_shared(m, x):
    h = m.conv(x)
    return m.wide((m.norm(h) + h).flatten(1))


SUPPORTED = {
    "shared weights": _shared,
    "folded norm": lambda m, x: m.wide(F.relu(m.norm(m.conv(x))).flatten(1)),
    "norm of a layer used twice": _frozen_norm_of_shared,
    "one layer with and without norm": lambda m, x: m.wide((m.conv(x) + m.norm(m.conv(x))).flatten(1)),
    "norm alone": lambda m, x: m.wide(m.norm(F.relu(m.conv(x))).flatten(1)),
    "flat norm": lambda m, x: m.head(m.flat_norm(m.square(m.conv(x).mean((2, 3))))),
    "flat norm alone": lambda m, x: m.head(m.flat_norm(F.relu(m.square(m.conv(x).mean((2, 3)))))),
    "grouped and strided": lambda m, x: m.middle(m.grouped(F.relu(m.conv(x))).mean((2, 3))),
    "pool of a layer": lambda m, x: m.head(F.max_pool2d(m.same(F.relu(m.conv(x))), 8).flatten(1)),
    "averages of nine": lambda m, x: m.head(F.adaptive_avg_pool2d(F.avg_pool2d(m.conv(x), 3, 1), 1).flatten(1)),
    "padded averages": lambda m, x: m.wide(F.avg_pool2d(m.conv(x), 3, 1, 1).flatten(1)),
    "averages joined": lambda m, x: m.wide((F.avg_pool2d(m.conv(x), 3, 1, 1) + m.second(x)).flatten(1)),
    "leaky": lambda m, x: m.wide(F.leaky_relu(m.conv(x), 0.2).flatten(1)),
    "pool of leaky": lambda m, x: m.head(F.max_pool2d(F.leaky_relu(m.conv(x)), 8).flatten(1)),
    "leaky of slope zero": lambda m, x: m.wide(F.leaky_relu(m.conv(x), 0.0).flatten(1)),
    "padded pool": lambda m, x: m.wide(F.max_pool2d(F.relu(m.conv(x)), 3, 1, 1).flatten(1)),
    "concatenation": lambda m, x: m.head(torch.cat([x, F.relu(x)], dim=1).mean((2, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", SUPPORTED)
def test_gradients_through_folding_are_those_of_autograd(name):
    gradients_agree(Own(SUPPORTED[name]), SHAPE)


ZOO = {
    "mlp-3": ((20,), {}),
    "mlp-5": ((20,), {}),
    "mlp-7": ((20,), {}),
    "lenet": ((1, 28, 28), {}),
    "resnet-8": ((3, 16, 16), {"batch_norm": False}),
    "vgg-7": ((3, 16, 16), {}),
}


@pytest.mark.parametrize("name", ZOO)
def test_networks_of_the_zoo_have_the_gradients_of_autograd(name):
    shape, options = ZOO[name]
    model = build_model(name, input_shape=shape, num_outputs=10, **options)
    trainable = gradients_agree(model, shape)
    assert trainable.front is None
    assert all(value.divisor == 1 for value in trainable.circuit.values)
    assert all(trains == (True, True) for trains in trainable.trains)


def test_layers_say_what_of_them_trains():
    model = Own(lambda m, x: m.wide(F.relu(m.norm(m.conv(x)) + m.second(x)).flatten(1)))
    model.norm.bias.requires_grad_(False)
    model.second.weight.requires_grad_(False)
    model.wide.bias.requires_grad_(False)
    assert gradients_agree(model, SHAPE).trains == ((True, True), (False, True), (True, False))
    model.norm.requires_grad_(False)
    assert gradients_agree(model, SHAPE).trains == ((True, False), (False, True), (True, False))


def test_a_bias_that_is_absent_does_not_train():
    assert compile_trainable(Own(SUPPORTED["averages of nine"]), SHAPE).trains == ((True, False), (True, False))


def test_two_names_of_one_parameter_get_one_gradient():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    gradients_agree(model, (6,))


def test_parameters_that_are_not_used_have_a_gradient_of_zero():
    model = Own(SUPPORTED["leaky"])
    trainable = compile_trainable(model, SHAPE)
    given = [(torch.ones(4, 2, 3, 3), None), (torch.ones(3, 256), torch.ones(3))]
    gradients = trainable.gradients(model, given)
    assert set(gradients) == {name for name, _ in model.named_parameters()}
    assert not gradients["second.weight"].any()
    assert bool((gradients["conv.weight"] == 1).all())


def test_gradients_that_are_missing_or_of_another_shape_are_refused():
    model = Own(SUPPORTED["leaky"])
    trainable = compile_trainable(model, SHAPE)
    whole = [(torch.ones(4, 2, 3, 3), None), (torch.ones(3, 256), torch.ones(3))]
    for layer, part, wrong in ((0, 0, None), (1, 1, None), (1, 0, torch.ones(256, 3)), (1, 1, torch.ones(1))):
        given = [list(pair) for pair in whole]
        given[layer][part] = wrong
        with pytest.raises(ModelError, match=rf"gradient of the (weight|bias) of layer {layer}"):
            trainable.gradients(model, given)
    with pytest.raises(ModelError, match="2 layers, got 1"):
        trainable.gradients(model, whole[:1])


def test_parameters_are_read_anew_every_time_and_only_of_the_same_network():
    model = Own(SUPPORTED["folded norm"])
    trainable = compile_trainable(model, SHAPE)
    x, before = samples_of(SHAPE), trainable.encode(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        model.norm.running_mean += 1
    expected = copy.deepcopy(model).double().eval()(x)
    after = trainable.encode(model)
    assert not torch.equal(before[0].weight, after[0].weight)
    assert (predict(FixedPointModel(trainable.circuit, after), x) - expected).abs().max() < 1e-3
    with pytest.raises(ModelError, match="other parameters than the network that was compiled"):
        trainable.encode(nn.Linear(2, 2))


def test_compiling_leaves_the_network_and_torchs_generator_as_they_were():
    model = Own(lambda m, x: m.wide(F.dropout(m.norm(m.conv(x)), 0.5, m.training).flatten(1))).train()
    state, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    drawn = torch.get_rng_state()
    trainable = compile_trainable(model, SHAPE)
    trainable.gradients(model, [(torch.ones(4, 2, 3, 3), torch.ones(4)), (torch.ones(3, 256), torch.ones(3))])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


# --- steps of training ---


@pytest.mark.filterwarnings("ignore:dropout2d")
def test_dropout_is_a_step_unless_it_is_off():
    def kinds(module, body=None):
        model = Own(body or (lambda m, x: m.wide(m.drop(F.relu(m.conv(x))).flatten(1))), drop=module)
        return [step for step in compile_trainable(model, SHAPE).circuit.steps if "dropout" in step.kind]

    (step,) = kinds(nn.Dropout(0.25))
    assert step == Dropout((2,), 1 << 18)
    assert step.factor == round(2**20 / 0.75)
    assert kinds(nn.Dropout2d(0.25)) == [ChannelDropout((2,), 1 << 18)]
    assert kinds(nn.Dropout(0.0)) == []
    flat = kinds(nn.Dropout2d(0.5), lambda m, x: m.wide(m.drop(m.conv(x).flatten(1))))
    assert flat == [Dropout((2,), 1 << 19)]
    assert kinds(nn.Identity(), lambda m, x: m.wide(F.dropout(m.conv(x), 0.5, m.training).flatten(1)))
    assert not kinds(nn.Identity(), lambda m, x: m.wide(F.dropout(m.conv(x), 0.5, False).flatten(1)))


def test_dropout_that_is_kept_in_evaluation_is_off():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    model[1].eval()
    assert [step.kind for step in compile_trainable(model, (4,)).circuit.steps] == ["dense", "dense"]
    assert training_copy(model)[0].training


def test_averages_are_scaled_at_once():
    steps = compile_trainable(Own(SUPPORTED["padded averages"]), SHAPE).circuit.steps
    assert steps[1:3] == (AvgPool((1,), (3, 3), (1, 1), (1, 1)), Scale((2,), round(2**20 / 9)))
    pooled = Own(lambda m, x: m.head(F.avg_pool2d(m.conv(x), 8).flatten(1)))
    (scale,) = (step for step in compile_trainable(pooled, SHAPE).circuit.steps if isinstance(step, Scale))
    assert scale.factor == 1 << 20  # a power of two is cut off, and nothing is multiplied


@given(divisor=st.integers(1, 255))
@settings(max_examples=40, deadline=None)
def test_a_scale_divides_within_two_to_the_minus_twelve(divisor):
    step = Scale.of(0, divisor)
    assert step.infer([Value((4,), 22, divisor)]) == Value((4,), 20)
    assert abs(step.factor * divisor / 2**20 - 1) <= 2**-12
    with pytest.raises(ModelError, match="do not divide"):
        Scale((0,), step.factor).infer([Value((4,), 22, divisor * 2)])


@given(slope=st.floats(0, 0.999), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_leaky_relu_and_scale_in_the_clear_are_right_to_a_unit(slope, seed):
    x = samples_of((12,), seed=seed)
    steps = (LeakyRelu((0,), max(1, round(slope * 2**20))),)
    found = predict(FixedPointModel(Circuit((12,), steps), ()), x)
    assert (found - F.leaky_relu(x, slope)).abs().max() < 2.0**-18
    image = x.reshape(5, 3, 2, 2)
    averaged = Circuit((3, 2, 2), (AvgPool((0,), (3, 3), (1, 1), (1, 1)), Scale.of(1, 9)))
    found = predict(FixedPointModel(averaged, ()), image)
    assert (found - F.avg_pool2d(image, 3, 1, 1)).abs().max() < 2.0**-16


def test_a_party_that_only_predicts_computes_no_step_of_training():
    class OnlyPredicts:
        def linear(self, *_arguments):
            yield

        def positive_part(self, *_arguments):
            yield

    for step in (LeakyRelu((0,), 9), Scale((0,), 1 << 20), Dropout((0,), 9)):
        with pytest.raises(TypeError, match="no step"):
            next(walk(Circuit((4,), (step,)), torch.zeros(1, 4, dtype=torch.int64), OnlyPredicts()))


TRAINED_STEPS = {
    "leaky_relu": Circuit((4,), (LeakyRelu((0,), 209715),)),
    "scale": Circuit((4, 3, 3), (AvgPool((0,), (3, 3), (1, 1), (0, 0)), Scale.of(1, 9))),
    "dropout": Circuit((4,), (Dropout((0,), 1 << 19),)),
    "channel_dropout": Circuit((4, 2, 2), (ChannelDropout((0,), 1 << 19),)),
}


@pytest.mark.parametrize("kind", TRAINED_STEPS)
def test_circuits_with_steps_of_training_travel_to_those_who_train_and_to_nobody_else(kind):
    circuit = TRAINED_STEPS[kind]
    text = circuit.to_json()
    again = Circuit.from_json(text, "anna", is_trained=True)
    assert again == circuit
    assert again.values == circuit.values
    with pytest.raises(MalformedMessageError, match="circuit from anna"):
        Circuit.from_json(text, "anna")


WRONG = {
    "a slope of one": ((4,), (LeakyRelu((0,), 1 << 20),)),
    "a slope of nothing": ((4,), (LeakyRelu((0,), 0),)),
    "a scale of what needs none": ((4,), (Scale((0,), 1 << 19),)),
    "dropout of everything": ((4,), (Dropout((0,), 1 << 20),)),
    "dropout of nothing": ((4,), (Dropout((0,), 0),)),
    "channels of flat values": ((4,), (ChannelDropout((0,), 1 << 19),)),
    "two sources": ((4,), (LeakyRelu((0, 0), 9),)),
}


@given(
    st.lists(
        st.fixed_dictionaries(
            {"kind": st.sampled_from(sorted(TRAINING_KINDS)), "sources": st.lists(st.integers(0, 6), max_size=3)},
            optional={
                name: st.one_of(st.integers(0, 9), st.sampled_from((1 << 20, 116508, 1 << 25)), anything)
                for name in ("threshold", "slope", "factor", "kernel", "stride", "padding", "out_features", "shape")
            },
        ),
        max_size=6,
    )
)
@settings(max_examples=100, deadline=None)
def test_steps_of_training_put_together_at_random_are_refused_or_sound(steps):
    text = json.dumps({"input_shape": [2, 5, 5], "largest_input": 1, "value_bits": 12, "steps": steps})
    try:
        circuit = Circuit.from_json(text, "anna", is_trained=True)
    except MalformedMessageError:
        return
    assert circuit.output.divisor == 1
    assert all(min(value.shape) >= 1 for value in circuit.values)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_circuits_of_training_with_one_part_replaced_are_refused_or_sound(data):
    found = json.loads(data.draw(st.sampled_from(list(TRAINED_STEPS.values()))).to_json())
    step = data.draw(st.sampled_from(found["steps"]))
    step[data.draw(st.sampled_from(sorted(step)))] = data.draw(anything)
    try:
        circuit = Circuit.from_json(json.dumps(found), "anna", is_trained=True)
    except MalformedMessageError:
        return
    assert Circuit.from_json(circuit.to_json(), "anna", is_trained=True) == circuit


@pytest.mark.parametrize("what", WRONG)
def test_steps_of_training_that_make_no_sense_are_refused(what):
    with pytest.raises(ModelError):
        Circuit(*WRONG[what])


def test_an_average_that_was_not_scaled_is_no_circuit_to_be_trained():
    average = AvgPool((0,), (3, 3), (1, 1), (0, 0))
    for steps in ((average,), (average, Relu((1,))), (average, Relu((1,)), Scale.of(2, 9))):
        circuit = Circuit((1, 3, 3), steps)
        with pytest.raises(MalformedMessageError, match="not scaled"):
            Circuit.from_json(circuit.to_json(), "anna", is_trained=True)


# --- what is refused ---

REFUSED = {
    r"BatchNorm2d `1` .*batch": nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(256, 2)),
    "GroupNorm `1` .*normalises": nn.Sequential(nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4)),
    "LayerNorm `1` .*normalises": nn.Sequential(nn.Conv2d(2, 4, 1), nn.LayerNorm(8)),
    "Sigmoid `1` cannot be trained on shares": nn.Sequential(nn.Conv2d(2, 4, 1), nn.Sigmoid()),
    "Tanh `1`": nn.Sequential(nn.Conv2d(2, 4, 1), nn.Tanh()),
    "LeakyReLU `1` .*slopes": nn.Sequential(nn.Conv2d(2, 4, 1), nn.LeakyReLU(-0.1)),
    "LeakyReLU `1` .*slopes ": nn.Sequential(nn.Conv2d(2, 4, 1), nn.LeakyReLU(2.0)),
    "Dropout `1` .*drops": nn.Sequential(nn.Conv2d(2, 4, 1), nn.Dropout(0.99)),
    "MaxPool2d `1` .*after a ReLU": nn.Sequential(nn.Conv2d(2, 4, 1), nn.MaxPool2d(3, 1, 1)),
    "PReLU `1`": nn.Sequential(nn.Conv2d(2, 4, 1), nn.PReLU()),
    "`mul`": Own(lambda m, x: m.conv(x) * m.second(x)),
    "`sigmoid`": Own(lambda m, x: torch.sigmoid(m.conv(x))),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_trained_on_shares_is_refused_by_name_with_a_remedy(what):
    with pytest.raises(UnsupportedLayerError, match=what) as caught:
        compile_trainable(REFUSED[what], SHAPE)
    assert caught.value.remedy


def test_batch_norm_that_would_train_is_refused_with_how_to_freeze_it():
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(256, 2))
    with pytest.raises(UnsupportedLayerError) as caught:
        compile_trainable(model, SHAPE)
    assert "eval()" in caught.value.remedy
    model.train()
    model[1].eval().requires_grad_(False)
    assert len(gradients_agree(model, SHAPE).trains) == 2


def test_too_coarse_a_scale_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.AvgPool2d((1, 1401)), nn.Flatten(), nn.Linear(1, 2))
    with pytest.raises(ModelError, match="do not divide by 1401"):
        compile_trainable(model, (1, 1, 1401))


def test_a_network_of_which_nothing_trains_is_refused():
    with pytest.raises(ModelError, match="No parameter of Linear trains"):
        compile_trainable(nn.Linear(3, 2).requires_grad_(False), (3,))


def test_what_a_trace_does_not_show_is_refused():
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ModelError, match="forward hook"):
        compile_trainable(model, (3,))


def test_a_value_that_was_overwritten_in_place_and_read_later_is_refused():
    def body(m, x):
        h = m.conv(x)
        return m.wide((F.relu(h, inplace=True) + h).flatten(1))

    with pytest.raises(NumericalRangeError, match="in-place"):
        compile_trainable(Own(body), SHAPE)


def test_a_weight_that_fixed_point_cannot_hold_is_refused():
    model = Own(SUPPORTED["leaky"])
    with torch.no_grad():
        model.conv.weight[0, 0, 0, 0] = 2000.0
    with pytest.raises(NumericalRangeError, match="2e\\+03"):
        compile_trainable(model, SHAPE)


# --- the front ---


class Backbone(nn.Module):
    """Frozen layers that no circuit has, then a head that trains."""

    def __init__(self, body=None):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.Dropout(0.5), nn.Conv2d(4, 4, 1),
            nn.Sigmoid(), nn.AvgPool2d(2),
        )  # fmt: skip
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(64, 3)
        self.register_buffer("mean", torch.tensor([[[0.5]], [[0.25]]]))
        self.body = body
        fill(self)
        self.features.requires_grad_(False)

    def forward(self, x):
        if self.body is not None:
            return self.body(self, x)
        x = self.features(x - self.mean)
        return self.head(self.drop(x.view(x.size(0), -1)))


def test_a_frozen_front_is_run_in_the_clear_and_only_the_rest_is_a_circuit():
    trainable = gradients_agree(Backbone(), SHAPE)
    assert trainable.circuit.input_shape == (64,)
    assert [step.kind for step in trainable.circuit.steps] == ["dropout", "dense"]
    assert trainable.trains == ((True, True),)
    assert not any(p.requires_grad for p in trainable.front.parameters())


def test_a_front_stays_in_evaluation_and_has_the_precision_of_its_network():
    model = Backbone()
    front = compile_trainable(model, SHAPE).front
    x = samples_of(SHAPE).float()
    front.train()
    found = front(x)
    assert found.dtype == torch.float32
    assert torch.equal(found, front(x))
    expected = copy.deepcopy(model).eval().features(x - model.mean).flatten(1)
    assert torch.equal(found, expected)
    assert {name for name, _ in front.named_parameters()} <= {name for name, _ in model.named_parameters()}
    assert torch.equal(copy.deepcopy(front)(x), found)


def test_a_front_shares_no_memory_with_the_network():
    model = Backbone()
    front = compile_trainable(model, SHAPE).front
    x = samples_of(SHAPE).float()
    before = front(x)
    with torch.no_grad():
        model.features[0].weight.zero_()
    assert torch.equal(front(x), before)


def test_a_front_ends_where_one_value_is_left_and_nothing_trained_came_before():
    def residual(m, x):
        h = m.features[0](x)
        return m.head(F.max_pool2d(h + m.features[4](F.relu(h)), 2).flatten(1))

    assert compile_trainable(Backbone(residual), SHAPE).circuit.input_shape == (64,)

    model = Backbone(residual)
    model.features[4].requires_grad_(True)
    trainable = gradients_agree(model, SHAPE)
    assert trainable.circuit.input_shape == (4, 8, 8)
    assert [step.kind for step in trainable.circuit.steps] == ["relu", "conv", "add", "max_pool", "reshape", "dense"]


def test_layers_without_numbers_are_no_front():
    trainable = compile_trainable(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(128, 3)), SHAPE)
    assert trainable.front is None
    assert trainable.circuit.input_shape == SHAPE


def test_frozen_layers_behind_a_trained_one_are_layers_of_the_circuit():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 4).requires_grad_(False), nn.Linear(4, 3))
    trainable = gradients_agree(model, (5,))
    assert trainable.front is None
    assert trainable.trains == ((True, True), (False, False), (True, True))
