"""Every index in exactly one share, whatever the numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.data import Split, partition, partition_by_site, partition_dirichlet, partition_iid
from bilateral.errors import DataError
from bilateral.randomness import SecureRandomness, SeededRandomness

seeds = st.integers(0, 2**32)


def assert_exact_cover(shares, num_samples):
    assert sorted(torch.cat(list(shares)).tolist()) == list(range(num_samples))
    assert all(len(share) for share in shares)
    assert all(share.dtype == torch.int64 for share in shares)
    assert all(bool((share.diff() > 0).all()) for share in shares)


def labelled(num_samples, num_classes=3, sites=None):
    return Split(torch.zeros(num_samples, 2), torch.arange(num_samples) % num_classes, sites)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 200), seeds)
def test_iid_uses_each_index_once_in_nearly_equal_shares(data, num_samples, seed):
    num_clients = data.draw(st.integers(1, num_samples))
    shares = partition_iid(num_samples, num_clients, SeededRandomness(seed))
    assert_exact_cover(shares, num_samples)
    sizes = [len(share) for share in shares]
    assert len(sizes) == num_clients
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), seeds)
def test_iid_shares_follow_the_proportions(weights, seed):
    shares = partition_iid(2000, len(weights), SeededRandomness(seed), weights)
    assert_exact_cover(shares, 2000)
    for share, weight in zip(shares, weights, strict=True):
        assert abs(len(share) - 2000 * weight / sum(weights)) <= 1 + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=30, max_size=150),
    st.integers(1, 4),
    st.floats(0.5, 100),
    st.integers(1, 2),
    seeds,
)
def test_dirichlet_uses_each_index_once_and_keeps_the_minimum(labels, num_clients, alpha, minimum, seed):
    shares = partition_dirichlet(torch.tensor(labels), num_clients, alpha, SeededRandomness(seed), minimum)
    assert len(shares) == num_clients
    assert_exact_cover(shares, len(labels))
    assert min(len(share) for share in shares) >= minimum


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["oslo", "rome", "lyon"]), min_size=1, max_size=60))
def test_by_site_uses_each_index_once_under_its_own_site(sites):
    shares = partition_by_site(sites)
    assert_exact_cover([share.indices for share in shares], len(sites))
    assert [share.name for share in shares] == sorted(set(sites))
    for share in shares:
        assert {sites[index] for index in share.indices.tolist()} == {share.name}


def test_small_alpha_is_skewed_and_large_alpha_is_even():
    labels = torch.arange(1000) % 2
    even = partition_dirichlet(labels, 4, 1e4, SeededRandomness(0))
    assert all(225 < len(share) < 275 for share in even)
    skewed = partition_dirichlet(labels, 4, 0.1, SeededRandomness(0))
    shares_of_class_1 = [labels[share].float().mean() for share in skewed]
    assert max(shares_of_class_1) - min(shares_of_class_1) > 0.5


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_the_same_randomness_gives_the_same_shares(kind):
    draws = [partition(labelled(60), kind, 3, SeededRandomness(seed)) for seed in (5, 5, 6)]
    lists = [[share.indices.tolist() for share in shares] for shares in draws]
    assert lists[0] == lists[1] != lists[2]
    assert [share.name for share in draws[0]] == ["client-1", "client-2", "client-3"]
    assert_exact_cover([s.indices for s in partition(labelled(60), kind, 3, SecureRandomness())], 60)


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
@pytest.mark.parametrize("num_clients", [11, 0, -1, None])
def test_impossible_numbers_of_clients_are_refused(kind, num_clients):
    with pytest.raises(DataError, match="number of clients between 1 and 10"):
        partition(labelled(10), kind, num_clients, SeededRandomness(0))


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_proportions_must_be_positive_and_one_per_client(weights):
    with pytest.raises(DataError, match="2 positive proportions"):
        partition(labelled(10), "iid", 2, SeededRandomness(0), proportions=weights)


def test_proportions_that_starve_a_client_are_refused():
    with pytest.raises(DataError, match="client 2 none of 10 samples"):
        partition_iid(10, 2, SeededRandomness(0), [1.0, 0.001])


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive_and_finite(alpha):
    with pytest.raises(DataError, match="alpha"):
        partition(labelled(10), "dirichlet", 2, SeededRandomness(0), alpha=alpha)


def test_a_minimum_that_cannot_be_reached_is_refused_with_a_remedy():
    with pytest.raises(DataError, match="min_samples between 1 and 5"):
        partition(labelled(10), "dirichlet", 2, SeededRandomness(0), min_samples=6)
    with pytest.raises(DataError, match=r"none of 100 draws with alpha 0.001.*Raise alpha"):
        partition_dirichlet(torch.zeros(20, dtype=torch.int64), 10, 0.001, SeededRandomness(0), 2)


def test_an_unknown_kind_is_refused_by_name():
    with pytest.raises(DataError, match='iid, dirichlet, site, got "random"'):
        partition(labelled(10), "random", 2, SeededRandomness(0))


def test_by_site_needs_sites_and_their_number():
    split = labelled(4, sites=("b", "a", "b", "a"))
    for num_clients in (None, 0, 2):
        shares = partition(split, "site", num_clients, SeededRandomness(0))
        assert [(share.name, share.indices.tolist()) for share in shares] == [("a", [1, 3]), ("b", [0, 2])]
    with pytest.raises(DataError, match=r"Expected 2 clients .*a, b.* got 3"):
        partition(split, "site", 3, SeededRandomness(0))
    with pytest.raises(DataError, match="got none"):
        partition(labelled(4), "site", None, SeededRandomness(0))


def test_dirichlet_on_regression_needs_few_distinct_targets():
    answers = Split(torch.zeros(40, 2), (torch.arange(40) % 2).float().unsqueeze(1))
    assert_exact_cover([s.indices for s in partition(answers, "dirichlet", 3, SeededRandomness(0))], 40)
    continuous = Split(torch.zeros(40, 2), torch.arange(40.0).unsqueeze(1))
    with pytest.raises(DataError, match="40 distinct regression targets"):
        partition(continuous, "dirichlet", 3, SeededRandomness(0))
