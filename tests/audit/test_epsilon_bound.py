"""Lower bounds on epsilon from games whose true epsilon is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from bilateral.audit.epsilon_bound import (
    epsilon_lower_bound,
    gaussian_delta,
    gaussian_separation,
    largest_bound,
    num_trials_to_show,
)


def true_epsilon(separation, delta):
    return brentq(lambda epsilon: gaussian_delta(epsilon, separation) - delta, 0.0, 50.0)


def gaussian_game(generator, separation, num_trials):
    return generator.normal(separation, 1, num_trials), generator.normal(0, 1, num_trials)


@pytest.mark.parametrize(("separation", "delta"), [(1.0, 0.1), (0.3, 1e-5)])
def test_the_bound_exceeds_the_true_epsilon_of_gaussian_noise_in_at_most_one_of_a_hundred_games(separation, delta):
    """250 games; 99 % confidence would let 2 or 3 of them exceed, and 9 or more would be a chance of 1 in 1000."""
    generator, epsilon = np.random.default_rng(1), true_epsilon(separation, delta)
    exceeded = sum(
        epsilon_lower_bound(*gaussian_game(generator, separation, 500), delta).epsilon > epsilon for _ in range(250)
    )
    assert exceeded < 9


def test_the_risk_is_used_up_at_a_lower_confidence_so_that_the_count_above_could_fail():
    """Scores with two values have one threshold: the bound is as tight as Clopper-Pearson is."""
    generator, epsilon = np.random.default_rng(2), 1.0
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    exceeded = sum(
        epsilon_lower_bound(
            generator.random(400) < chance, generator.random(400) >= chance, 0.0, confidence=0.6
        ).epsilon
        > epsilon
        for _ in range(200)
    )
    assert 10 < exceeded < 90


def test_the_bound_comes_close_for_gaussian_noise_with_many_trials():
    epsilon = true_epsilon(1.0, 0.05)
    found = epsilon_lower_bound(*gaussian_game(np.random.default_rng(3), 1.0, 400_000), 0.05).epsilon
    assert 0.9 * epsilon < found <= epsilon


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_bound_is_exact_for_randomised_response(epsilon):
    generator, num_trials = np.random.default_rng(4), 400_000
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    found = epsilon_lower_bound(generator.random(num_trials) < chance, generator.random(num_trials) >= chance, 0.0)
    assert epsilon - 0.05 < found.epsilon <= epsilon
    assert found.likelier_rate == pytest.approx(chance, abs=0.01)


def test_both_directions_count_an_outcome_that_only_the_world_without_the_unit_has_is_found():
    generator = np.random.default_rng(5)
    inside, outside = generator.random(20_000), generator.random(20_000)
    outside[generator.random(20_000) < 0.3] = -math.inf
    found = epsilon_lower_bound(inside, outside, 1e-5)
    assert found.event == "score < threshold"
    assert found.epsilon > 5
    assert epsilon_lower_bound(-outside, -inside, 1e-5).event == "score >= threshold"


def test_two_equal_worlds_show_nothing_also_with_the_same_noise():
    generator = np.random.default_rng(6)
    for _ in range(20):
        scores = generator.normal(size=2000)
        assert epsilon_lower_bound(scores, generator.permutation(scores), 1e-5).epsilon < 0.5
        assert epsilon_lower_bound(scores, scores, 1e-5).epsilon == 0


def test_an_attacker_that_is_never_wrong_shows_the_largest_bound_and_it_grows_with_the_trials():
    for count in (100, 2000):
        inside, outside = np.ones(count), np.zeros(count)
        assert epsilon_lower_bound(inside, outside, 1e-5).epsilon == pytest.approx(largest_bound(count, 1e-5))
    assert largest_bound(num_trials_to_show(6.0, 1e-5), 1e-5) > 6.0 >= largest_bound(1000, 1e-5)


def test_the_separation_of_a_gaussian_is_the_inverse_of_its_delta():
    assert true_epsilon(1.0, 1e-5) == pytest.approx(4.377, abs=1e-3)  # Balle and Wang 2018
    for epsilon in (0.1, 3.0, 20.0):
        assert gaussian_delta(epsilon, gaussian_separation(epsilon, 1e-5)) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("scores", [[0.0, 1.0], [0.0, 1.0, math.nan, 2.0]])
def test_too_few_scores_and_scores_that_are_no_numbers_are_refused(scores):
    with pytest.raises(ValueError, match="four or more scores"):
        epsilon_lower_bound(scores, [0.0] * 4, 1e-5)


def test_each_of_the_two_rates_takes_half_of_the_risk():
    """They may depend on each other (both worlds may share noise), so that only the sum of the risks is a bound.

    Of 40 trials that judge, an attacker that is never wrong: by hand, p >= r^(1/40) and q <= 1 - r^(1/40) at risk r.
    """
    end = ((1 - 0.99) / 2) ** (1 / 40)
    found = epsilon_lower_bound(np.ones(80), np.zeros(80), delta=0.0, confidence=0.99)
    assert found.epsilon == pytest.approx(math.log(end / (1 - end)), rel=1e-9)
