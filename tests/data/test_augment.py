"""Augmentation against an obvious loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bilateral.data import random_flip_crop
from bilateral.errors import DataError


def all_variants(image, padding):
    """Every crop of the padded image, mirrored and not, by slicing."""
    height, width = image.shape[1:]
    padded = F.pad(image, (padding,) * 4)
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[:, top : top + height, left : left + width]
            yield crop
            yield crop.flip(2)


def test_every_result_is_one_of_the_crops_of_its_own_image():
    inputs = torch.rand(20, 2, 5, 7, generator=torch.Generator().manual_seed(0))
    outputs = random_flip_crop(inputs, torch.Generator().manual_seed(1), padding=2)
    assert outputs.shape == inputs.shape
    for image, output in zip(inputs, outputs, strict=True):
        assert any(torch.equal(output, variant) for variant in all_variants(image, 2))


def test_images_move_independently_and_about_half_are_mirrored():
    inputs = torch.arange(4.0).repeat(400, 1, 1, 1)
    outputs = random_flip_crop(inputs, torch.Generator().manual_seed(0), padding=0)
    mirrored = (outputs[:, 0, 0, 0] == 3.0).float().mean()
    assert 0.4 < mirrored < 0.6


def test_the_generator_alone_decides():
    inputs = torch.rand(8, 3, 6, 6)
    first = random_flip_crop(inputs, torch.Generator().manual_seed(3))
    assert torch.equal(first, random_flip_crop(inputs, torch.Generator().manual_seed(3)))


def test_vectors_and_negative_padding_are_refused():
    with pytest.raises(DataError, match=r"got \[4, 10\]"):
        random_flip_crop(torch.zeros(4, 10), torch.Generator())
    with pytest.raises(DataError, match="got -1"):
        random_flip_crop(torch.zeros(1, 1, 2, 2), torch.Generator(), padding=-1)
