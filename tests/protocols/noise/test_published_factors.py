"""Ratio times noise is normal for every kind of element of real networks, and the kinds are what loops find."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.models.random_graphs import networks
from tests.models.test_scale_graph_properties import of_networks
from tests.protocols.noise.published_federation import NamedSecrets, everyone_else
from torch import nn

from bilateral.errors import ModelError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.transitional import expand, is_transitional
from bilateral.models.zoo import build_model
from bilateral.protocols.noise.published import PublishedNoiseClient
from bilateral.protocols.noise.published_accounting import NoiseLevels
from bilateral.protocols.noise.published_factors import FactorPlan
from bilateral.protocols.noise.published_model import PublishedModel
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
RANGE = (0.25, 4.0)
ZOO = [
    ("mlp-5", {"width": 24}, (12,), {0, 1, 2}),
    ("lenet", {}, (1, 8, 8), {0, 1, 2}),
    ("resnet-8", {"width": 6}, (3, 8, 8), {0, 2}),
    ("resnet-8", {"width": 6, "batch_norm": False}, (3, 8, 8), {0, 1, 2}),
]


def published(name, options, shape, norm_inputs="exact"):
    model = build_model(name, input_shape=shape, num_outputs=4, **options)
    example = torch.zeros(1, *shape)
    return PublishedModel.of(model, ScaleGraph.of(model, example, norm_inputs=norm_inputs), example)


def sides(graph):
    """Class above and below the line of every element, written out."""
    above, below = [], []
    for p in graph.parameters:
        for kept, classes in ((above, p.binding.numerator), (below, p.binding.denominator)):
            none = torch.zeros(p.shape, dtype=torch.int64)
            kept.append((none if classes is None else none + classes).reshape(-1))
    return torch.cat(above), torch.cat(below)


def independent_elements(elements, above, below):
    """A subset in which no scale class occurs twice, so that its ratios are independent."""
    seen, kept = {0}, []
    for element in elements.tolist():
        classes = {int(above[element]), int(below[element])} - {0}
        if not classes & seen:
            seen |= classes
            kept.append(element)
    return torch.tensor(kept)


@pytest.mark.parametrize(("name", "options", "shape", "kinds"), ZOO)
def test_ratio_times_noise_is_normal_for_every_kind_of_element(name, options, shape, kinds):
    model = published(name, options, shape)
    graph, missing = model.graph, model.missing_halves
    above, below = sides(graph)
    sigma, randomness = 1.7, SeededRandomness(5, name)
    client = PublishedNoiseClient("anna", model, NoiseLevels(sigma, 0.0), NamedSecrets("anna"), everyone_else("anna"))
    groups = {}
    for kind in kinds:
        # Weights of the first layer, of hidden ones and of the head differ in how their two halves come about.
        of_kind = model.trained[missing[model.trained] == kind]
        for first, second in {(int(a > 0), int(b > 0)) for a, b in zip(above[of_kind], below[of_kind], strict=True)}:
            chosen = of_kind[((above[of_kind] > 0) == first) & ((below[of_kind] > 0) == second)]
            shuffled = chosen[randomness.permutation(len(chosen))]
            groups[kind, first, second] = independent_elements(shuffled, above, below)
    assert set(missing[model.trained].tolist()) == kinds
    place = torch.full((graph.num_parameters,), -1)
    place[model.trained] = torch.arange(len(model.trained))
    products = {key: [] for key in groups}
    for number in range(250):
        stream = randomness.child("draw", number)
        ratio = graph.ratio(model.factors.draw(graph, RANGE, stream))
        noise = client._noise(sigma, stream)
        for key, elements in groups.items():
            products[key].append(ratio[elements] * noise[place[elements]])
    for key, values in products.items():
        sample = torch.cat(values).numpy()
        assert len(sample) >= 1000, key
        assert stats.kstest(sample, "norm", (0, sigma)).pvalue > 1e-4, key


@given(networks(max_steps=4), st.integers(0, 99))
@settings(of_networks, max_examples=20)
def test_missing_halves_of_random_networks_are_what_loops_find(network, seed):
    model, shape = network
    graph = ScaleGraph.of(expand(model, torch.zeros(1, *shape)), torch.zeros(1, *shape))
    plan = FactorPlan.of(graph)
    above, below = sides(graph)
    trained = torch.cat([torch.full((p.numel,), not is_transitional(p.kind)) for p in graph.parameters])
    pairs = list(zip(above[trained].tolist(), below[trained].tolist(), strict=True))
    shared_above = {a for a, b in pairs if a and b}
    shared_below = {b for a, b in pairs if a and b}
    halves = [(a > 0) * (1 if a in shared_above else 2) + (b > 0) * (1 if b in shared_below else 2) for a, b in pairs]
    missing = plan.missing_halves(graph)
    assert missing[trained].tolist() == [2 - h for h in halves]
    assert not missing[~trained].any()
    factors = plan.draw(graph, RANGE, SeededRandomness(seed))
    assert float(factors[0]) == 1.0
    assert bool((factors > 0).all())


def test_weights_of_the_paper_have_the_papers_distributions():
    """Eq. (13): r of the first layer and s of the head are DN*(1), all others DN*(2)."""
    model = published("mlp-5", {"bias": False}, (12,))
    graph = model.graph
    names = [p.name for p in graph.parameters if not is_transitional(p.kind)]
    found = []
    for name in names:
        binding = graph.layout(name).binding
        found.append(
            [
                sorted(set(model.factors.halves[side].reshape(-1).tolist()))
                for side in (binding.numerator, binding.denominator)
            ]
        )
    assert found == [[[2], [0]], [[1], [1]], [[1], [1]], [[1], [1]], [[0], [2]]]
    assert not model.missing_halves.any()


def test_factors_before_a_normalisation_are_1():
    model = published("resnet-8", {"width": 4}, (3, 8, 8))
    assert model.graph.normalised_classes.tolist() == [0]


def test_factors_before_a_normalisation_alone_are_at_least_1_where_they_are_scaled():
    model = published("resnet-8", {"width": 4}, (3, 8, 8), "scaled")
    free = model.graph.normalised_classes[model.factors.halves[model.graph.normalised_classes] == 0]
    assert len(free)
    factors = model.factors.draw(model.graph, RANGE, SeededRandomness(1))
    assert bool((factors[free] >= 1).all())


def test_a_model_without_transitional_layers_is_refused():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))
    with pytest.raises(ModelError, match=r"`0.weight`.*expand"):
        FactorPlan.of(ScaleGraph.of(model, torch.zeros(1, 4)))
