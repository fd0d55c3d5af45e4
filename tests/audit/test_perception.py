"""The perceptual distance: nothing between equals, more the more an image is spoilt, and in the order of SSIM."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr

from bilateral.audit.image_metrics import ssim
from bilateral.audit.perception import train_perception
from bilateral.data import load_dataset
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def public():
    return load_dataset("digits", None).test


@pytest.fixture(scope="module")
def perception(public):
    return train_perception(public, SeededRandomness(0, "test"))


def spoilt(image, how, strength):
    if how == "noise":
        return image + strength * torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    blurred = F.avg_pool2d(F.pad(image[None], (1, 1, 1, 1), mode="replicate"), 3, 1)[0]
    return image + strength * (blurred - image)


@pytest.mark.parametrize("how", ["noise", "blur"])
def test_the_more_an_image_is_spoilt_the_further_it_is(public, perception, how):
    for image in public.inputs[:5].float():
        found = [perception(spoilt(image, how, strength), image) for strength in (0.0, 0.2, 0.5, 1.0)]
        assert found[0] == 0
        assert found == sorted(found)


def test_it_orders_spoilt_images_nearly_as_ssim_does(public, perception):
    images = public.inputs[:12].float()
    low, high = images.min(), images.max()
    pairs = [
        (perception(bad, image), ssim(((bad - low) / (high - low)).clamp(0, 1), (image - low) / (high - low)))
        for image in images
        for how in ("noise", "blur")
        for strength in (0.1, 0.3, 0.6, 1.0)
        for bad in (spoilt(image, how, strength),)
    ]
    assert spearmanr(*zip(*pairs, strict=True)).statistic < -0.8


def test_the_same_seed_trains_the_same_network(public):
    first, second = (train_perception(public, SeededRandomness(1), steps=3) for _ in range(2))
    assert first(public.inputs[0], public.inputs[1]) == second(public.inputs[0], public.inputs[1])
