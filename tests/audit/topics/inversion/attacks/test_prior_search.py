"""The search in a prior's spaces: it stays where it says, chooses by what an attacker sees, and finds what is there."""

from __future__ import annotations

import pytest
import torch
from tests.audit.topics.inversion.attacks.inversion_bed import Bed, rectified
from torch import nn

from bilateral.audit.image_metrics import ValueRange
from bilateral.audit.topics.inversion.attacks.generative_prior import GenerativePrior
from bilateral.audit.topics.inversion.attacks.gradient_matching import Guesses, Heat, Problems
from bilateral.audit.topics.inversion.attacks.prior_search import SearchSettings, chosen_space, in_ball, search_prior

torch.set_num_threads(1)
BOUNDS = ValueRange(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
QUICK = SearchSettings((Heat(4, 20), Heat(1, 60)), 20)


def stripes() -> GenerativePrior:
    """Images of 8 x 8 made of 6 numbers: a prior that holds."""
    torch.manual_seed(0)
    parts = (nn.Linear(6, 12), nn.Sequential(nn.Linear(12, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8))))
    return GenerativePrior(nn.Identity(), parts, 6)


@pytest.fixture(scope="module")
def found():
    bed, prior = Bed(rectified(), (1, 8, 8)), stripes()
    for part in prior.parts:
        part.requires_grad_(requires_grad=False)
    torch.manual_seed(5)
    latents = torch.randn(3, 6)
    bed.samples = prior.decoded(latents)
    gradients = torch.stack([bed.gradient(slice(i, i + 1)) for i in range(3)])
    return bed, prior, gradients


def guesses(bed, prior, gradients, settings=QUICK):
    problems = Problems(bed.repeated_parameters(3), gradients, bed.targets[:, None])
    starts = torch.randn(3, 4, 1, 6, generator=torch.Generator().manual_seed(1))
    return search_prior(bed.model, problems, prior, starts, BOUNDS, settings)


def distance(bed, samples):
    return float((samples[:, 0] - bed.samples).square().mean())


def test_what_a_prior_can_make_is_found_under_noise_and_not_without_the_gradient(found):
    bed, prior, gradients = found
    noise = torch.randn(gradients.shape, generator=torch.Generator().manual_seed(2))
    noise *= gradients.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
    blind = distance(bed, guesses(bed, prior, noise).samples)
    assert distance(bed, guesses(bed, prior, gradients).samples) < 0.1 * blind
    assert distance(bed, guesses(bed, prior, gradients + noise).samples) < 0.5 * blind


def test_guesses_are_images_inside_the_range(found):
    samples = guesses(*found).samples
    assert samples.shape == (3, 1, 1, 8, 8)
    assert 0 <= float(samples.min()) <= float(samples.max()) <= 1


@pytest.mark.parametrize("radius", [0.0, 0.1, 2.0])
def test_a_point_in_a_ball_stays_and_one_outside_goes_to_its_surface(radius):
    middle, point = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    point[1] += 5
    kept = in_ball(point, middle, radius)
    assert torch.equal(kept[0], point[0])
    apart = (kept[1] - middle[1]).norm() / middle[1].norm()
    assert float(apart) == pytest.approx(radius, abs=1e-6)


def spaces(*losses):
    return [Guesses(torch.full((len(row), 1, 2), float(n)), torch.tensor(row)) for n, row in enumerate(losses)]


def test_the_space_that_matches_best_wins_and_with_known_noise_the_first_that_matches_as_well_as_the_truth():
    tried = spaces([0.5, 0.9, 0.5], [0.3, 0.8, float("nan")], [0.1, 0.7, 0.6])
    assert chosen_space(tried, 0.0).samples[:, 0, 0].tolist() == [2.0, 2.0, 0.0]
    noise = 1.0  # the truth's cosine is 1 / sqrt(2): a loss of 0.29
    assert chosen_space(tried, noise).samples[:, 0, 0].tolist() == [2.0, 2.0, 0.0]
    assert chosen_space(tried, 2.0).samples[:, 0, 0].tolist() == [0.0, 2.0, 0.0]
