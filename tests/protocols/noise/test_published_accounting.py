"""P2's accountant: the conditions by brute force, inverses, side conditions, and the classical Gaussian mechanism."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from bilateral.errors import PlanError
from bilateral.protocols.noise.published_accounting import (
    PAIRWISE_SHARE,
    NoiseLevels,
    central_sigma,
    epsilon_of,
    failed_conditions,
    guarantee,
    local_sigma,
    satisfies,
    solve_noise,
    theta_complete,
    theta_n_out,
    theta_of,
)
from bilateral.protocols.noise.published_model import published_settings

many = settings(max_examples=200, deadline=None, derandomize=True)
EPSILONS = st.floats(0.01, 20.0)
DELTAS = st.floats(1e-12, 0.95)


@many
@given(st.floats(1e-6, 50.0), DELTAS)
def test_epsilon_of_is_the_smallest_that_satisfies_both_conditions(theta, delta):
    found = epsilon_of(theta, delta)
    assert satisfies(found * (1 + 1e-9), delta, theta)
    assert not satisfies(found * (1 - 1e-9), delta, theta)


@many
@given(st.floats(1e-3, 10.0), DELTAS)
def test_epsilon_of_agrees_with_a_search_over_the_conditions_as_printed(theta, delta):
    def holds(epsilon):
        first = epsilon >= theta / 2 + theta**0.5
        return first and (epsilon - theta / 2) ** 2 >= 2 * math.log(2 / (delta * math.sqrt(2 * math.pi))) * theta

    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    assert abs(epsilon_of(theta, delta) / high - 1) < 1e-9


@many
@given(EPSILONS, DELTAS)
def test_theta_of_is_the_inverse_of_epsilon_of(epsilon, delta):
    assert abs(epsilon_of(theta_of(epsilon, delta), delta) / epsilon - 1) < 1e-12


@many
@given(EPSILONS, DELTAS, st.integers(2, 1000))
def test_solved_noise_of_the_complete_graph_satisfies_and_a_little_less_does_not(epsilon, delta, clients):
    own, pair = solve_noise(epsilon, delta, clients)
    assert satisfies(epsilon * (1 + 1e-9), delta, theta_complete(clients, own, pair))
    assert not satisfies(epsilon, delta, theta_complete(clients, 0.999 * own, 0.999 * pair))


@many
@given(EPSILONS, DELTAS, st.integers(81, 1000), st.integers(7, 80))
def test_solved_noise_of_the_n_out_graph_satisfies_at_a_third_of_delta(epsilon, delta, clients, neighbours):
    own, pair = solve_noise(epsilon, delta, clients, "n-out", neighbours)
    theta = theta_n_out(clients, neighbours, own, pair)
    assert satisfies(epsilon * (1 + 1e-9), delta / 3, theta)
    assert not satisfies(epsilon * (1 - 1e-9), delta / 3, theta)


@many
@given(EPSILONS, DELTAS, st.integers(2, 1000))
def test_pairwise_noise_costs_the_mean_half_a_percent(epsilon, delta, clients):
    own = solve_noise(epsilon, delta, clients).independent
    in_the_mean, central = own / math.sqrt(clients), central_sigma(epsilon, delta, clients)
    assert abs(in_the_mean / central * math.sqrt(1 - PAIRWISE_SHARE) - 1) < 1e-9
    assert in_the_mean < 1.0051 * central


def exact_gaussian_sigma(epsilon, delta):
    """The smallest noise that is (epsilon, delta)-private at sensitivity 1 (Balle and Wang 2018, Theorem 8)."""

    def excess(sigma):
        a, b = 0.5 / sigma, epsilon * sigma
        return norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b) - delta

    return brentq(excess, 1e-3, 1e4)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("delta", [1e-7, 1e-5, 1e-3])
def test_local_noise_is_enough_for_the_gaussian_mechanism_and_close_to_the_classical_one(epsilon, delta):
    sigma = local_sigma(epsilon, delta)
    assert exact_gaussian_sigma(epsilon, delta) <= sigma
    if epsilon <= 1:  # Dwork and Roth, Theorem A.1, holds there
        classical = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
        assert 0.9 < sigma / classical < 1.1


@many
@given(EPSILONS, DELTAS, st.integers(2, 1000))
def test_local_noise_is_root_k_times_the_central_noise_of_the_mean(epsilon, delta, clients):
    ratio = local_sigma(epsilon, delta) / math.sqrt(clients) / central_sigma(epsilon, delta, clients)
    assert abs(ratio / math.sqrt(clients) - 1) < 1e-12


def test_theta_has_the_squares_that_the_paper_leaves_out():
    assert theta_complete(10, 0.5, 2.0) == pytest.approx(1 / (10 * 0.25) + 1 / (10 * 4.0))


def test_theta_of_the_n_out_graph_by_hand():
    by_hand = 1 / (100 * 0.04) + (1 / (math.floor(12 / 3) - 1) + (12 + 6 * math.log(100)) / 100) / 9
    assert theta_n_out(100, 13, 0.2, 3.0) == pytest.approx(by_hand)
    assert theta_n_out(100, 6, 0.2, 3.0) == math.inf


def test_side_conditions_of_theorem_11_are_named_when_they_fail():
    """Each condition by itself, at the first number that satisfies it and the last that does not."""
    delta = 3e-5  # the theorem's own delta is 1e-5
    needed = math.ceil(max(4 * math.log(2000 / 3e-5), 6 * math.log(1000 / 3), 1.5 + 2.25 * math.log(2 * math.e / 1e-5)))
    assert failed_conditions(1000, needed, delta) == []
    (failed,) = failed_conditions(1000, needed - 1, delta)
    assert failed.startswith("n >= 4 log(2K / 3 delta)")
    assert [f.split(" (")[0] for f in failed_conditions(80, 75, delta)] == ["K >= 81"]
    assert any(f.startswith("n < K") for f in failed_conditions(81, 81, delta))
    assert any(f.startswith("n >= 6 log(K / 3)") for f in failed_conditions(10**6, 60, 0.9))


@pytest.mark.parametrize("clients", [5, 100])
def test_the_papers_own_experiments_are_outside_its_theorem(clients):
    """K = 5 or 100 with n = 5: no theta at all, whatever the noise."""
    failed = failed_conditions(clients, 5, 1e-5)
    assert any("n >= 7" in f for f in failed)
    assert len(failed) >= 3
    with pytest.raises(PlanError, match="5 neighbours: expected 7 or more"):
        solve_noise(3.0, 1e-5, clients, "n-out", 5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"epsilon": 0.0}, "epsilon above 0"),
        ({"epsilon": math.nan}, "epsilon above 0"),
        ({"delta": 0.0}, "delta between 0 and 1"),
        ({"delta": 1.0}, "delta between 0 and 1"),
        ({"num_clients": 1}, "2 clients or more"),
        ({"sensitivity": 0.0}, "sensitivity above 0"),
        ({"pairwise_share": 1.0}, "share between 0 and 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, text):
    with pytest.raises(PlanError, match=text):
        solve_noise(**{"epsilon": 1.0, "delta": 1e-5, "num_clients": 10, **arguments})


def test_sensitivity_scales_both_levels():
    single, double = solve_noise(1.0, 1e-5, 10), solve_noise(1.0, 1e-5, 10, sensitivity=2.0)
    assert double == pytest.approx(NoiseLevels(2 * single.independent, 2 * single.pairwise))


def test_the_guarantee_says_that_it_is_conditional_and_admits_lines_3_and_4():
    stated = guarantee(published_settings(), 3.0, 1e-5, 100, "n-out", 5)
    claim = stated.claims[-1]
    assert "(3, 1e-05)" in claim.what
    for words in ("published, conditional", "does NOT know the scale factors", "nobody clips", "drops out", "honest"):
        assert words in claim.assumption
    assert "NOT PROVED for this graph: Theorem 11 needs floor((n - 1) / 3) > 1" in claim.assumption
    lines = [leak.ledger_line for leak in stated.leaks]
    assert {1, 3, 4, 7, 9} <= set(lines)
    assert lines.count(3) == 1
    assert "NOT PROVED" not in guarantee(published_settings(), 3.0, 1e-5, 100).claims[-1].assumption
