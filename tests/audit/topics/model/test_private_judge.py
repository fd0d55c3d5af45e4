"""The evaluation network tells classes of the private data apart."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.scores import FEATURE_MSE
from bilateral.audit.topics.model.private_judge import ATTACK_ACCURACY, CONFIDENCE, NEAREST_MSE, PrivateJudge
from bilateral.data import Split, load_dataset
from bilateral.randomness import SeededRandomness


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.fixture(scope="module")
def judge(digits):
    return PrivateJudge.train(digits.train, 10, SeededRandomness(1), steps=300)


def figures(scores):
    return {one.metric: one.mean for one in scores}


def test_unseen_images_of_a_class_score_better_than_images_of_another(digits, judge):
    assert judge.accuracy(digits.test) > 0.93
    images, labels = digits.test.inputs[:100], digits.test.targets[:100]
    right, wrong = figures(judge.scores(images, labels)), figures(judge.scores(images, (labels + 1) % 10))
    assert right[ATTACK_ACCURACY] > 0.9 and wrong[ATTACK_ACCURACY] < 0.05
    assert right[CONFIDENCE] > 0.8 and wrong[CONFIDENCE] < 0.1
    assert right[FEATURE_MSE] < 0.5 * wrong[FEATURE_MSE]
    assert right[NEAREST_MSE] < 0.5 * wrong[NEAREST_MSE]


def test_a_private_image_is_its_own_nearest(digits, judge):
    image, label = digits.train.inputs[5], int(digits.train.targets[5])
    found, distance = judge.nearest(image, label)
    assert torch.equal(found, image) and distance == 0.0
    other, far = judge.nearest(image, (label + 1) % 10)
    assert not torch.equal(other, image) and far > 0.1


def test_larger_images_are_judged_too():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 2
    inputs = torch.rand(60, 3, 24, 20, generator=generator) + labels[:, None, None, None].float()
    judge = PrivateJudge.train(Split(inputs, labels), 2, SeededRandomness(1), steps=30)
    assert figures(judge.scores(inputs[:8], labels[:8]))[ATTACK_ACCURACY] == 1.0
