"""The attacks on steps, by themselves."""

import torch
from tests.audit.topics.sealed.harness import relative

from bilateral.audit.topics.sealed.attacks.planted_neurons import nearest_errors, read_bins, with_bins
from bilateral.audit.topics.sealed.attacks.solved_corrections import _solve
from bilateral.models.scale_graph import ScaleGraph


def words(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 63), (1 << 63) - 1, shape, generator=generator)


def test_a_product_in_the_ring_is_solved_for_its_other_factor():
    known, wanted = words(4, 30, seed=0), words(4, 7, seed=1)
    found = _solve(known, wanted.T @ known)
    assert torch.equal(found, wanted)


def test_an_even_factor_has_no_solution():
    assert _solve(2 * words(3, 5, seed=0), words(2, 5, seed=1)) is None


def test_planted_neurons_read_every_sample_that_is_alone_between_two_thresholds():
    generator = torch.Generator().manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    samples = torch.randn(6, 10, generator=generator)
    crafted = with_bins(network, torch.randn(500, 10, generator=generator)).double()
    graph = ScaleGraph.of(crafted, samples[:2].double())
    lost = torch.nn.functional.cross_entropy(crafted(samples.double()), torch.tensor([0, 1, 2, 0, 1, 2]))
    named = dict(crafted.named_parameters())
    gradients = dict(zip(named, torch.autograd.grad(lost, list(named.values())), strict=True))
    gradient = graph.flatten(gradients, torch.float64)
    errors = nearest_errors(read_bins(graph, "0", gradient), list(samples))
    assert sum(error < 1e-6 for error in errors) >= 4
    assert relative(gradient, gradient) == 0.0
