"""Scores of two neighbouring worlds, against densities that are known in another way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from bilateral.audit.topics.noise.attacks.distinguishing import (
    gaussian_log_ratio,
    outside_support,
    projection,
    sampled_log_ratio,
    uniform_sum_log_ratio,
)


def test_the_gaussian_log_ratio_is_that_of_the_densities():
    residual = torch.randn(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shift, deviations = torch.tensor([0.5, -1.0, 0.1]).double(), torch.tensor([1.0, 2.0, 0.3]).double()
    columns = [
        stats.norm.logpdf(residual[k], shift[k], deviations[k]) - stats.norm.logpdf(residual[k], 0, deviations[k])
        for k in range(3)
    ]
    np.testing.assert_allclose(gaussian_log_ratio(residual, shift, deviations), sum(columns), rtol=1e-10)


def test_a_unit_that_is_used_seldom_has_the_log_ratio_of_the_mixture():
    log_ratio = torch.tensor([-3.0, 0.0, 2.0, 50.0]).double()
    expected = torch.log(0.9 + 0.1 * torch.exp(log_ratio))
    torch.testing.assert_close(sampled_log_ratio(log_ratio, 0.1), expected)
    torch.testing.assert_close(sampled_log_ratio(log_ratio, 1.0), log_ratio)


def test_one_and_two_uniform_numbers_have_their_densities():
    """One: a box, so that the ratio is 0 or infinite. Two: a triangle."""
    residual, shift = torch.tensor([-0.9, 0.0, 0.9, 1.2, 2.3]).double(), torch.full((5,), 0.5).double()
    box = uniform_sum_log_ratio(residual, shift, 1.0, 1)
    assert box.tolist() == [-math.inf, 0.0, 0.0, math.inf, 0.0]  # the last is possible in neither world
    triangle = uniform_sum_log_ratio(residual[:4], shift[:4], 1.0, 2)
    expected = [math.log((2 - abs(float(x) - 0.5)) / (2 - abs(float(x)))) for x in residual[:4]]
    np.testing.assert_allclose(triangle, expected, rtol=1e-9)


@pytest.mark.parametrize("count", [5, 29, 40])
def test_many_uniform_numbers_have_nearly_the_normal_ratio_in_the_middle(count):
    residual, shift = torch.linspace(-1, 1, 9).double(), torch.full((9,), 0.3).double()
    deviation = torch.tensor([math.sqrt(count / 3)]).double()
    normal = gaussian_log_ratio(residual[None], shift[:1], deviation)
    assert float((uniform_sum_log_ratio(residual, shift, 1.0, count) - normal).abs().max()) < 0.05


def test_the_support_test_is_never_wrong_and_silent_inside():
    generator = torch.Generator().manual_seed(1)
    noise = 2 * torch.rand(10_000, generator=generator, dtype=torch.float64) - 1
    shift = torch.full_like(noise, 0.4)
    inside, outside = outside_support(noise + shift, shift, 1.0), outside_support(noise, shift, 1.0)
    assert not bool(torch.isneginf(inside).any())
    assert not bool(torch.isposinf(outside).any())
    assert float(torch.isposinf(inside).double().mean()) == pytest.approx(0.2, abs=0.02)
    assert outside_support(noise, torch.zeros_like(noise), 1.0).abs().sum() == 0


def test_the_projection_finds_what_was_added_and_nothing_else():
    shift = torch.tensor([3.0, 4.0]).double()
    noise = 0.1 * torch.randn(2, 1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert float(projection(noise + shift[:, None], shift).mean()) == pytest.approx(1, abs=0.01)
    across = torch.tensor([[-4.0], [3.0]]).double()
    assert float(projection(noise + across, shift).mean()) == pytest.approx(0, abs=0.01)
