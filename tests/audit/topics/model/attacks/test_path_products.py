"""Path products: equal to the sum over listed paths, and the same whatever the factors and the order of neurons."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

from bilateral.audit.topics.model.attacks.path_products import path_products, without_path_products
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.perturb.secrets import draw_scaling
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
NETWORKS = [
    ("mlp-3", {"width": 12}),
    ("lenet", {}),
    ("convnet", {"batch_norm": True}),
    ("resnet-20", {"width": 4}),
    ("resnet-20", {"width": 4, "batch_norm": False}),
    ("densenet", {}),
]


class Residual(nn.Module):
    """Two image channels, a branch that is added, and a flattened head: channel c feeds the inputs 4 c to 4 c + 3."""

    def __init__(self, normalised):
        super().__init__()
        self.stem = nn.Conv2d(2, 3, 2)
        self.norm = nn.BatchNorm2d(3) if normalised else None
        self.branch = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(x if self.norm is None else self.norm(x))
        return self.head((x + torch.relu(self.branch(x))).flatten(1))


class AddsToInput(nn.Module):
    """Its only neurons are tied to the inputs, which cannot be told apart by the scale graph."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Conv2d(2, 2, 3, padding=1)
        self.head = nn.Linear(128, 3)

    def forward(self, x):
        return self.head((x + self.branch(x)).flatten(1))


def listed(model, divided):
    """Every path by itself, from each input channel to each output. `divided`: by what makes the normalised channel."""
    stem, branch, head = (
        w.detach().double().abs() for w in (model.stem.weight, model.branch.weight, model.head.weight)
    )
    found = torch.zeros(2, 2, dtype=torch.float64)
    for output, column, row, left, source in product(range(2), range(12), range(2), range(2), range(2)):
        channel = column // 4
        for first in range(3):
            into = stem[first, source, row, left]
            if model.norm is not None:
                into = into * model.norm.weight[first].detach().double().abs()
                into = into / stem[first].norm() if divided else into
            ways = [branch[channel, first, down, right] for down, right in product(range(3), range(3))]
            if first == channel:
                ways.append(torch.ones((), dtype=torch.float64))
            for way in ways:
                found[output, source] += head[output, column] * way * into
    return found


def network(name, options, seed=0):
    model = build_model(name, input_shape=(1, 8, 8), num_outputs=10, seed=seed, **options)
    graph = ScaleGraph.of(model, torch.zeros(2, 1, 8, 8))
    return graph, graph.flatten(dict(model.named_parameters()), torch.float64)


def hidden(graph, plain, seed):
    factors, exchange = draw_scaling(graph, (0.25, 4.0), True, SeededRandomness(seed))
    return (graph.ratio(factors) * plain)[graph.source(exchange)]


def difference(found, truth):
    return float((found - truth).norm() / truth.norm())


@pytest.mark.parametrize("norm_inputs", ["exact", "scaled"])
@pytest.mark.parametrize("normalised", [False, True])
def test_path_products_are_the_sum_over_listed_paths(normalised, norm_inputs):
    torch.manual_seed(0)
    model = Residual(normalised)
    if model.norm is not None:
        nn.init.uniform_(model.norm.weight, 0.5, 2.0)
    graph = ScaleGraph.of(model, torch.zeros(2, 2, 3, 3), norm_inputs=norm_inputs)
    plain = graph.flatten(dict(model.named_parameters()), torch.float64)
    truth = listed(model, divided=norm_inputs == "scaled")
    assert difference(path_products(graph, plain), truth) < 1e-12
    assert difference(path_products(graph, hidden(graph, plain, 1)), truth) < 1e-12


@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_factors_and_order_change_no_path_product_and_other_weights_do(name, options):
    graph, plain = network(name, options)
    truth = path_products(graph, plain)
    assert truth.shape == (10, 64 if name == "mlp-3" else 1)
    assert difference(path_products(graph, hidden(graph, plain, 1)), truth) < 1e-12
    assert difference(path_products(graph, network(name, options, seed=1)[1]), truth) > 0.05


@pytest.mark.parametrize("changed", ["stem.weight", "branch.weight", "head.weight", "norm.weight"])
def test_every_layer_tells(changed):
    """Behind a BatchNorm too: what it divides by does not take the weights before it out of the product."""
    torch.manual_seed(0)
    model = Residual(normalised=True)
    graph = ScaleGraph.of(model, torch.zeros(2, 2, 3, 3))
    plain = graph.flatten(dict(model.named_parameters()), torch.float64)
    other = plain.clone()
    other[graph.layout(changed).slice] *= torch.linspace(0.5, 2.0, graph.layout(changed).numel)
    assert difference(path_products(graph, other), path_products(graph, plain)) > 0.01


def test_what_has_no_path_products_is_named():
    grouped = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    per_sample = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    named = {grouped: "grouped", per_sample: "`1.weight`", AddsToInput(): "`branch.weight`"}
    for model, word in named.items():
        assert word in without_path_products(ScaleGraph.of(model, torch.zeros(2, 2, 8, 8)))
    assert without_path_products(network("lenet", {})[0]) == ""


def test_behind_a_batch_norm_without_weights_there_are_path_products_unless_its_inputs_are_scaled():
    bare = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(144, 3))
    example = torch.zeros(2, 2, 8, 8)
    assert without_path_products(ScaleGraph.of(bare, example)) == ""
    assert "`3.weight`" in without_path_products(ScaleGraph.of(bare, example, norm_inputs="scaled"))
