"""Factors from sizes and from rounds: found where the assumption holds, and not where it does not."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.topics.model.attacks.scale_from_size import FactorPrior, factors_from_rounds, guess_scale
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.perturb.secrets import draw_scaling
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
RANGE = (0.25, 4.0)


def network(name="mlp-3", **options):
    model = build_model(name, input_shape=(1, 8, 8), num_outputs=10, seed=0, **options)
    graph = ScaleGraph.of(model, torch.zeros(2, 1, 8, 8))
    return graph, graph.flatten(dict(model.named_parameters()), torch.float64)


def scaled(graph, plain, seed, permute=False):
    factors, exchange = draw_scaling(graph, RANGE, permute, SeededRandomness(seed))
    return (graph.ratio(factors) * plain)[graph.source(exchange)], factors


def octaves(found, true):
    return float((found.log2() - true.log2()).abs()[1:].mean())


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [("mlp-3", {"width": 64}, 0.15), ("mlp-3", {"width": 256}, 0.1), ("lenet", {}, 0.2)],
)
def test_sizes_of_initial_weights_give_every_factor_away(name, options, expected):
    """Factors are an octave from the middle of their range, on the average."""
    graph, plain = network(name, **options)
    received, true = scaled(graph, plain, 1)
    prior = FactorPrior.of_range(graph, RANGE)
    guess = guess_scale(graph, received, prior)
    assert octaves(guess.scale_factors, true) < expected < 0.8 < octaves(prior.factors(), true)
    assert float((guess.parameters - plain).norm() / plain.norm()) < 0.3


def test_sizes_tell_nothing_where_the_true_weights_have_no_typical_size():
    """The negative control: the true model is itself a random member of its family."""
    graph, plain = network()
    truth, _ = scaled(graph, plain, 7)
    received, true = scaled(graph, truth, 1)
    prior = FactorPrior.of_range(graph, RANGE)
    guess = guess_scale(graph, received, prior)
    assert octaves(guess.scale_factors, true) > 0.9 * octaves(prior.factors(), true)


@pytest.mark.parametrize(("rounds", "expected"), [(10, 0.3), (80, 0.06)])
def test_rounds_give_the_factors_whatever_the_true_weights_are(rounds, expected):
    graph, plain = network()
    truth, _ = scaled(graph, plain, 7)
    received = [scaled(graph, truth, 100 + k, permute=True)[0] for k in range(rounds)]
    last, true = scaled(graph, truth, 1)
    found = factors_from_rounds(graph, [*received, last], RANGE)
    assert octaves(found.factors(), true) < expected


def test_rounds_tell_nothing_where_factors_stay():
    """What would close it: the same factors in every round."""
    graph, plain = network()
    last, true = scaled(graph, plain, 1)
    found = factors_from_rounds(graph, [last] * 20, RANGE)
    assert octaves(found.factors(), true) == pytest.approx(octaves(FactorPrior.of_range(graph, RANGE).factors(), true))


def test_rounds_and_sizes_together_are_better_than_either():
    graph, plain = network()
    received = [scaled(graph, plain, 100 + k, permute=True)[0] for k in range(10)]
    last, true = scaled(graph, plain, 1)
    rounds = factors_from_rounds(graph, [*received, last], RANGE)
    sizes = guess_scale(graph, last, FactorPrior.of_range(graph, RANGE)).scale_factors
    both = guess_scale(graph, last, rounds).scale_factors
    assert octaves(both, true) < min(octaves(rounds.factors(), true), octaves(sizes, true))
