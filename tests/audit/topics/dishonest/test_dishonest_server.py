"""Overlapping sums, judged."""

from __future__ import annotations

import pytest

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.dishonest import dishonest_server
from bilateral.audit.topics.dishonest.attacks import split_view
from bilateral.audit.topics.dishonest.dishonest_server import EXPERIMENT
from bilateral.audit.topics.dishonest.staged_rounds import Cast
from bilateral.audit.verdict import judge, judge_claims
from bilateral.engine.plan import RunPlan

SMALL = {"model.name": "mlp-3", "training.loss": "mse", "training.batch_size": 8, "federation.clients": 4}


@pytest.fixture(scope="module")
def context():
    return Context(RunPlan().with_settings(SMALL), EFFORTS["smoke"])


def test_ring_masks_hold_and_every_strategy_works_where_nothing_is_checked(context):
    evidence = EXPERIMENT.run(context)
    assert len(evidence) == 4
    for one in evidence:
        assert judge(one).verdict == "holds", one.attack
        assert one.positive.scores[0].mean == 1.0
        assert one.remark.startswith("refused")
    claims = {verdict.tests: verdict.verdict for verdict in judge_claims(context.guarantee(), evidence)}
    assert claims["overlapping sums"] == "holds"


@pytest.mark.parametrize(
    "noise",
    [
        {"noise.epsilon": 3.0},
        {"noise.unit": "client", "noise.noise_multiplier": 1.0, "noise.adaptive_clip": True},
    ],
)
def test_clients_that_add_noise_hold_too_and_their_upload_is_known_with_its_noise(noise):
    small = {**SMALL, "data.name": "wine", "model.options": {"width": 8}, "training.rounds": 4}
    noisy = Context(RunPlan().with_settings({**small, "noise.mechanism": "sound", **noise}), EFFORTS["smoke"])
    assert EXPERIMENT.applies(noisy.plan, noisy.guarantee()) == ""
    for one in EXPERIMENT.run(noisy):
        assert judge(one).verdict == "holds", one.attack
        assert one.positive.scores[0].mean == 1.0, one.positive.what
        assert "refused: " in one.remark


def test_clients_that_fall_for_a_strategy_are_reported_as_broken(context, monkeypatch):
    """A deliberately broken protection: the strategy is let loose on clients without checks."""

    unchecked = Cast(context, context.plan.with_settings({"aggregation.masks": "float"}))
    strategy = split_view.different_models_without_checks
    monkeypatch.setattr(
        dishonest_server,
        "_against",
        lambda _strategy, _cast, refusals, number, victim: strategy(unchecked.stage(number), victim),
    )
    all_of_them = dishonest_server._strategies
    monkeypatch.setattr(dishonest_server, "_strategies", lambda *positive: all_of_them(*positive)[:1])
    assert [judge(one).verdict for one in EXPERIMENT.run(context)] == ["broken"]


def test_plans_that_claim_nothing_about_sums_are_left_alone():
    plan = RunPlan().with_settings({"aggregation.masks": "float"})
    assert EXPERIMENT.applies(plan, Context(plan, EFFORTS["smoke"]).guarantee())
