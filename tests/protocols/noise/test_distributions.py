"""The distributions of P2's Theorem 3: against closed forms, known moments, the paper's own series, and the theorem."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from bilateral.errors import PlanError
from bilateral.protocols.noise.distributions import quantile_table, scale_factors, split_noise, uniform_noise
from bilateral.randomness import SeededRandomness

MILLION = 1_000_000
SIGNIFICANCE = 1e-3


def log_moment(parts, s):
    """log E |DN*(m)|^s"""
    return (special.loggamma((3 + s) / 2) - special.loggamma(1.5)) / parts


def by_series(parts, count, generator, terms=400):
    """DN*(m) as the paper prints it, cut off; the mean of the rest is added."""
    total = np.zeros(count)
    for number in range(1, terms + 1):
        total += generator.gamma(1 / parts, size=count) / (2 * number + 1) - np.log1p(1 / number) / (2 * parts)
    rest = np.arange(terms + 1, 2_000_000)
    return np.exp(-total - (1 / (2 * rest + 1) - np.log1p(1 / rest) / 2).sum() / parts)


@pytest.mark.parametrize("parts", [1, 2])
def test_scale_factors_times_uniform_noise_are_normal_at_a_million_samples(parts):
    randomness = SeededRandomness(3, "product", parts)
    product = uniform_noise(2.5, MILLION, randomness)
    for _ in range(parts):
        product = product * scale_factors(parts, MILLION, randomness)
    assert stats.kstest(product.numpy(), "norm", (0, 2.5)).pvalue > SIGNIFICANCE


def test_the_product_of_three_noise_parts_and_three_factors_is_normal():
    randomness = SeededRandomness(4)
    product = torch.ones(100_000, dtype=torch.float64)
    for _ in range(3):
        product = product * split_noise(0.7, 3, 100_000, randomness) * scale_factors(3, 100_000, randomness)
    assert stats.kstest(product.numpy(), "norm", (0, 0.7)).pvalue > SIGNIFICANCE


def test_a_single_half_is_not_enough():
    """The test above has teeth: with one DN*(2) only, the product is visibly not normal."""
    randomness = SeededRandomness(5)
    product = uniform_noise(1.0, 100_000, randomness) * scale_factors(2, 100_000, randomness)
    assert stats.kstest(product.numpy(), "norm", (0, 1.0)).pvalue < 1e-12


def test_tabulated_quantiles_of_one_part_are_those_of_chi_3():
    """DN*(1) has a closed form, which the table does not use: x^2 is gamma distributed with shape 3/2."""
    low = np.logspace(-15.5, math.log10(0.5), 400)
    table = quantile_table(1)
    assert np.abs(np.exp(table.log_quantile(low)) / np.sqrt(special.gammaincinv(1.5, low)) - 1).max() < 1e-9
    high = np.logspace(-12, math.log10(0.5), 400)
    exact = np.sqrt(special.gammainccinv(1.5, 1 - (1 - high)))
    # Beyond 1 - 1e-4 the probability itself has fewer digits than the quantile.
    error = np.abs(np.exp(table.log_quantile(1 - high)) / exact - 1)
    assert error[high > 1e-4].max() < 1e-9
    assert error.max() < 1e-6


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 4), st.floats(-1.0, 8.0))
def test_moments_of_the_quantile_function_agree_with_theory(parts, power):
    """The integral of x(p)^s over p, with p = expit(l) so that the tails are resolved, without random numbers."""
    logit = np.linspace(-37, 36, 8001)
    probability, density = special.expit(logit), special.expit(logit) * special.expit(-logit)
    got = np.trapezoid(np.exp(power * quantile_table(parts).log_quantile(probability)) * density, logit)
    assert abs(got / math.exp(log_moment(parts, power)) - 1) < 1e-9


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 4), st.floats(1e-15, 0.999999), st.floats(1e-15, 0.999999))
def test_quantiles_grow_with_the_probability(parts, first, second):
    low, high = sorted((first, second))
    if high > low * (1 + 1e-6):
        values = quantile_table(parts).log_quantile(np.array([low, high]))
        assert values[0] < values[1]


def test_two_parts_follow_the_papers_series():
    generator = np.random.default_rng(1)
    drawn = scale_factors(2, 200_000, SeededRandomness(6)).numpy()
    assert stats.ks_2samp(drawn, by_series(2, 20_000, generator)).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_sample_moments_of_scale_factors_agree_with_theory(parts):
    drawn = scale_factors(parts, MILLION, SeededRandomness(7, parts)).numpy()
    assert drawn.min() > 0
    for power in (-1.0, 1.0, 2.0):
        spread = math.sqrt(math.exp(log_moment(parts, 2 * power)) - math.exp(2 * log_moment(parts, power)))
        assert abs((drawn**power).mean() - math.exp(log_moment(parts, power))) < 5 * spread / 1000


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_parts_of_split_noise_multiply_to_uniform_noise(parts):
    randomness = SeededRandomness(8, parts)
    product = torch.ones(50_000, dtype=torch.float64)
    for _ in range(parts):
        product = product * split_noise(1.5, parts, 50_000, randomness)
    bound = math.sqrt(2) * 1.5
    assert stats.kstest(product.numpy(), "uniform", (-bound, 2 * bound)).pvalue > SIGNIFICANCE


def test_uniform_noise_has_two_thirds_of_the_variance():
    drawn = uniform_noise(3.0, MILLION, SeededRandomness(9))
    assert abs(float(drawn.var()) / 6.0 - 1) < 0.005
    assert float(drawn.abs().max()) <= math.sqrt(2) * 3.0


def test_draws_are_repeatable_and_streams_differ():
    first, again = (scale_factors(2, 100, SeededRandomness(1, "a")) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, scale_factors(2, 100, SeededRandomness(1, "b")))


@pytest.mark.parametrize("sigma", [-1.0, math.nan, math.inf])
def test_noise_levels_that_make_no_sense_are_refused(sigma):
    with pytest.raises(PlanError, match="sigma"):
        uniform_noise(sigma, 3, SeededRandomness(0))
    with pytest.raises(PlanError, match="sigma"):
        split_noise(sigma, 2, 3, SeededRandomness(0))


@pytest.mark.parametrize("parts", [0, 9])
def test_numbers_of_parts_that_make_no_sense_are_refused(parts):
    with pytest.raises(PlanError, match="between 1 and 8"):
        scale_factors(parts, 3, SeededRandomness(0))
