"""Before the first round the server tries recovery on its own inputs: what a trace does not show is found there.

Models are analysed as they are traced, and changed afterwards, so that no rule of the tracing can know.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bilateral.protocols.perturb.recovery_check as check_module
import bilateral.protocols.perturb.recovery_trial as trial_module
import bilateral.protocols.perturb.secrets as secrets_module
from bilateral.errors import ModelError, RecoveryError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.recovery_check import RecoveryCheck, export_error
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
SHAPE = (3, 8, 8)
SETTINGS = [
    PerturbationSettings("mse"),
    PerturbationSettings("ce"),
    PerturbationSettings("ce", "offset", softmax="blinded"),
]


class Net(nn.Module):
    """A small network with a place in which something can be done that its trace does not show."""

    def __init__(self):
        super().__init__()
        self.first, self.bn = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second, self.norm = nn.Conv2d(6, 8, 3, stride=2), nn.GroupNorm(2, 8)
        self.hidden, self.head = nn.Linear(8 * 9, 10), nn.Linear(10, 3)
        self.register_buffer("limits", torch.linspace(0.1, 0.6, 8).view(1, 8, 1, 1))
        self.inside = None
        self.rate = 0.0

    def forward(self, x):
        x = F.dropout(F.relu(self.bn(self.first(x))), self.rate, self.training)
        x = F.relu(self.norm(self.second(x)))
        if self.inside is not None:
            x = self.inside(self, x)
        return self.head(F.relu(self.hidden(x.flatten(1))))


def net(seed=0):
    torch.manual_seed(seed)
    return Net()


def examples(count=4):
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(3))


def checked(model, settings=None, graph=None, given=None, channels_last=None):
    settings = settings or PerturbationSettings("ce")
    graph = graph or ScaleGraph.of(net(), examples(), norm_inputs=settings.norm_inputs)

    def make_halves(copied, inputs, randomness):
        server = PerturbServer(copied, graph, settings, randomness.child("server"), inputs)
        own = randomness.child("client")
        return server, PerturbClient("check", copied, graph, settings, own, channels_last=channels_last)

    return RecoveryCheck(graph, settings.loss, make_halves, examples() if given is None else given).run(model)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_is_what_its_trace_shows_passes(settings, dtype):
    report = checked(net().to(dtype), settings)
    assert report.error < 1e-11
    assert report.dtype == "float64"


@pytest.mark.parametrize("given", [torch.zeros(2, *SHAPE), examples(1), examples(9), examples().abs()])
def test_any_examples_will_do(given):
    assert checked(net(), given=given).error < 1e-11


class FrozenNet(Net):
    """The usual idiom of transfer learning."""

    def train(self, mode=True):
        super().train(mode)
        self.bn.eval()
        return self


@pytest.mark.parametrize("prepare", [lambda m: m, lambda m: m.train(), lambda m: m.eval()])
def test_batch_norm_in_evaluation_mode_that_the_trace_knows_of_passes(prepare):
    model = FrozenNet()
    with_statistics(model)
    graph = ScaleGraph.of(prepare(model), examples())
    assert checked(model, graph=graph).error < 1e-11


class StaysInEvaluation(nn.BatchNorm2d):
    def train(self, mode=True):
        return super().train(False)


def with_statistics(model):
    """As a network that was trained elsewhere has them."""
    model.bn.running_mean.copy_(torch.linspace(-1, 1, 6))
    model.bn.running_var.copy_(torch.linspace(0.5, 2, 6))


def keep_batch_norm_in_evaluation(model):
    with_statistics(model)
    model.bn.__class__ = StaysInEvaluation
    model.train()


def set_batch_norm_to_evaluation(model):
    model.train()
    model.bn.eval()


class ClampsItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient.clamp(-1e-3, 1e-3)


def inside(function):
    def change(model):
        model.inside = function

    return change


def clip_gradient_of_a_parameter(model):
    model.hidden.weight.register_hook(lambda g: g.clamp(-1e-3, 1e-3))


def clip_gradient_of_an_activation(model, x):
    if x.requires_grad:
        x.register_hook(lambda g: g.clamp(-1e-3, 1e-3))
    return x


def clip_gradient_after_it_was_found(model):
    def halve(parameter):
        parameter.grad.mul_(0.5)

    model.hidden.weight.register_post_accumulate_grad_hook(halve)


def _clamped(module, grad_input, grad_output):
    return tuple(None if g is None else g.clamp(-1e-3, 1e-3) for g in grad_input)


HIDDEN = {
    "BatchNorm that stays in evaluation mode": keep_batch_norm_in_evaluation,
    "BatchNorm that was set to evaluation mode": set_batch_norm_to_evaluation,
    "clamp with a buffer": inside(lambda m, x: torch.clamp(x, min=m.limits)),
    "a power by a buffer": inside(lambda m, x: (x + 0.1) ** (1 + m.limits)),
    "a full backward hook": lambda m: m.second.register_full_backward_hook(_clamped),
    "a backward pre-hook on the head": lambda m: m.head.register_full_backward_pre_hook(
        lambda module, grads: (grads[0] * 0.5,)
    ),
    "a tensor hook on a parameter": clip_gradient_of_a_parameter,
    "a hook after a gradient was found": clip_gradient_after_it_was_found,
    "a tensor hook on an activation": inside(clip_gradient_of_an_activation),
    "a root forward hook": lambda m: m.register_forward_hook(lambda module, args, out: 2 * out),
    "a forward hook inside": lambda m: m.hidden.register_forward_hook(lambda module, args, out: out + 0.5),
    "a nonlinear backward pass": inside(lambda m, x: ClampsItsGradient.apply(x)),
    "the size of the batch": inside(lambda m, x: x + (x.size(0) - 2)),
    "the size of the batch, but for three samples": inside(lambda m, x: x + (x.size(0) - 3)),
    "the size of the batch, but for four samples": inside(lambda m, x: x + (x.size(0) - 4)),
    "channels added by their place": inside(lambda m, x: x + m.limits),
    "another activation": inside(lambda m, x: torch.sigmoid(x)),
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("what", HIDDEN)
def test_what_a_trace_does_not_show_stops_the_run(what, settings):
    model = net()
    HIDDEN[what](model)
    with pytest.raises(RecoveryError, match=r"`[\w.]+`.*plain autograd finds.*hook"):
        checked(model, settings)


@pytest.mark.parametrize("what", HIDDEN)
def test_in_a_model_too_large_for_float64_it_is_found_too(what, monkeypatch):
    monkeypatch.setattr(check_module, "LARGE", 0)
    assert checked(net(), SETTINGS[0]).dtype == "float32"
    model = net()
    HIDDEN[what](model)
    with pytest.raises(RecoveryError, match=r"gradients in float32.*hook"):
        checked(model, SETTINGS[0])


def test_the_error_names_the_parameter_that_is_off():
    model = net()
    clip_gradient_of_a_parameter(model)
    with pytest.raises(RecoveryError, match=r"gradients of `hidden\.weight`"):
        checked(model)


def with_ratio_of_another(graph, name):
    """A graph in which a bias is scaled by the wrong classes: a mistake in a rule would look like this."""
    layouts = list(graph.parameters)
    place = next(i for i, p in enumerate(layouts) if p.name == name)
    binding = layouts[place].binding
    wrong = replace(binding, numerator=binding.numerator.roll(1))
    layouts[place] = replace(layouts[place], binding=wrong)
    return replace(graph, parameters=tuple(layouts))


def test_a_wrong_scale_graph_stops_the_run():
    graph = ScaleGraph.of(net(), examples())
    assert checked(net(), graph=graph).error < 1e-11
    with pytest.raises(RecoveryError):
        checked(net(), graph=with_ratio_of_another(graph, "hidden.bias"))


def test_a_removed_pin_stops_the_run():
    model = net()
    model.inside = lambda m, x: torch.tanh(x)
    with pytest.raises(RecoveryError):  # the graph is that of the model without it
        checked(model)
    assert checked(model, graph=ScaleGraph.of(copy.deepcopy(model), examples())).error < 1e-11


def test_wrong_batch_statistics_are_named_by_their_layer(monkeypatch):
    right = ScaleGraph.unscale
    monkeypatch.setattr(ScaleGraph, "unscale", lambda self, *args: 1.01 * right(self, *args))
    with pytest.raises(RecoveryError, match="batch statistics of `bn`"):
        checked(net())


def test_a_wrong_export_is_found():
    model = net()
    graph = ScaleGraph.of(model, examples())
    assert export_error(model, graph, examples(), SeededRandomness(0)) < 1e-12
    HIDDEN["clamp with a buffer"](model)
    assert export_error(model, graph, examples(), SeededRandomness(0)) > 1e-3


def test_noise_that_drowns_the_gradient_in_float32_stops_the_run(monkeypatch):
    monkeypatch.setattr(secrets_module, "noise_size", lambda *_: 30.0)
    monkeypatch.setattr(trial_module, "LOOSE_LIMIT", 1e-5)
    with pytest.raises(RecoveryError, match=r"gradients in float32.*noise_ratio"):
        checked(net(), PerturbationSettings("mse"))


def test_scaled_inputs_of_normalisations_are_checked_up_to_eps():
    scaled = PerturbationSettings("ce", norm_inputs="scaled")
    assert checked(net(), scaled).error < 1e-4
    model = net()
    clip_gradient_of_a_parameter(model)
    with pytest.raises(RecoveryError):
        checked(model, scaled)


def test_dropout_is_no_fault():
    model = net()
    model.rate = 0.5
    assert checked(model).error < 1e-11


def test_a_cast_to_float32_is_no_fault():
    model = net()
    model.inside = lambda m, x: x.float().to(torch.float32)
    assert checked(model).error < 1e-11


def test_a_client_that_cannot_run_the_model_is_a_typed_error():
    graph, settings = ScaleGraph.of(net(), examples()), PerturbationSettings("ce")

    class Fails(PerturbClient):
        def train(self, *args):
            raise RuntimeError("view size is not compatible")

    def make_halves(copied, inputs, randomness):
        server = PerturbServer(copied, graph, settings, randomness.child("server"), inputs)
        return server, Fails("check", copied, graph, settings, randomness.child("client"))

    with pytest.raises(ModelError, match=r"a client could not train it.*view size"):
        RecoveryCheck(graph, settings.loss, make_halves, examples()).run(net())


def test_a_model_that_does_not_train_at_all_is_a_typed_error():
    model = net()
    model.inside = lambda m, x: x.view(1, 2, 3)
    with pytest.raises(ModelError, match="does not train, protected or not"):
        checked(model)


def test_the_check_draws_nothing_and_changes_nothing():
    model = net()
    model.rate = 0.5
    set_modes = [m.training for m in model.modules()]
    before = copy.deepcopy(model.state_dict())
    graph = ScaleGraph.of(net(), examples())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    checked(model, graph=graph)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == set_modes
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_kink_at_rounding_is_no_fault():
    """One attempt of three that goes wrong for reasons of its own."""
    tries = []

    def flips_once(model, x):
        first = len(tries) == 0
        tries.append(1)
        return x * (2.0 if first else 1.0)

    model = net()
    model.inside = flips_once
    assert checked(model).error < 1e-11


@pytest.mark.parametrize(("wrong", "stops"), [((0,), False), ((0, 1), True), ((0, 2), True), ((0, 1, 2), True)])
def test_two_attempts_of_three_must_be_right(wrong, stops, monkeypatch):
    attempt, damaged = RecoveryCheck._attempt, net()
    HIDDEN["another activation"](damaged)
    monkeypatch.setattr(
        RecoveryCheck,
        "_attempt",
        lambda self, model, number: attempt(self, damaged if number in wrong else model, number),
    )
    if stops:
        with pytest.raises(RecoveryError):
            checked(net())
    else:
        assert checked(net()).error < 1e-11


@pytest.mark.parametrize(("by", "stops"), [(1e-6, True), (1e-10, False)])
def test_a_gradient_that_is_off_by_a_millionth_stops_the_run(by, stops, monkeypatch):
    recover = PerturbServer.recover

    def off(self, total):
        update = recover(self, total)
        return replace(update, gradient=update.gradient * (1 + by))

    monkeypatch.setattr(PerturbServer, "recover", off)
    if stops:
        with pytest.raises(RecoveryError):
            checked(net().double())
    else:
        assert checked(net().double()).error == pytest.approx(by, rel=0.01)
