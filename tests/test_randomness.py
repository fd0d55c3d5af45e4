"""Two sources of randomness: repeatable streams by label, fresh ones from the system, right distributions."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from bilateral.errors import ArgumentError
from bilateral.randomness import SecureRandomness, SeededRandomness

SOURCES = [SeededRandomness(7, "test"), SecureRandomness()]
SMALLEST_P = 1e-6


def test_same_path_gives_the_same_stream():
    one, two = SeededRandomness(3, "a", 1), SeededRandomness(3).child("a").child(1)
    assert one.random_bytes(100) == two.random_bytes(100)
    assert torch.equal(one.normal(50), two.normal(50))


def test_a_child_does_not_depend_on_what_its_parent_has_drawn():
    fresh, used = SeededRandomness(3), SeededRandomness(3)
    used.uniform(1000)
    used.child("other").uniform(10)
    assert torch.equal(fresh.child("x").uniform(20), used.child("x").uniform(20))


def test_different_paths_give_different_streams():
    paths = [(1,), (2,), (1, "a"), (1, "b"), (1, "a", "b"), (1, "ab"), (1, "1"), (1, 1), (1, 2), (1, "a", 1)]
    streams = {SeededRandomness(*path).random_bytes(32) for path in paths}
    assert len(streams) == len(paths)


def test_children_are_uncorrelated():
    children = torch.stack([SeededRandomness(0).child("round", k).normal(4000) for k in range(20)])
    correlations = torch.corrcoef(children) - torch.eye(20)
    assert float(correlations.abs().max()) < 5 / 4000**0.5


def test_secure_streams_are_fresh_even_with_equal_labels():
    source = SecureRandomness()
    assert source.child("a").random_bytes(32) != source.child("a").random_bytes(32)
    assert not torch.equal(source.uniform(8), source.uniform(8))


@pytest.mark.parametrize("source", SOURCES, ids=["seeded", "secure"])
def test_distributions(source):
    uniform = source.uniform(20_000, low=-2.0, high=3.0).numpy()
    assert uniform.min() >= -2.0
    assert uniform.max() < 3.0
    assert stats.kstest(uniform, stats.uniform(-2.0, 5.0).cdf).pvalue > SMALLEST_P
    assert stats.kstest(source.normal(20_000).numpy(), "norm").pvalue > SMALLEST_P
    logarithms = np.log(source.log_uniform(20_000, low=0.25, high=4.0).numpy())
    assert stats.kstest(logarithms, stats.uniform(np.log(0.25), np.log(16.0)).cdf).pvalue > SMALLEST_P
    signs = source.signs(20_000)
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert stats.binomtest(int((signs > 0).sum()), 20_000).pvalue > SMALLEST_P


@pytest.mark.parametrize("source", SOURCES, ids=["seeded", "secure"])
def test_shapes_and_types(source):
    for draw in (source.uniform(2, 3), source.normal(2, 3), source.signs(2, 3)):
        assert draw.shape == (2, 3)
        assert draw.dtype == torch.float64
    assert source.uniform().shape == ()
    assert source.uniform(0, 3).shape == (0, 3)
    assert source.permutation(0).shape == (0,)
    assert source.permutation(1).tolist() == [0]


@pytest.mark.parametrize("source", SOURCES, ids=["seeded", "secure"])
def test_permutations_are_uniform(source):
    counts = Counter(tuple(source.permutation(4).tolist()) for _ in range(4800))
    assert set(counts) == set(itertools.permutations(range(4)))
    assert stats.chisquare(list(counts.values())).pvalue > SMALLEST_P


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 255, 256, 257, 2**40 + 1, 2**64, 2**521 - 1])
def test_integer_below_stays_below(bound):
    source = SeededRandomness(1, bound)
    draws = [source.integer_below(bound) for _ in range(200)]
    assert min(draws) >= 0
    assert max(draws) < bound
    if bound > 2**40:
        assert max(draws) > bound // 2


def test_integer_below_is_uniform():
    source = SeededRandomness(2)
    counts = Counter(source.integer_below(6) for _ in range(6000))
    assert stats.chisquare([counts[k] for k in range(6)]).pvalue > SMALLEST_P


def test_torch_generators_repeat_with_the_seed():
    one, two = (torch.rand(5, generator=SeededRandomness(4).child("g").torch_generator()) for _ in range(2))
    assert torch.equal(one, two)


def test_nothing_touches_the_global_generators():
    torch.manual_seed(0)
    np.random.seed(0)
    state = torch.random.get_rng_state()
    SeededRandomness(1).normal(10)
    SecureRandomness().permutation(10)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("seed", [True, 1.0, "1", None, np.int64(1), torch.tensor(1)])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(ArgumentError, match=r"expected `seed` to be a whole number, got .*int\(seed\)"):
        SeededRandomness(seed)


def test_any_whole_number_is_a_seed_of_its_own():
    drawn = {SeededRandomness(seed).random_bytes(16) for seed in (0, 1, -1, 2**31, 2**64, 2**64 + 1, -(2**200))}
    assert len(drawn) == 7
