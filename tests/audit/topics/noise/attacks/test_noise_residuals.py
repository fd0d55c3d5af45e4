"""Readings of noise: spoilt noise is found where it was spoilt, and noise as claimed keeps every limit."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.epsilon_bound import epsilon_lower_bound, gaussian_delta
from bilateral.audit.topics.noise.attacks.noise_residuals import least_deviation, most_alike, shape_scores
from bilateral.randomness import SeededRandomness

RISK = 1e-3
OF_GAUSSIAN = 2.0
"""Epsilon of Gaussian noise that a unit moves by half a deviation, at delta 1e-5."""
LAYERS = [(0, 100), (100, 700)]


def noise(seed, *shape):
    return SeededRandomness(seed, "test").normal(*shape)


def owners(uploads):
    return [f"client {number % 3}" for number in range(uploads)]


def least(values):
    return least_deviation(values, owners(len(values)), LAYERS, RISK)


def test_noise_as_claimed_keeps_its_limits_as_often_as_they_say():
    """At a risk of 5 %, about 10 of 200 go beyond at most (20 or more: one time in five hundred), and some do."""
    small, alike = 0, 0
    for seed in range(200):
        values = noise(seed, 12, 2, 100)
        small += least_deviation(values, owners(12), [(0, 20), (20, 100)], 0.05).deviation < 1
        alike += most_alike(values, 0.05).correlation > 0
    assert 0 < small < 20
    assert alike < 20


@pytest.mark.parametrize(
    ("places", "kind"),
    [
        ((slice(None), slice(None), slice(0, 100)), "layer"),
        ((slice(None), slice(None), slice(345, 346)), "coordinate"),
        ((slice(3, 4), slice(None), slice(None)), "upload"),
        ((slice(1, None, 3), slice(None), slice(None)), "owner"),
        ((slice(None), slice(1, 2), slice(None)), "term"),
    ],
)
def test_a_part_without_noise_is_found(places, kind):
    values = noise(1, 12, 2, 700)
    values[places] = 0.0
    assert least(values).deviation == 0
    weak = noise(1, 12, 2, 700)
    weak[places] *= 0.1
    found = least(weak)
    assert found.deviation < 1
    assert kind in found.where or found.deviation < 0.5


def test_a_little_too_little_noise_is_found_where_there_is_enough_of_it():
    found = least(0.97 * noise(2, 60, 2, 700))
    assert found.deviation < 1


def test_noise_that_is_used_again_is_found_at_any_distance_and_in_part():
    values = noise(3, 6, 2, 2000)
    moved = values.clone()
    moved[4] = values[1].flatten().roll(137).view(2, 2000)
    assert most_alike(moved, RISK).correlation > 0.9
    assert "uploads 1 and 4" in most_alike(moved, RISK).where
    terms = values.clone()
    terms[2, 1] = -terms[2, 0]
    assert most_alike(terms, RISK).correlation > 0.3
    partly = values.clone()
    partly[5, :, :600] = values[0, :, :600]
    assert 0.05 < most_alike(partly, RISK).correlation < 0.3


@pytest.mark.parametrize("spoilt", ["atoms", "two values", "uniform", "half"])
def test_a_shape_that_gives_a_unit_away_is_found(spoilt):
    values = noise(4, 100_000)
    if spoilt == "atoms":
        values[::10] = 0.0
    elif spoilt == "two values":
        values = values.sign()
    elif spoilt == "uniform":
        values = 12**0.5 * (SeededRandomness(5).uniform(100_000) - 0.5)
    else:
        values = 0.5 * values
    inside, outside = shape_scores(values, 0.5)
    assert epsilon_lower_bound(inside.numpy(), outside.numpy(), 1e-5).epsilon > OF_GAUSSIAN


def test_the_shape_of_gaussian_noise_stays_within_its_epsilon():
    assert gaussian_delta(OF_GAUSSIAN, 0.5) == pytest.approx(1e-5, rel=0.1)
    for seed in range(20):
        inside, outside = shape_scores(noise(seed, 50_000), 0.5)
        assert epsilon_lower_bound(inside.numpy(), outside.numpy(), 1e-5).epsilon < OF_GAUSSIAN


def test_residuals_that_are_all_zero_are_no_correlation_and_no_error():
    assert most_alike(torch.zeros(3, 1, 50), RISK).correlation == 0
