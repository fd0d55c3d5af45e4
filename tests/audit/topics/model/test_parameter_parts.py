"""Relative parameter error over parts: right on known errors, and a fair test of guesses that know nothing."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.scores import p_value
from bilateral.audit.topics.model.parameter_parts import NUM_PARTS, guess_by_range, part_errors
from bilateral.audit.verdict import LEVEL
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.perturb.secrets import draw_scaling
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
RANGE = (0.25, 4.0)
NUM_DRAWS = 40


def network(name, options):
    model = build_model(name, input_shape=(1, 8, 8), num_outputs=10, seed=0, **options)
    graph = ScaleGraph.of(model, torch.zeros(2, 1, 8, 8))
    return graph, graph.flatten(dict(model.named_parameters()), torch.float64)


def ratio(graph, seed):
    return graph.ratio(draw_scaling(graph, RANGE, False, SeededRandomness(seed))[0])


def whole_error(guess, truth):
    return float((guess - truth).norm() / truth.norm())


def test_a_tenth_too_large_is_an_error_of_a_tenth_in_every_part():
    graph, truth = network("lenet", {})
    scores = part_errors(graph, 1.1 * truth, truth)
    assert len(scores.values) == NUM_PARTS
    assert scores.values == pytest.approx([0.1] * NUM_PARTS)


def test_a_wrong_factor_is_an_error_of_one_part():
    graph, truth = network("lenet", {})
    factors = torch.ones(graph.num_scale_classes, dtype=torch.float64)
    factors[100] = 2.0
    assert sum(error > 0 for error in part_errors(graph, graph.ratio(factors) * truth, truth).values) == 1


@pytest.mark.parametrize("name", ["lenet", "mlp-3"])
def test_the_mean_over_parts_is_the_error_of_the_whole_network(name):
    graph, truth = network(name, {})
    guesses = [truth * ratio(graph, seed).pow(0.1) for seed in range(5)]
    parts = sum(part_errors(graph, guess, truth).mean for guess in guesses)
    assert parts == pytest.approx(sum(whole_error(guess, truth) for guess in guesses), rel=0.05)


@pytest.mark.parametrize("options", [{}, {"batch_norm": True}])
def test_no_other_multiple_of_what_arrives_is_better_on_average(options):
    graph, truth = network("convnet", options)
    received = [truth * ratio(graph, seed) for seed in range(NUM_DRAWS)]

    def squared(multiple):
        return sum(whole_error(multiple * guess_by_range(graph, one, RANGE), truth) ** 2 for one in received)

    assert squared(1.0) < min(squared(multiple) for multiple in (0.0, 0.6, 1.5))
    assert squared(1.0) < sum(whole_error(one, truth) ** 2 for one in received)


@pytest.mark.parametrize("what", ["zeros", "as it comes", "other factors", "other factors, shrunk"])
def test_guesses_that_know_nothing_are_not_told_from_the_control(what):
    graph, truth = network("lenet", {})
    alarms = 0
    for seed in range(NUM_DRAWS):
        received = truth * ratio(graph, seed)
        elsewhere = received / ratio(graph, 1000 + seed)
        guesses = {"zeros": 0 * received, "as it comes": received, "other factors": elsewhere}
        guess = guesses.get(what, 0.3 * elsewhere)
        control = part_errors(graph, guess_by_range(graph, received, RANGE), truth)
        alarms += p_value(part_errors(graph, guess, truth), control, paired=True) <= LEVEL
    assert alarms == 0


def test_factors_known_to_a_tenth_are_told_from_the_control():
    graph, truth = network("mlp-3", {"width": 32})
    for seed in range(5):
        received = truth * ratio(graph, seed)
        guess = truth * ratio(graph, 1000 + seed).pow(0.1)
        control = part_errors(graph, guess_by_range(graph, received, RANGE), truth)
        assert p_value(part_errors(graph, guess, truth), control, paired=True) <= LEVEL / 2
