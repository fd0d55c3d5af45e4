"""LiRA on cases with known answers."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.membership_metrics import as_values, auc
from bilateral.audit.recording import record
from bilateral.audit.threat import facts_of
from bilateral.audit.topics.membership.attacks.lira import (
    Shadows,
    balanced_assignment,
    joined,
    offline_scores,
    online_scores,
    train_plainly,
    train_shadows,
)
from bilateral.audit.topics.membership.membership_game import with_random_targets
from bilateral.data import Split
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.randomness import SeededRandomness

DRAWS = SeededRandomness(0, "test")


def facts(rounds=1):
    settings = {
        "protection": "fedavg",
        "model.name": "mlp-3",
        "training.rounds": 1,
        "federation.clients": 2,
    }
    plan = RunPlan().with_settings(settings)
    found = facts_of(record(plan, load_federation(plan)))
    trained = {"training.rounds": rounds, "training.optimiser": "adam", "training.learning_rate": 0.01}
    object.__setattr__(found, "plan", found.plan.with_settings(trained))
    return found


def normal_shadows(num_shadows, count, gap, seed=0):
    """Every candidate has its own level; being inside adds `gap`."""
    generator = torch.Generator().manual_seed(seed)
    inside = balanced_assignment(count, num_shadows, 0.5, DRAWS.child("inside", seed))
    level = 5 * torch.randn(count, generator=generator)
    confidences = level + gap * inside + torch.randn(num_shadows, count, generator=generator)
    is_member = torch.arange(count) % 2 == 0
    observed = level + gap * is_member + torch.randn(count, generator=generator)
    return Shadows(confidences.double(), inside), observed.double(), is_member


def auc_of(scores, is_member):
    return auc(as_values(scores[is_member]), as_values(scores[~is_member]))


@pytest.mark.parametrize("num_shadows", [2, 4, 8])
def test_every_candidate_is_in_the_same_number_of_shadows_and_out_of_some(num_shadows):
    inside = balanced_assignment(60, num_shadows, 1 / 3, DRAWS)
    assert len(set(inside.sum(0).tolist())) == 1
    assert 0 < int(inside.sum(0)[0]) < num_shadows
    assert int(inside.sum(1).max() - inside.sum(1).min()) <= 2


def test_the_likelihood_ratio_of_known_normals_is_the_textbook_one():
    # Two shadows in (means 3), two out (means 0), all one off: pooled variance 2 (two values a mean, one degree each).
    inside = torch.tensor([[True], [True], [False], [False]]).expand(4, 3)
    confidences = torch.tensor([[2.0], [4.0], [-1.0], [1.0]], dtype=torch.float64).expand(4, 3)
    observed = torch.tensor([0.0, 1.5, 3.0], dtype=torch.float64)
    shadows = Shadows(confidences, inside)
    assert torch.allclose(online_scores(observed, shadows), torch.tensor([-9.0, 0.0, 9.0]).double() / 4)
    assert torch.allclose(offline_scores(observed, shadows), observed / 2**0.5)


def test_lira_sees_through_levels_that_hide_members_from_a_threshold():
    shadows, observed, is_member = normal_shadows(8, 400, gap=4.0)
    assert auc_of(observed, is_member) < 0.75
    assert auc_of(online_scores(observed, shadows), is_member) > 0.95
    assert auc_of(offline_scores(observed, shadows), is_member) > 0.95


def test_without_an_effect_of_training_lira_finds_nothing():
    shadows, observed, is_member = normal_shadows(8, 400, gap=0.0, seed=3)
    for scores in (online_scores(observed, shadows), offline_scores(observed, shadows)):
        assert 0.42 < auc_of(scores, is_member) < 0.58


def test_plain_training_is_what_a_federation_that_uses_all_samples_computes():
    settings = {
        "protection": "fedavg",
        "model.name": "mlp-3",
        "training.rounds": 5,
        "training.batch_size": 0,
        "training.dtype": "float64",
        "federation.clients": 3,
    }
    plan = RunPlan().with_settings(settings)
    federation = load_federation(plan)
    recording = record(plan, federation)
    mine = train_plainly(facts_of(recording), joined(*federation.shares.values()), plan.seed)
    for name, value in recording.model.named_parameters():
        assert torch.allclose(mine.get_parameter(name), value, atol=1e-12)


def test_shadow_models_know_the_canaries_that_they_were_given_and_no_others():
    plan = RunPlan().with_settings({"data.options": {"flat": True}})
    data = joined(*load_federation(plan).shares.values()).subset(torch.arange(60))
    canaries = with_random_targets(data, 10, DRAWS.child("labels"))
    inside = balanced_assignment(40, 4, 0.5, DRAWS)
    always, candidates = canaries.subset(torch.arange(40, 60)), canaries.subset(torch.arange(40))
    shadows = train_shadows(facts(rounds=60), always, candidates, inside, DRAWS)
    assert float(shadows.confidences[inside].min()) > 0
    assert float(shadows.confidences[~inside].median()) < 0


def test_canaries_keep_their_inputs_and_lose_their_labels():
    targets = torch.arange(10).repeat(50)
    canaries = with_random_targets(Split(torch.randn(500, 3), targets), 10, DRAWS.child("again"))
    assert not bool((canaries.targets == targets).any())
    assert len(torch.unique(canaries.targets)) == 10
    one_hot = with_random_targets(Split(torch.randn(500, 3), torch.eye(10)[targets]), 10, DRAWS.child("again"))
    assert torch.equal(one_hot.targets.argmax(1), canaries.targets)


def test_one_shadow_is_refused():
    with pytest.raises(ValueError, match="one shadow"):
        balanced_assignment(10, 1, 0.5, DRAWS)
