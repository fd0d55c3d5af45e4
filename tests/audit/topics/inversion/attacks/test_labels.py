"""Labels from the head's gradient, one sample and several, both losses, with and without a bias."""

from __future__ import annotations

import pytest
import torch
from tests.audit.topics.inversion.attacks.inversion_bed import Bed, mlp

from bilateral.audit.topics.inversion.attacks.labels import read_label, read_labels_of_sum

torch.set_num_threads(1)


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_the_label_of_one_sample_is_read(loss):
    bed = Bed(mlp(), (6,), loss, count=12)
    assert [read_label(bed.model, bed.parameters, gradient) for gradient in bed.gradients] == bed.labels.tolist()


def test_the_label_of_one_sample_is_read_without_a_bias():
    bed = Bed(mlp(bias=False), (6,), "ce", count=12)
    assert [read_label(bed.model, bed.parameters, gradient) for gradient in bed.gradients] == bed.labels.tolist()


def test_a_random_gradient_has_labels_at_random():
    bed = Bed(mlp(), (6,), "ce", count=40)
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(bed.gradients.shape, generator=generator)
    read = torch.tensor([read_label(bed.model, bed.parameters, gradient) for gradient in noise])
    assert float((read == bed.labels).float().mean()) < 0.6


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_labels_of_a_sum_are_counted(loss, bias):
    bed = Bed(mlp(bias=bias), (6,), loss, count=6)
    read = read_labels_of_sum(bed.model, bed.parameters, bed.gradient(slice(None)), 6, torch.rand(200, 6))
    wrong = (torch.bincount(read, minlength=4) - torch.bincount(bed.labels, minlength=4)).abs().sum() / 2
    assert len(read) == 6
    assert wrong <= 1
