"""A prior learns what images are like; it needs no labels, and repeats itself."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.topics.inversion.attacks.generative_prior import GenerativePrior, train_generative_prior
from bilateral.data import load_dataset
from bilateral.errors import DataError
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", None).test.inputs.float()


@pytest.fixture(scope="module")
def prior(digits) -> GenerativePrior:
    return train_generative_prior(digits[:200], SeededRandomness(0, "test"), steps=150)


def test_it_is_nearer_to_images_that_it_never_saw_than_their_mean_is(digits, prior):
    unseen = digits[200:]
    error = (prior.decoded(prior.encoded(unseen)) - unseen).square().mean()
    assert float(error) < 0.75 * float((digits[:200].mean(0) - unseen).square().mean())


def test_it_is_small_and_keeps_to_the_range_of_public_images(digits, prior):
    drawn = prior.draw_images(50, SeededRandomness(1))
    assert prior.num_parameters < 300_000
    assert drawn.shape == (50, *digits.shape[1:])
    assert float(drawn.min()) >= float(digits[:200].min())
    assert float(drawn.max()) <= float(digits[:200].max())


def test_images_are_the_same_from_every_space_between_its_parts(prior):
    features = latents = SeededRandomness(2).normal(4, prior.latent_size).float()
    for number in range(len(prior.parts)):
        features = prior.next_features(features, number)
        torch.testing.assert_close(prior.decoded(features, number + 1), prior.decoded(latents))


def test_the_same_seed_makes_the_same_prior(digits):
    first, second = (train_generative_prior(digits[:40], SeededRandomness(3), steps=3) for _ in range(2))
    assert torch.equal(first.encoded(digits), second.encoded(digits))


@pytest.mark.parametrize("shape", [(1, 3, 7, 9), (5, 10)])
def test_what_are_no_images_is_refused(shape):
    with pytest.raises(DataError, match="public images"):
        train_generative_prior(torch.zeros(shape), SeededRandomness(0), steps=1)


def test_odd_sizes_and_colours_have_a_prior():
    images = torch.rand(8, 3, 13, 10)
    prior = train_generative_prior(images, SeededRandomness(0), steps=1)
    assert prior.decoded(prior.encoded(images)).shape == images.shape
