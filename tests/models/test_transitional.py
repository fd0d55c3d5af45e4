"""Transitional layers: the expanded network is the original one, with products of factors in place of quotients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.random_graphs import networks
from tests.models.test_scale_graph_properties import batch_for, conditioning, of_networks
from tests.reference.harness import draw, perturbed_copy, relative_error, run
from torch import nn

from bilateral.errors import ModelError, UnsupportedLayerError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.transitional import Transitional, expand, is_transitional, original_names
from bilateral.models.zoo import build_model

torch.set_num_threads(1)

ZOO = [
    ("mlp-3", {}, (6,)),
    ("mlp-5", {"bias": False}, (6,)),
    ("mlp-7", {}, (6,)),
    ("lenet", {}, (1, 8, 8)),
    ("resnet-8", {"width": 4}, (3, 8, 8)),
    ("resnet-8", {"width": 4, "batch_norm": False}, (3, 8, 8)),
    ("resnet-8", {"width": 4, "shortcut": "concat"}, (3, 8, 8)),
    ("densenet", {"growth": 4, "layers": [2, 2]}, (3, 16, 16)),
    ("densenet", {"growth": 4, "layers": [2, 2], "batch_norm": False}, (3, 16, 16)),
    ("vgg-7", {"width": 4}, (3, 16, 16)),
    ("convnet", {}, (3, 16, 16)),
]


def example(shape):
    return torch.zeros(1, *shape)


def no_class_on_both_sides(graph):
    above, below = set(), set()
    for p in graph.parameters:
        if p.binding is not None and not is_transitional(p.kind):
            above |= set() if p.binding.numerator is None else set(p.binding.numerator.reshape(-1).tolist())
            below |= set() if p.binding.denominator is None else set(p.binding.denominator.reshape(-1).tolist())
    return not (above & below - {0})


@pytest.fixture(scope="module", params=ZOO, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request):
    """(network, expanded network, input shape)"""
    name, options, shape = request.param
    model = build_model(name, input_shape=shape, num_outputs=3, **options)
    return model, expand(model, example(shape)), shape


def test_the_expanded_network_computes_the_same_bit_by_bit_with_the_same_parameters(case):
    model, expanded, shape = case
    inputs = batch_for(shape, 1, dtype=torch.float32)
    for mode in (True, False):
        assert torch.equal(run(expanded.train(mode), inputs), run(model.train(mode), inputs))
    own = dict(expanded.named_parameters())
    for parameter_name, parameter in model.named_parameters():
        assert own[parameter_name] is parameter
    added = [m for m in expanded.modules() if isinstance(m, Transitional)]
    assert added
    assert all(not m.weight.requires_grad and bool((m.weight == 1).all()) for m in added)
    assert len(own) == len(dict(model.named_parameters())) + len(added)


def test_no_factor_is_both_above_and_below_the_line_and_the_heads_factors_are_its_own(case):
    model, expanded, shape = case
    graph = ScaleGraph.of(expanded, example(shape))
    assert not no_class_on_both_sides(ScaleGraph.of(model, example(shape)))
    assert no_class_on_both_sides(graph)
    head = set(graph.head_input_classes.tolist())
    for p in graph.parameters:
        if p.name != f"{graph.head}.weight" and not is_transitional(p.kind) and p.binding.denominator is not None:
            assert not head & set(p.binding.denominator.reshape(-1).tolist())


@given(networks(max_steps=5), st.integers(0, 99))
@settings(of_networks, max_examples=15)
def test_expanded_random_networks_compute_the_same_and_their_perturbation_is_exact(network, seed):
    model, shape = network[0].train(), network[1]
    expanded = expand(model, example(shape))
    inputs = batch_for(shape, seed)
    assert torch.equal(run(expanded, inputs), run(model, inputs))
    graph = ScaleGraph.of(expanded, example(shape))
    assert no_class_on_both_sides(graph)
    factors, exchange = draw(graph, seed)
    got = run(perturbed_copy(expanded, graph, factors, exchange), inputs)
    assert relative_error(got, run(model, inputs)) < 1e-12 * conditioning(model, inputs)


def test_training_the_expanded_network_trains_the_original():
    model = build_model("mlp-3", input_shape=(6,), num_outputs=3)
    expanded = expand(model, example((6,)))
    before = copy.deepcopy(model.state_dict())
    expanded(torch.randn(4, 6)).square().sum().backward()
    torch.optim.SGD([p for p in expanded.parameters() if p.requires_grad], lr=0.1).step()
    assert all(not torch.equal(before[k], v) for k, v in model.state_dict().items() if "bias" not in k)
    assert torch.equal(run(expanded, torch.ones(2, 6)), run(model, torch.ones(2, 6)))


class Tied(nn.Module):
    """A layer that is used twice, functions in place of modules, and a parameter that nothing uses."""

    def __init__(self):
        super().__init__()
        self.late = nn.Linear(6, 6)
        self.early = nn.Linear(6, 6)
        self.early.weight = self.late.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.transitional = nn.LayerNorm(6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = F.relu(F.linear(x, self.early.weight, self.early.bias))
        return self.head(self.transitional(F.dropout(self.late(x), 0.0, self.training)))


def test_shared_functional_and_unused_parameters_keep_their_original_names():
    model = Tied()
    expanded = expand(model, example((6,)))
    inputs = torch.randn(3, 6)
    assert torch.equal(run(expanded, inputs), run(model, inputs))
    names = original_names(model, expanded)
    assert set(names.values()) == {n for n, _ in model.named_parameters()} - {"unused"}
    own = dict(model.named_parameters())
    assert all(p is own[names[n]] for n, p in expanded.named_parameters() if n in names)
    assert sum(isinstance(m, Transitional) for m in expanded.modules()) == 3


def test_expanding_leaves_the_model_as_it_was():
    model = build_model("resnet-8", input_shape=(3, 8, 8), num_outputs=3, width=4)
    model.get_submodule("head").eval()  # an odd mixture of modes must survive
    modes = [m.training for m in model.modules()]
    before = copy.deepcopy(model.state_dict())
    expand(model, example((3, 8, 8)))
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_transitional_layer_scales_the_channel_dimension():
    layer = Transitional(3, 1, torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
    x = torch.ones(2, 3, 4, 5, dtype=torch.float64)
    assert layer(x)[:, :, 0, 0].tolist() == [[1.0, 2.0, 3.0]] * 2
    layer.channel_dim = -1
    assert layer(x.movedim(1, -1))[0, 0, 0].tolist() == [1.0, 2.0, 3.0]


def test_what_the_scale_graph_refuses_is_refused_in_the_original_models_words():
    with pytest.raises(UnsupportedLayerError, match=r"LSTM `0`"):
        expand(nn.Sequential(nn.LSTM(4, 4), nn.Linear(4, 2)), example((4,)))


def test_names_of_a_copy_are_refused():
    model = build_model("mlp-3", input_shape=(6,), num_outputs=3)
    with pytest.raises(ModelError, match="no parameter in common"):
        original_names(copy.deepcopy(model), expand(model, example((6,))))
