"""PSNR, SSIM and relative error on cases with known answers."""

from __future__ import annotations

import math

import pytest
import torch

from bilateral.audit.image_metrics import (
    LARGEST_PSNR,
    ValueRange,
    condition,
    psnr,
    relative_error,
    score_best,
    score_sample,
    ssim,
)
from bilateral.audit.scores import INPUT_ERROR, PSNR, RECONSTRUCTED, SSIM


def test_psnr_of_a_constant_error_is_its_size_in_decibels():
    image = torch.full((1, 8, 8), 0.5)
    assert psnr(image + 0.1, image) == pytest.approx(20.0, abs=1e-4)
    assert psnr(image, image) == LARGEST_PSNR


@pytest.mark.parametrize("size", [4, 7, 8, 32])
def test_ssim_is_one_for_equal_images_of_any_size_and_low_for_noise(size):
    generator = torch.Generator().manual_seed(0)
    image, noise = torch.rand(2, 3, size, size, generator=generator)
    assert ssim(image, image) == pytest.approx(1.0)
    assert ssim(noise, image) < 0.5


def test_values_go_back_to_zero_and_one_whatever_the_standardisation():
    raw = torch.rand(50, 2, 8, 8)
    raw[0], raw[1] = 0.0, 1.0
    standardised = (raw - 0.3) / torch.tensor([0.2, 0.5])[:, None, None]
    torch.testing.assert_close(ValueRange.of(standardised).to_unit(standardised[5]), raw[5], rtol=1e-4, atol=1e-5)


def test_clamping_keeps_guesses_finite_and_inside():
    bounds = ValueRange(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 2.0]))
    assert bounds.clamp(torch.tensor([math.nan, 5.0])).tolist() == [0.5, 2.0]


def test_images_are_scored_by_psnr_ssim_and_success_and_tables_by_relative_error():
    image, bounds = torch.rand(1, 8, 8), ValueRange(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    assert set(score_sample(image, image, bounds)) == {PSNR, SSIM, RECONSTRUCTED}
    row = torch.tensor([3.0, 4.0])
    assert score_sample(torch.tensor([3.0, 5.0]), row, bounds) == {INPUT_ERROR: pytest.approx(0.2)}
    assert relative_error(row * 1e9, row) == 10.0


def test_the_best_candidate_counts_and_trials_are_gathered_by_metric():
    bounds = ValueRange(torch.zeros(2), torch.ones(2))
    truth = torch.tensor([1.0, 0.0])
    best = score_best(torch.tensor([[0.0, 0.0], [1.0, 0.1]]), truth, bounds)
    assert best[INPUT_ERROR] == pytest.approx(0.1)
    gathered = condition("two", [best, {INPUT_ERROR: 0.3}])
    assert gathered.scores[0].values == (pytest.approx(0.1), 0.3)
