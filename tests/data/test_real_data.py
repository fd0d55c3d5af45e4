"""The real public sets, where they are at hand."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from bilateral.data import load_dataset, partition
from bilateral.errors import MissingDataError
from bilateral.randomness import SeededRandomness


def load_or_skip(name, data_dir, **options):
    try:
        return load_dataset(name, data_dir, **options)
    except MissingDataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("name", "shape", "num_outputs"),
    [
        ("cifar10", (3, 32, 32), 10),
        ("cifar100", (3, 32, 32), 100),
        ("svhn", (3, 32, 32), 10),
        ("mnist", (1, 28, 28), 10),
        ("ham10000", (3, 64, 64), 7),
        ("breakhis", (3, 64, 64), 2),
        ("aptos", (3, 64, 64), 1),
    ],
)
def test_real_images_load(data_dir, name, shape, num_outputs):
    dataset = load_or_skip(name, data_dir, num_train=200, num_test=100)
    assert (dataset.input_shape, dataset.num_outputs) == (shape, num_outputs)
    assert (len(dataset.train), len(dataset.test)) == (200, 100)
    assert dataset.train.inputs.mean().abs() < 1e-3


def test_ham10000_is_a_natural_federation(data_dir):
    dataset = load_or_skip("ham10000", data_dir, num_train=400, num_test=50)
    shares = partition(dataset.train, "site", None, SeededRandomness(0))
    assert [share.name for share in shares] == ["rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias"]


def test_bank_marketing_is_harder_without_the_giveaway_column(data_dir):
    options = {"task": "classification", "num_train": 4000, "num_test": 4000}
    scores = {}
    for with_duration in (False, True):
        dataset = load_or_skip("bank-marketing", data_dir, with_duration=with_duration, **options)
        scores[with_duration] = area_under_curve(dataset)
    assert 0.74 < scores[False] < 0.84
    assert scores[True] > 0.9


def test_heart_disease_of_four_hospitals_can_be_learned(data_dir):
    dataset = load_or_skip("heart-disease", data_dir)
    assert len(dataset.train) + len(dataset.test) == 920
    shares = partition(dataset.train, "site", 4, SeededRandomness(0))
    assert [share.name for share in shares] == ["cleveland", "hungarian", "switzerland", "va"]
    assert area_under_curve(dataset) > 0.8


def area_under_curve(dataset) -> float:
    """The share of (positive, negative) test pairs that a logistic regression puts in the right order."""
    model = LogisticRegression(max_iter=200).fit(dataset.train.inputs.numpy(), dataset.train.targets.numpy())
    scores = torch.from_numpy(model.decision_function(dataset.test.inputs.numpy()))
    positive, negative = scores[dataset.test.targets == 1], scores[dataset.test.targets == 0]
    return float((positive[:, None] > negative).double().mean())
