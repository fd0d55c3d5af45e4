"""Subsets and scaling: proportions are kept, statistics come from the train split."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.data.sampling import hold_out, limit, standardise, stratified_indices
from bilateral.errors import DataError


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.data(), st.integers(0, 99))
def test_stratified_subset_keeps_every_share_up_to_rounding(labels, data, seed):
    labels = np.array(labels)
    count = data.draw(st.integers(1, len(labels)))
    chosen = stratified_indices(labels, count, seed)
    assert len(chosen) == count == len(set(chosen.tolist()))
    assert np.all(np.diff(chosen) > 0)
    for label in np.unique(labels):
        share = count * np.mean(labels == label)
        assert abs(np.sum(labels[chosen] == label) - share) <= len(np.unique(labels)) / 2 + 1


def test_subset_of_balanced_classes_is_balanced():
    chosen = stratified_indices(np.repeat(np.arange(10), 50), 30, seed=0)
    assert np.bincount(chosen // 50).tolist() == [3] * 10


def test_subset_depends_on_the_seed_and_on_nothing_else():
    labels = np.repeat(np.arange(4), 25)
    first = stratified_indices(labels, 20, 1)
    assert first.tolist() == stratified_indices(labels, 20, 1).tolist()
    assert first.tolist() != stratified_indices(labels, 20, 2).tolist()


def test_hold_out_is_a_stratified_80_20_split_without_overlap():
    labels = np.repeat([0, 1], [80, 20])
    train, test = hold_out(labels, seed=0)
    assert sorted([*train, *test]) == list(range(100))
    assert np.bincount(labels[test]).tolist() == [16, 4]
    with pytest.raises(DataError, match="got 2"):
        hold_out(np.zeros(2), seed=0)


@pytest.mark.parametrize("count", [0, -1, 11, 2.5, "3"])
def test_impossible_limits_are_refused(count):
    with pytest.raises(DataError, match="num_train between 1 and 10"):
        limit(np.zeros(10), count, "num_train", 0)


def test_standardise_uses_train_statistics_and_only_centres_constants():
    train = torch.tensor([[1.0, 0.1], [3.0, 0.1], [5.0, 0.1]])
    test = torch.tensor([[3.0, 0.2]])
    scaled_train, scaled_test = standardise(train, test)
    assert torch.allclose(scaled_train[:, 0], (train[:, 0] - 3) / train[:, 0].std(correction=0))
    assert scaled_train[:, 1].abs().max() < 1e-6
    assert torch.allclose(scaled_test, torch.tensor([[0.0, 0.1]]))
