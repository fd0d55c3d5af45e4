"""The scale graph's promises over random networks of all supported layers (see random_graphs.py)."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.random_graphs import networks
from tests.reference.gradients import normalised_scales, plain_gradient, with_effective_epsilon
from tests.reference.harness import draw, perturbed_copy, relative_error, run, run_round

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.protocols.statistics import scaled_buffers

torch.set_num_threads(1)
of_networks = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


def batch_for(shape, seed, count=5, dtype=torch.float64):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def conditioning(model, inputs):
    """How much outputs move, relatively, when inputs move by 1e-6: rounding grows like this too."""
    moved = run(model, inputs * (1 + 1e-6 * batch_for(inputs.shape[1:], 1, len(inputs), inputs.dtype)))
    return max(1.0, relative_error(moved, run(model, inputs)) / 1e-6)


@given(networks(), st.integers(0, 99))
@of_networks
def test_perturbed_outputs_equal_plain_outputs_in_float64(network, seed):
    model, shape = network[0].train(), network[1]
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    inputs = batch_for(shape, seed)
    got = run(perturbed_copy(model, graph, *draw(graph, seed)), inputs)
    assert relative_error(got, run(model, inputs)) < 1e-12 * conditioning(model, inputs)


@given(networks(), st.integers(0, 99))
@of_networks
def test_with_scaled_inputs_of_normalisations_outputs_are_those_of_another_eps(network, seed):
    """Which acts as eps / scale^2: the oracle has that eps."""
    model, shape = network[0].train(), network[1]
    example = torch.zeros(1, *shape)
    graph = ScaleGraph.of(model, example, norm_inputs="scaled")
    factors, exchange = draw(graph, seed)
    inputs = batch_for(shape, seed)
    got = run(perturbed_copy(model, graph, factors, exchange), inputs)
    oracle = with_effective_epsilon(model, normalised_scales(model, example, factors))
    assert relative_error(got, run(oracle, inputs)) < 1e-12 * conditioning(oracle, inputs)


@given(networks(norms=False), st.integers(0, 99))
@of_networks
def test_perturbed_outputs_equal_plain_outputs_in_float32(network, seed):
    model, shape = network[0].float().train(), network[1]
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    inputs = batch_for(shape, seed, dtype=torch.float32)
    got = run(perturbed_copy(model, graph, *draw(graph, seed)), inputs)
    assert relative_error(got, run(model, inputs)) < 1e-5 * conditioning(model.double(), inputs.double())


@given(networks(), st.integers(0, 99))
@of_networks
def test_source_is_a_permutation_of_all_elements_and_ratio_is_positive(network, seed):
    model, shape = network
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    factors, exchange = draw(graph, seed)
    assert torch.equal(torch.sort(graph.source(exchange)).values, torch.arange(graph.num_parameters))
    assert torch.equal(torch.sort(exchange).values, torch.arange(graph.cells.num_neurons))
    assert bool((graph.ratio(factors) > 0).all())


@given(networks(max_steps=3))
@of_networks
def test_unflatten_undoes_flatten(network):
    model, shape = network
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    named = dict(model.named_parameters())
    restored = graph.unflatten(graph.flatten(named, torch.float64))
    assert restored.keys() == named.keys()
    assert all(torch.equal(restored[name], named[name]) for name in named)


@pytest.mark.parametrize("noise", ["activation", "offset"])
@pytest.mark.parametrize(("loss", "softmax"), [("mse", "local"), ("ce", "local"), ("ce", "blinded")])
@given(networks(), st.data())
@settings(of_networks, max_examples=20)
def test_recovered_gradient_equals_plain_gradient(loss, softmax, noise, network, data):
    model, shape = network[0].train(), network[1]
    seed = data.draw(st.integers(0, 99))
    outputs = model.head.out_features
    partitions = data.draw(st.integers(1, outputs))
    chosen = PerturbationSettings(loss=loss, noise=noise, num_partitions=partitions, softmax=softmax)
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    inputs = batch_for(shape, seed)
    targets = batch_for((outputs,), seed + 1)
    if loss == "ce":
        targets = targets.argmax(1)
    update, _ = run_round(copy.deepcopy(model), chosen, [(inputs, targets)], shape, seed)
    expected = plain_gradient(copy.deepcopy(model), graph, inputs, targets, loss)
    assert relative_error(update.gradient, expected) < 1e-10 * max(1.0, conditioning(model, inputs) / 100)


@given(networks(), st.integers(0, 99))
@of_networks
def test_exported_batch_norm_statistics_give_equal_outputs_in_evaluation_mode(network, seed):
    model, shape = network[0].eval(), network[1]
    for module in model.modules():  # group and layer norm cannot take up eps; batch norm must
        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and hasattr(module, "eps"):
            module.eps = 1e-60
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    factors, exchange = draw(graph, seed)
    exported = perturbed_copy(model, graph, factors, exchange)
    exported.load_state_dict(scaled_buffers(model, graph, factors, exchange), strict=False)
    inputs = batch_for(shape, seed)
    assert relative_error(run(exported, inputs), run(model, inputs)) < 1e-12 * conditioning(model, inputs)
