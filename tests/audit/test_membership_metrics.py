"""Telling members from strangers: figures against slow oracles, and chance where scores say nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bilateral.audit.membership_metrics import (
    auc,
    balanced_accuracy,
    best_threshold,
    bootstrap_interval,
    crossed_balanced_accuracy,
    membership_scores,
    tpr_at_fpr,
)


def drawn(seed, size, shift=0.0, digits=None):
    values = np.random.default_rng(seed).normal(shift, 1.0, size)
    return values if digits is None else values.round(digits)


@pytest.mark.parametrize("seed", range(5))
def test_the_auc_is_the_share_of_pairs_in_the_right_order_with_ties_counting_half(seed):
    members, strangers = drawn(seed, 17, 0.5, digits=0), drawn(seed + 100, 23, digits=0)
    pairs = [1.0 if m > s else 0.5 if m == s else 0.0 for m in members for s in strangers]
    assert auc(members, strangers) == pytest.approx(np.mean(pairs))
    assert auc(strangers, members) == pytest.approx(1 - np.mean(pairs))


@pytest.mark.parametrize("count", [7, 99, 100, 250])
def test_no_more_strangers_pass_than_the_rate_allows(count):
    members, strangers = drawn(1, 50, 1.0), drawn(2, count)
    found = tpr_at_fpr(members, strangers)
    allowed = count // 100
    best = max(np.mean(members > t) for t in [*strangers, -np.inf] if np.sum(strangers > t) <= allowed)
    assert found == pytest.approx(best)


def test_equal_scores_let_nobody_pass():
    assert tpr_at_fpr(np.ones(10), np.ones(200)) == 0.0


def test_perfect_scores_are_perfect_in_every_figure():
    members, strangers = np.arange(10.0) + 100, np.arange(300.0) / 10
    scores = membership_scores([(torch.tensor(members), torch.tensor(strangers))])
    assert [s.values for s in scores] == [(1.0,), (1.0,), (1.0,)]


def test_the_best_threshold_is_the_best_of_all():
    members, strangers = drawn(3, 40, 0.7), drawn(4, 60)
    tried = [balanced_accuracy(members, strangers, t) for t in np.concatenate([members, strangers, [-np.inf]])]
    assert balanced_accuracy(members, strangers, best_threshold(members, strangers)) >= max(tried) - 1e-12


def test_a_threshold_from_other_candidates_finds_nothing_where_there_is_nothing():
    found = [crossed_balanced_accuracy(drawn(s, 40), drawn(s + 1000, 40)) for s in range(200)]
    assert abs(np.mean(found) - 0.5) < 0.015
    same = [
        balanced_accuracy(m, n, best_threshold(m, n))
        for m, n in ((drawn(s, 40), drawn(s + 1000, 40)) for s in range(50))
    ]
    assert np.mean(same) > 0.55  # what choosing and judging on the same candidates would claim


def test_the_bootstrap_interval_holds_the_true_auc():
    truth, held = 0.760, 0  # of two unit normals one apart
    for seed in range(25):
        low, high = bootstrap_interval(auc, drawn(seed, 80, 1.0), drawn(seed + 500, 80), seed=seed)
        held += low <= truth <= high
    assert held >= 20


def test_no_candidates_are_refused():
    with pytest.raises(ValueError, match="members and strangers"):
        auc(np.zeros(0), np.ones(3))
