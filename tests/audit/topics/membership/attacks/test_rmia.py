"""RMIA on cases with known answers: by its definition, where members are, and where there are none."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.membership_metrics import as_values, auc
from bilateral.audit.topics.membership.attacks.lira import Shadows, balanced_assignment, offline_scores
from bilateral.audit.topics.membership.attacks.rmia import GAMMA, OFFLINE_SHARE, log_ratio, rmia_scores, share_below
from bilateral.audit.topics.membership.attacks.upload_membership import likelihood_ratio, pairwise_ratio
from bilateral.randomness import SeededRandomness

DRAWS = SeededRandomness(0, "test")


def auc_of(scores, is_member):
    return auc(as_values(scores[is_member]), as_values(scores[~is_member]))


def game(num_shadows, gap, seed=0, count=600, spread=1.0):
    """Every sample has its own level of confidence; being trained on adds `gap`. As many again are the population."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inside = balanced_assignment(count, num_shadows, 1 / 3, DRAWS.child("inside", seed))
    level, other = 3 * normal(count), 3 * normal(count)
    is_member = torch.arange(count) % 2 == 0
    shadows = Shadows(
        level + gap * inside + spread * normal(num_shadows, count), inside, other + spread * normal(num_shadows, count)
    )
    return level + gap * is_member + spread * normal(count), shadows, other + spread * normal(count), is_member


def test_scores_are_those_of_the_definition_by_loops():
    observed, shadows, population, _ = game(4, 2.0, count=24)

    def ratio(said, outs):
        out = sum(1 / (1 + 2.718281828459045 ** -float(o)) for o in outs) / len(outs)
        return (1 / (1 + 2.718281828459045 ** -float(said))) / (0.5 * ((1 + OFFLINE_SHARE) * out + 1 - OFFLINE_SHARE))

    ours = [
        ratio(
            observed[n],
            [row[n] for row, inside in zip(shadows.confidences, shadows.inside, strict=True) if not inside[n]],
        )
        for n in range(24)
    ]
    theirs = [ratio(population[n], shadows.population[:, n]) for n in range(24)]
    slow = [sum(x / z >= GAMMA for z in theirs) / 24 for x in ours]
    found = rmia_scores(observed, shadows, population, are_classes=True)
    # What the order of equal scores adds is less than one step.
    assert torch.allclose((found * 24 + 1e-9).floor() / 24, torch.tensor(slow, dtype=torch.float64))


def test_members_are_found_with_few_shadows_no_worse_than_by_offline_lira():
    """The claim of its authors, where it is theirs to make: two shadows, of which each candidate is in one at most."""
    lira, rmia = [], []
    for seed in range(5):
        observed, shadows, population, is_member = game(2, 3.0, seed)
        lira.append(auc_of(offline_scores(observed, shadows), is_member))
        rmia.append(auc_of(rmia_scores(observed, shadows, population, are_classes=False), is_member))
    assert sum(rmia) / 5 > sum(lira) / 5 - 0.01
    assert sum(rmia) / 5 > 0.85


@pytest.mark.parametrize("are_classes", [True, False])
def test_without_an_effect_of_training_nothing_is_found(are_classes):
    observed, shadows, population, is_member = game(4, 0.0, seed=2, count=2000)
    assert 0.45 < auc_of(rmia_scores(observed, shadows, population, are_classes=are_classes), is_member) < 0.55


def test_within_one_model_the_order_is_that_of_the_ratio():
    observed, shadows, population, _ = game(4, 2.0, count=200)
    ratios = log_ratio(observed, torch.where(shadows.inside, torch.nan, shadows.confidences), are_classes=True)
    assert torch.equal(rmia_scores(observed, shadows, population, are_classes=True).argsort(), ratios.argsort())


def test_the_share_below_counts_what_is_exceeded_by_gamma():
    theirs = torch.tensor([0.0, 1.0, 2.0, 3.0]).double()
    found = share_below(torch.tensor([-1.0, 1.5, 9.0]).double(), theirs, gamma=1.0)
    assert ((found * 4).floor() / 4).tolist() == [0.0, 0.5, 1.0]


def test_what_exceeds_the_whole_population_keeps_its_order():
    ours = torch.tensor([20.0, 300.0, 301.0, 5000.0])
    found = share_below(ours, torch.zeros(10))
    assert torch.equal(found.argsort(), torch.arange(4))
    assert len(set(found.tolist())) == 4


def test_an_upload_is_asked_for_the_samples_behind_it_and_not_for_others():
    generator = torch.Generator().manual_seed(0)
    gradients, own = (torch.randn(n, 300, generator=generator) for n in (40, 200))
    uploads = torch.stack([gradients[:8].mean(0), own[::7].mean(0)])  # of eight candidates, of none
    found = pairwise_ratio(uploads, gradients, own, 8, DRAWS)
    is_member = torch.arange(40) < 8
    assert auc_of(found[0], is_member) > 0.95
    assert 0.25 < auc_of(found[1], is_member) < 0.75
    assert found.shape == likelihood_ratio(uploads, gradients, own, 8, DRAWS).shape
