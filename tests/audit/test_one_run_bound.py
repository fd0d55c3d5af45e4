"""The one-run bound against slow, obvious oracles: exact convolutions, and runs whose epsilon is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bilateral.audit.epsilon_bound import gaussian_separation
from bilateral.audit.one_run_bound import canaries_to_show, chance_of, largest_one_run_bound, one_run_epsilon


def tail_by_convolution(num_guesses, num_right, chance):
    """P(v or more of r right), one guess after the other."""
    law = np.array([1.0])
    for _ in range(num_guesses):
        law = np.convolve(law, [1 - chance, chance])
    return float(law[num_right:].sum())


def slow_chance(m, r, v, epsilon, delta):
    """Theorem 5.2 as it is written, with a loop for each sum."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))

    def f(k):
        return sum(math.comb(r, j) * q**j * (1 - q) ** (r - j) for j in range(max(k, 0), r + 1))

    return min(1.0, f(v) + 2 * m * delta * max([(f(v - i) - f(v)) / i for i in range(1, v + 1)], default=0.0))


@pytest.mark.parametrize(("m", "r", "v"), [(20, 12, 9), (40, 40, 31), (8, 8, 8), (16, 5, 0), (30, 30, 1)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.7, 1e-3), (2.5, 1e-2)])
def test_the_chance_is_that_of_the_theorem_as_it_is_written(m, r, v, epsilon, delta):
    assert chance_of(m, r, v, epsilon, delta) == pytest.approx(slow_chance(m, r, v, epsilon, delta), rel=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_no_epsilon_delta_private_coin_is_guessed_right_more_often_than_the_chance_allows(epsilon, delta):
    """Randomised response that gives the coin away with probability delta."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    for m in (6, 25):
        for v in range(m + 1):
            assert tail_by_convolution(m, v, delta + (1 - delta) * q) <= chance_of(m, m, v, epsilon, delta) + 1e-12


def bounds_of_runs(epsilon, count, runs, make_scores, delta=0.0, confidence=0.9):
    draws = np.random.default_rng(0)
    coins = [draws.random(count) < 0.5 for _ in range(runs)]
    return [one_run_epsilon(make_scores(coin, draws), coin, delta, confidence).epsilon for coin in coins]


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_is_refuted_no_more_often_than_the_risk_and_nearly_reached(epsilon):
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))

    def answers(coin, draws):
        return np.where(draws.random(len(coin)) < keep, coin, ~coin).astype(float)

    found = bounds_of_runs(epsilon, 1000, 60, answers)
    assert sum(bound > epsilon for bound in found) <= stats.binom.isf(1e-6, 60, 0.1)
    assert np.median(found) > 0.7 * epsilon


def test_gaussian_noise_of_a_known_epsilon_is_not_refuted_and_a_tenth_of_it_is():
    epsilon, delta = 2.0, 1e-5
    moved = gaussian_separation(epsilon, delta)

    def seen(share):
        return lambda coin, draws: coin * moved + share * draws.normal(size=len(coin))

    honest = bounds_of_runs(epsilon, 1000, 30, seen(1.0), delta)
    assert sum(bound > epsilon for bound in honest) <= stats.binom.isf(1e-6, 30, 0.1)
    assert min(bounds_of_runs(epsilon, 1000, 8, seen(0.1), delta)) > epsilon


def test_who_guesses_the_few_that_show_shows_more_than_who_must_guess_all():
    """One in ten canaries is seen for certain (batches are sampled); the others are not seen at all."""
    draws = np.random.default_rng(1)
    coin = draws.random(2000) < 0.5
    scores = np.where(coin & (draws.random(2000) < 0.1), np.inf, 0.0)
    found = one_run_epsilon(scores, coin, 0.0)
    assert found.num_right == found.num_guesses < 200
    assert found.epsilon > 1


def test_coins_that_nothing_is_known_of_show_nothing():
    found = bounds_of_runs(0.0, 500, 60, lambda coin, draws: draws.normal(size=len(coin)))
    assert sum(bound > 0 for bound in found) <= stats.binom.isf(1e-6, 60, 0.1)


def test_more_canaries_can_show_more_until_delta_costs_more_than_they_add():
    assert largest_one_run_bound(100, 0.0) < largest_one_run_bound(1000, 0.0) < largest_one_run_bound(4000, 0.0)
    assert largest_one_run_bound(100, 1e-5) < largest_one_run_bound(1000, 1e-5) > largest_one_run_bound(30_000, 1e-5)


def test_the_number_of_canaries_that_shows_an_epsilon_is_found():
    count = canaries_to_show(3.0, 1e-5, 10_000)
    assert largest_one_run_bound(count, 1e-5) > 3.0 > largest_one_run_bound(count // 2, 1e-5)
    assert canaries_to_show(20.0, 1e-5, 10_000) < 10_000  # nothing shows so much; some number shows most


@pytest.mark.parametrize(("scores", "coins"), [([1.0, np.nan, 0, 0], [True] * 4), ([1.0] * 5, [True] * 4), ([], [])])
def test_scores_that_are_none_are_refused(scores, coins):
    with pytest.raises(ValueError, match="scores"):
        one_run_epsilon(scores, coins, 0.0)
