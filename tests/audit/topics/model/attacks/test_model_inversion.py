"""The search finds what a model says about a class, and nothing where the model says nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from bilateral.audit.topics.model.attacks.generator import LATENT_SIZE, ImagePrior
from bilateral.audit.topics.model.attacks.model_inversion import SearchSettings, invert_classes
from bilateral.randomness import SeededRandomness

CLASSES = torch.arange(4)
QUICK = SearchSettings(steps=60, restarts=3)


def any_image_of_2x2():
    """A prior that knows nothing: every 2x2 image of pixels between 0 and 1, all equally real."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        generator = nn.Sequential(nn.Linear(LATENT_SIZE, 4), nn.Sigmoid(), nn.Unflatten(1, (1, 2, 2)))
    indifferent = nn.Sequential(nn.Flatten(), nn.Linear(4, 1), nn.Flatten(0)).requires_grad_(False)
    nn.init.zeros_(indifferent[1].weight)
    return ImagePrior(generator.requires_grad_(False), indifferent, (1, 2, 2))


def class_is_its_pixel(images):
    return images.flatten(1).double()


def says_nothing(images):
    return torch.zeros(len(images), 4, dtype=torch.float64) * images.sum()


def invert(outputs, classes=CLASSES, settings=QUICK, seed=1):
    return invert_classes(outputs, classes, any_image_of_2x2(), SeededRandomness(seed), settings)


def test_the_image_of_a_class_has_what_the_model_looks_for():
    found = invert(class_is_its_pixel)
    assert torch.equal(found.images.flatten(1).argmax(1), CLASSES)
    assert float(found.images.flatten(1).diagonal().min()) > 0.6
    assert float(found.confidences.min()) > 0.8


def test_a_model_that_says_nothing_gives_the_same_image_whatever_class_is_asked_for():
    found, other = invert(says_nothing), invert(says_nothing, classes=CLASSES.flip(0))
    assert torch.equal(found.images, other.images)
    assert torch.allclose(found.confidences, torch.full((4,), 0.25))


def test_asking_for_another_class_gives_another_image():
    found, other = invert(class_is_its_pixel), invert(class_is_its_pixel, classes=CLASSES.flip(0))
    assert torch.equal(other.images.flatten(1).argmax(1), CLASSES.flip(0))
    assert not torch.equal(found.images, other.images)


def test_the_size_of_the_outputs_does_not_matter():
    """Squared error leaves small outputs, cross entropy large ones: the attack is the same."""
    found, large = invert(class_is_its_pixel), invert(lambda images: 1000.0 * class_is_its_pixel(images) + 7.0)
    torch.testing.assert_close(found.images, large.images, rtol=1e-3, atol=1e-4)


def test_the_best_of_several_latents_is_chosen_by_the_attackers_own_loss():
    """Half of the latent space is a trap: the model's outputs are flat there. More restarts find a way out."""

    def with_a_trap(images):
        open_ = (images[:, 0, 0, 0] + images[:, 0, 0, 1] > 1.0).double()[:, None]
        return open_ * class_is_its_pixel(images)

    few = [invert(with_a_trap, settings=replace(QUICK, restarts=1), seed=seed).losses.mean() for seed in range(6)]
    many = [invert(with_a_trap, settings=replace(QUICK, restarts=8), seed=seed).losses.mean() for seed in range(6)]
    assert float(torch.stack(many).mean()) < float(torch.stack(few).mean())


def test_an_inversion_is_repeatable_and_depends_on_its_randomness():
    assert torch.equal(invert(class_is_its_pixel).images, invert(class_is_its_pixel).images)
    assert not torch.equal(invert(class_is_its_pixel).images, invert(class_is_its_pixel, seed=2).images)


def test_progress_is_told_at_every_step():
    told = []
    invert_classes(class_is_its_pixel, CLASSES, any_image_of_2x2(), SeededRandomness(1), QUICK, told.append)
    assert told == list(range(1, 61))
