"""Reading uploads through real-valued masks, where the answer is known."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.topics.masks.attacks.float_mask import (
    differences_of_terms,
    mask_deviation,
    matched_filter,
    relative_error,
)
from bilateral.protocols.messages import Upload


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def masked(terms, deviation, seed):
    return Upload(0, 8, terms + deviation * normal(*terms.shape, seed=seed), torch.zeros(0))


def test_the_filter_tells_uploads_apart_that_differ_by_more_than_the_mask():
    mine, other = normal(2, 500, seed=1), normal(2, 500, seed=2)
    size = float((mine - other).norm())
    scores = [matched_filter(masked(mine, 1.0, seed), mine, other, 1.0) for seed in range(3, 40)]
    assert sum(scores) / len(scores) == pytest.approx(size / 2, rel=0.05)
    assert min(scores) > 0 > max(matched_filter(masked(other, 1.0, s), mine, other, 1.0) for s in range(3, 40))


def test_the_filter_is_at_chance_under_a_huge_mask_and_between_equal_uploads():
    mine, other = normal(2, 500, seed=1), normal(2, 500, seed=2)
    right = sum(matched_filter(masked(mine, 1e6, seed), mine, other, 1e6) > 0 for seed in range(3, 203))
    assert 70 < right < 130
    assert matched_filter(masked(mine, 1.0, 3), mine, mine, 1.0) == 0


def test_differences_of_terms_lose_a_mask_that_all_terms_carry_and_no_other():
    terms, mask = normal(3, 50, seed=1), 1e3 * normal(1, 50, seed=2)
    truth = differences_of_terms(terms)
    assert relative_error(differences_of_terms(terms + mask), truth) < 1e-10
    assert relative_error(differences_of_terms(terms + 1e3 * normal(3, 50, seed=3)), truth) > 100


def test_the_mask_grows_with_the_neighbours_and_is_divided_by_the_weight():
    assert mask_deviation(1000.0, 4, 32) == pytest.approx(62.5)
