"""PSNR, SSIM and relative error on cases with known answers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bilateral.audit.image_metrics import (
    LARGEST_PSNR,
    Ruler,
    ValueRange,
    condition,
    head_inputs,
    psnr,
    relative_error,
    ssim,
)
from bilateral.audit.scores import FEATURE_MSE, INPUT_ERROR, PSNR, RECONSTRUCTED, SSIM, TEST_MSE


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


def network(width=16):
    """Flat images of 8x8 to `width` features, half of them dead, to three outputs."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))
    with torch.no_grad():
        layers[1].bias[: width // 2] = -1e3
    return layers


def ruler(public):
    return Ruler.of(ValueRange.of(public), network(), "3", public)


def test_images_are_scored_by_five_metrics_and_tables_by_relative_error():
    public = torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    measure, image, other = ruler(public), public[0], public[1]
    same, apart = measure.score(image, image), measure.score(other, image)
    assert list(same) == [PSNR, SSIM, RECONSTRUCTED, TEST_MSE, FEATURE_MSE]
    assert same[PSNR] == LARGEST_PSNR
    assert same[TEST_MSE] == same[FEATURE_MSE] == 0.0
    assert apart[TEST_MSE] == pytest.approx(float((other - image).square().mean()), rel=1e-6)
    row = torch.tensor([3.0, 4.0])
    assert measure.score(torch.tensor([3.0, 5.0]), row) == {INPUT_ERROR: pytest.approx(0.2)}
    assert relative_error(row * 1e9, row) == 10.0


def test_unrelated_images_are_two_variances_apart_in_pixels_and_in_features():
    public = torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    measure = ruler(public)
    scores = [measure.score(public[i], public[i + 150]) for i in range(150)]
    assert sum(one[TEST_MSE] for one in scores) / 150 == pytest.approx(2.0, abs=0.2)
    assert sum(one[FEATURE_MSE] for one in scores) / 150 == pytest.approx(2.0 / 2, abs=0.2)  # the dead half is 0


def test_features_are_what_the_head_sees_and_no_hook_is_left():
    layers, images = network(), torch.rand(5, 1, 8, 8)
    found = head_inputs(layers, "3", images)
    assert torch.allclose(found.float(), torch.relu(layers[1](images.flatten(1))))
    assert not layers[3]._forward_pre_hooks


def test_a_guess_that_is_no_number_is_scored_as_the_middle_of_the_range():
    public = torch.rand(20, 1, 8, 8)
    scores = ruler(public).score(torch.full((1, 8, 8), math.nan), public[0])
    assert all(math.isfinite(value) for value in scores.values())


def test_the_best_candidate_counts_and_trials_are_gathered_by_metric():
    public = torch.rand(20, 1, 8, 8)
    truth = torch.tensor([1.0, 0.0])
    best = ruler(public).score_best(torch.tensor([[0.0, 0.0], [1.0, 0.1]]), truth)
    assert best[INPUT_ERROR] == pytest.approx(0.1)
    gathered = condition("two", [best, {INPUT_ERROR: 0.3}])
    assert gathered.scores[0].values == (pytest.approx(0.1), 0.3)
