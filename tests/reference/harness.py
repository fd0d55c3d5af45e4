"""Shared scaffolding of the model and protocol tests: perturb a module, load it, run a whole round in memory."""

from __future__ import annotations

import copy

import torch
from torch import nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.messages import SoftmaxQuery
from bilateral.protocols.perturb.secrets import draw_scaling
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.randomness import SeededRandomness

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def with_epsilon(model: nn.Module, epsilon: float) -> nn.Module:
    """The same module with another `eps` in every normalisation layer."""
    for module in model.modules():
        if isinstance(module, NORMS):
            module.eps = epsilon
    return model


def randomised(model: nn.Module, seed: int) -> nn.Module:
    """Normal parameters and statistics: default norms and zero biases would hide a wrong scale or a wrong place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            size = 1.0 if parameter.dim() < 2 else parameter[0].numel() ** -0.5
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
                module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator))
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))
    return model


def perturbed_copy(model, graph, factors, exchange):
    """A module with scaled and permuted parameters and no additive noise."""
    dtype = next(model.parameters()).dtype
    plain = graph.flatten(dict(model.named_parameters()), torch.float64)
    moved = (graph.ratio(factors) * plain)[graph.source(exchange)]
    copied = copy.deepcopy(model)
    own = dict(copied.named_parameters())
    with torch.no_grad():
        for name, value in graph.unflatten(moved).items():
            own[name].copy_(value.to(dtype))
    return copied


def draw(graph, seed, scale_range=(0.25, 4.0), permute=True):
    return draw_scaling(graph, scale_range, permute, SeededRandomness(seed, "test"))


def relative_error(got, expected):
    """Largest difference over the largest entry."""
    size = float(expected.double().abs().max()) if expected.numel() else 0.0
    difference = float((got.double() - expected.double()).abs().max()) if expected.numel() else 0.0
    return difference / max(size, 1e-30)


def function_error(model, input_shape, seed=0, draws=3, batch=4):
    """Largest relative difference between plain and perturbed outputs over a few draws (float64, no `eps`)."""
    model = with_epsilon(randomised(copy.deepcopy(model).double(), seed), 1e-60).train()
    graphs = [ScaleGraph.of(model, torch.zeros(1, *input_shape), norm_inputs="scaled")]
    if len(graphs[0].normalised_classes):
        graphs.append(ScaleGraph.of(model, torch.zeros(1, *input_shape)))
    inputs = torch.randn(batch, *input_shape, generator=torch.Generator().manual_seed(seed)).double()
    expected = run(model, inputs)
    worst = 0.0
    for graph in graphs:
        for number in range(draws):
            factors, exchange = draw(graph, 1000 * seed + number)
            got = run(perturbed_copy(model, graph, factors, exchange), inputs)
            worst = max(worst, relative_error(got, expected))
    return worst


def run(model, inputs):
    with torch.no_grad():
        return copy.deepcopy(model)(inputs.clone())


def run_round(model, settings, batches, input_shape, seed=0, round_index=0, weights=None):
    """One round with a client for each batch. Returns (recovered update, server)."""
    graph = ScaleGraph.of(model, torch.zeros(1, *input_shape), norm_inputs=settings.norm_inputs)
    server = PerturbServer(model, graph, settings, SeededRandomness(seed, "server"))
    message = server.start_round(round_index)
    uploads = {}
    for number, (inputs, targets) in enumerate(batches):
        client = PerturbClient(f"client-{number}", model, graph, settings, SeededRandomness(seed, "client", number))
        weight = weights[number] if weights else len(inputs)
        sent = client.train(message, inputs, targets, weight)
        if isinstance(sent, SoftmaxQuery):
            sent = client.receive(server.answer(client.name, sent))
        uploads[client.name] = sent
    return server.recover(aggregate(uploads, round_index)), server
