"""The canonical form and the order of neurons: found for every draw of factors and exchange, and only then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bilateral.audit.topics.model.attacks.parameter_symmetry import (
    canonical,
    first_layer_neurons,
    follow,
    unsupported,
)
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.perturb.secrets import draw_scaling
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
NETWORKS = [("mlp-5", {}), ("lenet", {}), ("convnet", {"batch_norm": True}), ("resnet-20", {"width": 4})]


def network(name, options, seed=0):
    model = build_model(name, input_shape=(1, 8, 8), num_outputs=10, seed=seed, **options)
    graph = ScaleGraph.of(model, torch.zeros(2, 1, 8, 8))
    return graph, graph.flatten(dict(model.named_parameters()), torch.float64)


def hidden(graph, plain, seed):
    factors, exchange = draw_scaling(graph, (0.25, 4.0), True, SeededRandomness(seed))
    return (graph.ratio(factors) * plain)[graph.source(exchange)], exchange


@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_two_members_of_a_family_have_one_canonical_form_up_to_order(name, options):
    graph, plain = network(name, options)
    received, exchange = hidden(graph, plain, 1)
    there = canonical(graph, plain)[graph.source(exchange)]
    assert float((canonical(graph, received) - there).norm() / there.norm()) < 1e-12


@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_neurons_are_followed_through_a_small_change_of_the_weights(name, options):
    graph, plain = network(name, options)
    before, old = hidden(graph, plain, 1)
    noise = torch.randn(len(plain), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    after, new = hidden(graph, plain + 0.05 * plain.abs() * noise, 2)
    movable = torch.cat(graph.cells.free_cells)
    right = old[follow(graph, before, after)] == new
    assert float(right[movable].double().mean()) > 0.99
    assert bool(right[first_layer_neurons(graph)].all())


def test_neurons_of_another_network_are_matched_by_chance_alone():
    graph, plain = network("lenet", {})
    _, other = network("lenet", {}, seed=1)
    before, old = hidden(graph, plain, 1)
    after, new = hidden(graph, other, 2)
    movable = torch.cat(graph.cells.free_cells)
    assert float((old[follow(graph, before, after)] == new)[movable].double().mean()) < 0.1


def test_grouped_convolutions_are_named():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    graph = ScaleGraph.of(model, torch.zeros(1, 2, 8, 8))
    assert "grouped" in unsupported(graph)
    assert unsupported(network("lenet", {})[0]) == ""
