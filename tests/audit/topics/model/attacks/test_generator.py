"""The generator learns what public images look like, and nothing else."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.topics.model.attacks.generator import train_prior
from bilateral.errors import DataError
from bilateral.randomness import SeededRandomness

KINDS = torch.eye(6)[:, None, None, :].expand(6, 1, 6, 6).contiguous()
"""Six images: one bright column each."""


def bars(count=96):
    generator = torch.Generator().manual_seed(0)
    kinds = KINDS.repeat(count // 6, 1, 1, 1)
    return (kinds + 0.1 * torch.randn(kinds.shape, generator=generator)).clamp(0, 1)


def distances(images):
    """images x kinds"""
    return (images[:, None] - KINDS[None]).square().flatten(2).mean(2)


@pytest.fixture(scope="module")
def prior():
    return train_prior(bars(), SeededRandomness(1), steps=500)


def made_by(prior):
    return prior.generator(prior.draw_latents(200, SeededRandomness(2)))


def test_made_images_are_of_the_kinds_that_public_images_have(prior):
    found = distances(made_by(prior)).min(1)
    assert float(found.values.mean()) < 0.12  # the mean of all kinds is 0.14 from each of them
    assert len(torch.unique(found.indices)) >= 5


def test_the_critic_finds_public_images_more_real_than_noise(prior):
    noise = torch.rand(64, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    assert prior.critic(bars()).mean() > prior.critic(noise).mean()


def test_an_untrained_generator_knows_nothing():
    made = made_by(train_prior(bars(), SeededRandomness(1), steps=0))
    assert float(distances(made).min(1).values.mean()) > 0.2


@pytest.mark.parametrize("shape", [(3, 20, 28), (1, 8, 8), (2, 33, 17)])
def test_images_have_the_public_shape_and_range(shape):
    public = 4.0 * torch.rand(8, *shape, generator=torch.Generator().manual_seed(0)) - 1.0
    prior = train_prior(public, SeededRandomness(1), steps=2)
    made = prior.generator(prior.draw_latents(5, SeededRandomness(2)))
    assert made.shape == (5, *shape) and prior.critic(made).shape == (5,)
    assert made.min() >= public.min() and made.max() <= public.max()


def test_training_is_repeatable_and_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    one, two = (train_prior(bars(), SeededRandomness(1), steps=3) for _ in range(2))
    assert torch.equal(torch.rand(4), expected)
    latents = one.draw_latents(4, SeededRandomness(2))
    assert torch.equal(one.generator(latents), two.generator(latents))


def test_what_is_no_set_of_images_is_refused():
    with pytest.raises(DataError, match=r"public images.*\[7, 30\]"):
        train_prior(torch.zeros(7, 30), SeededRandomness(1), steps=1)
