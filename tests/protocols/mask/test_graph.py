"""Pair graphs, thresholds, and the number of neighbours."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, hypergeom

from bilateral.errors import PlanError, ProtocolError
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.neighbours import (
    LARGEST_PRIVACY_FAILURE,
    LARGEST_ROUND_FAILURE,
    default_num_neighbours,
    failure_probabilities,
    threshold_of,
)
from bilateral.protocols.mask.settings import MaskSettings


def names(count):
    return [f"client {number:04}" for number in range(count)]


def reaches_all(graph, subset):
    """Slow oracle: grow the set of the reachable until nothing changes."""
    subset = set(subset)
    reached = {next(iter(subset))} if subset else set()
    while True:
        grown = reached | {v for u in reached for v in graph.neighbours(u) if v in subset}
        if grown == reached:
            return bool(subset) and reached == subset
        reached = grown


@given(st.integers(2, 30), st.integers(1, 30), st.binary(max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_graph_is_symmetric_deterministic_and_everyone_has_chosen_enough(count, chosen, seed, choose):
    participants = names(count)
    plan = MaskSettings("n-out", chosen)
    graph = PairGraph.of(participants, plan, seed)
    shuffled = choose.sample(participants, count)
    for name in participants:
        assert graph.neighbours(name) == PairGraph.of(shuffled, plan, seed).neighbours(name)
        assert name not in graph.neighbours(name)
        assert len(graph.neighbours(name)) >= min(chosen, count - 1)
        assert all(name in graph.neighbours(other) for other in graph.neighbours(name))
    subset = choose.sample(participants, choose.randint(0, count))
    assert graph.is_connected(subset) == reaches_all(graph, subset)


def test_auto_is_complete_up_to_32_participants_and_sparse_beyond():
    for count, degree in ((2, 1), (32, 31)):
        graph = PairGraph.of(names(count), MaskSettings(), b"")
        assert {len(graph.neighbours(name)) for name in names(count)} == {degree}
    graph = PairGraph.of(names(200), MaskSettings(), b"seed")
    degrees = [len(graph.neighbours(name)) for name in names(200)]
    chosen = default_num_neighbours(200, 2 / 3)
    assert min(degrees) >= chosen
    assert chosen + 0.5 * chosen < np.mean(degrees) < 2 * chosen


def test_choices_are_uniform_over_the_others():
    """Each of the 9 others is chosen equally often by one participant, over many seeds."""
    counts = dict.fromkeys(names(10)[1:], 0)
    for number in range(1500):
        graph = PairGraph.of(names(10), MaskSettings("n-out", 2), number.to_bytes(4, "little"))
        for other in graph.neighbours(names(10)[0]):
            counts[other] += 1
    expected = sum(counts.values()) / 9
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 30  # 8 degrees of freedom: exceeded with probability 2e-4 at most


def test_the_seed_depends_on_everything_that_is_public_about_the_attempt():
    base = (b"digest", 3, 0, ("anna", "bela"))
    others = [(b"other", *base[1:]), (b"digest", 4, 0, base[3]), (b"digest", 3, 1, base[3]), (*base[:3], ("anna", "c"))]
    assert len({graph_seed(*arguments) for arguments in (base, *others)}) == 5


def test_a_graph_of_one_or_of_a_name_twice_is_refused():
    for wrong in (["anna"], ["anna", "anna"]):
        with pytest.raises(ProtocolError, match="different participants"):
            PairGraph.of(wrong, MaskSettings(), b"")


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 0.5},
        {"threshold": 1.0},
        {"threshold": float("nan")},
        {"graph": "ring"},
        {"num_neighbours": 0},
        {"graph": "complete", "num_neighbours": 3},
        {"initial_bound_bits": 100},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(PlanError):
        MaskSettings(**wrong)


@given(st.floats(0.5, 1, exclude_min=True, exclude_max=True), st.integers(1, 300))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_two_disjoint_groups_never_both_reach_the_threshold(threshold, size):
    needed = MaskSettings(threshold=threshold).threshold_of(size)
    assert 1 <= needed <= size
    assert 2 * needed > size


def test_thresholds_mean_more_than_the_fraction():
    assert [threshold_of(2 / 3, size) for size in (2, 3, 4, 5, 6, 9, 10)] == [2, 3, 3, 4, 5, 7, 7]
    assert threshold_of(0.58, 50) == 30  # 0.58 * 50 is 28.999999999999996 in floating point


@pytest.mark.parametrize(("count", "chosen"), [(40, 6), (60, 20), (150, 30)])
def test_failure_probabilities_equal_hypergeometric_tails(count, chosen):
    got = failure_probabilities(count, chosen, 0.6, collusion=0.3, dropout=0.2)
    others, captured, lost = count - 1, 0.0, 0.0
    for degree in range(chosen, others + 1):
        weight = binom.pmf(degree - chosen, others - chosen, chosen / others)
        needed = int(0.6 * (degree + 1) + 1e-9) + 1
        captured += weight * hypergeom.sf(needed - 1, others, int(0.3 * count), degree)
        lost += weight * hypergeom.cdf(needed - 1, others, others - int(0.2 * count), degree)
    assert got.round == pytest.approx(min(1.0, count * lost), rel=1e-6, abs=1e-18)
    assert got.privacy >= min(1.0, count * captured) * (1 - 1e-6)


def test_the_privacy_bound_covers_what_happens_in_random_graphs():
    """Small numbers, so that failures occur: disconnected survivors and captured neighbourhoods, counted."""
    count, chosen, trials = 24, 3, 800
    bound = failure_probabilities(count, chosen, 2 / 3, collusion=0.25, dropout=0.25)
    plan, failures = MaskSettings("n-out", chosen), 0
    honest, colluders = set(names(count)[:12]), set(names(count)[12:18])
    for number in range(trials):
        graph = PairGraph.of(names(count), plan, random.Random(number).randbytes(8))
        captured = any(
            len(colluders & set(graph.neighbours(u))) >= plan.threshold_of(len(graph.neighbourhood(u))) for u in honest
        )
        failures += captured or not graph.is_connected(honest)
    assert failures > 5
    assert failures / trials <= bound.privacy < 0.6


@pytest.mark.parametrize("count", [33, 100, 300])
def test_the_default_tolerates_a_fifth_colluding_and_a_tenth_dropping(count):
    chosen = default_num_neighbours(count, 2 / 3)
    failure = failure_probabilities(count, chosen, 2 / 3, collusion=0.2, dropout=0.1)
    assert failure.privacy <= LARGEST_PRIVACY_FAILURE
    assert failure.round <= LARGEST_ROUND_FAILURE
    fewer = failure_probabilities(count, chosen - 1, 2 / 3, collusion=0.2, dropout=0.1)
    assert fewer.privacy > LARGEST_PRIVACY_FAILURE or fewer.round > LARGEST_ROUND_FAILURE


def test_where_no_sparse_graph_is_good_enough_the_default_is_complete():
    assert default_num_neighbours(40, 0.95) == 39
    assert [default_num_neighbours(count, 2 / 3) for count in (2, 3)] == [1, 2]


def test_points_are_different_and_start_at_one():
    graph = PairGraph.of(names(5), MaskSettings(), b"")
    assert sorted(graph.point(name) for name in names(5)) == [1, 2, 3, 4, 5]
    for one, other in itertools.pairwise(names(5)):
        assert graph.neighbourhood(one) == graph.neighbourhood(other) == tuple(names(5))
