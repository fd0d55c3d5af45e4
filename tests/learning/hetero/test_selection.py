"""Each strategy against its definition, written as slow loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.learning.hetero.selection import (
    cluster_balanced,
    clusters_of,
    entropies,
    k_center,
    margins,
    select,
)


def _rows(count, width, seed):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def _select(strategy, count, logits, features=None, seed=0):
    features = logits if features is None else features
    return select(
        strategy,
        count,
        logits=logits,
        features=features,
        known_features=features[:1] + 0.5,
        generator=torch.Generator().manual_seed(seed),
    )


@settings(max_examples=30, deadline=None)
@given(
    strategy=st.sampled_from(["random", "margin", "entropy", "k-center", "icd"]),
    count=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_every_strategy_picks_that_many_different_queries(strategy, count, seed):
    picked = _select(strategy, count, _rows(25, 4, seed), seed=seed)
    assert len(picked) == min(count, 25)
    assert len(set(picked.tolist())) == len(picked)
    assert set(picked.tolist()) <= set(range(25))


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 20), seed=st.integers(0, 1000))
def test_margin_picks_the_smallest_differences_of_the_two_highest_probabilities(count, seed):
    logits = _rows(20, 5, seed).double()
    slow = []
    for row in logits.tolist():
        total = sum(math.exp(value) for value in row)
        first, second = sorted((math.exp(value) / total for value in row), reverse=True)[:2]
        slow.append(first - second)
    assert margins(logits).tolist() == pytest.approx(slow)
    expected = sorted(range(20), key=lambda index: slow[index])[:count]
    assert _select("margin", count, logits).tolist() == expected


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 20), seed=st.integers(0, 1000))
def test_entropy_picks_the_highest_entropies(count, seed):
    logits = _rows(20, 5, seed).double()
    slow = []
    for row in logits.tolist():
        total = sum(math.exp(value) for value in row)
        slow.append(-sum(math.exp(v) / total * math.log(math.exp(v) / total) for v in row))
    assert entropies(logits).tolist() == pytest.approx(slow)
    assert _select("entropy", count, logits).tolist() == sorted(range(20), key=lambda i: -slow[i])[:count]


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 15), known=st.integers(1, 5), seed=st.integers(0, 1000))
def test_k_center_picks_the_farthest_row_every_time(count, known, seed):
    features, have = _rows(15, 3, seed).double(), _rows(known, 3, seed + 1).double()
    centres, expected = list(have), []
    for _ in range(count):
        distances = [
            -1.0 if index in expected else min(math.dist(row.tolist(), centre.tolist()) for centre in centres)
            for index, row in enumerate(features)
        ]
        expected.append(max(range(15), key=lambda index: distances[index]))
        centres.append(features[expected[-1]])
    assert k_center(features, have, count).tolist() == expected


def test_k_center_never_picks_a_row_twice_even_among_equal_rows():
    picked = k_center(torch.ones(6, 2), torch.ones(1, 2), 6)
    assert sorted(picked.tolist()) == list(range(6))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 40), num_clusters=st.integers(1, 6))
def test_icd_keeps_the_clusters_shares_and_takes_the_lowest_margins_of_each(seed, count, num_clusters):
    generator = torch.Generator().manual_seed(seed)
    clusters = torch.randint(num_clusters, (40,), generator=generator)
    scores = torch.rand(40, generator=generator)
    picked = cluster_balanced(scores, clusters, count).tolist()
    assert len(set(picked)) == count
    for cluster in range(num_clusters):
        members = [index for index in range(40) if clusters[index] == cluster]
        mine = [index for index in picked if clusters[index] == cluster]
        assert abs(len(mine) - count * len(members) / 40) < 1  # its share, rounded either way
        assert set(mine) == set(sorted(members, key=lambda index: float(scores[index]))[: len(mine)])


def test_clusters_are_those_that_anyone_would_see():
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]).repeat_interleave(8, 0)
    found = clusters_of(centres + 0.1 * _rows(24, 2, 0), 3, torch.Generator().manual_seed(1))
    groups = [set(found[start : start + 8].tolist()) for start in (0, 8, 16)]
    assert all(len(group) == 1 for group in groups)
    assert len(set.union(*groups)) == 3
