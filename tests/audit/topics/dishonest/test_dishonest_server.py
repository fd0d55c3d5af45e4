"""Overlapping sums, judged."""

from __future__ import annotations

import pytest
from tests.audit.chance import each_holds

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.dishonest import dishonest_server
from bilateral.audit.topics.dishonest.attacks import split_view
from bilateral.audit.topics.dishonest.dishonest_server import EXPERIMENT
from bilateral.audit.topics.dishonest.staged_rounds import Cast
from bilateral.audit.verdict import judge, judge_claims
from bilateral.engine.plan import RunPlan

SMALL = {"model.name": "mlp-3", "training.loss": "mse", "training.batch_size": 8, "federation.clients": 4}


def rows_of(settings, seed):
    """Of every strategy, and of the claim; that each works where nothing is checked, on every seed."""
    context = Context(RunPlan().with_settings({**settings, "seed": seed}), EFFORTS["smoke"])
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    evidence = EXPERIMENT.run(context)
    for one in evidence:
        assert one.positive.scores[0].mean == 1.0, one.positive.what
        assert "refused" in one.remark
    (claim,) = (one for one in judge_claims(context.guarantee(), evidence) if one.tests == "overlapping sums")
    return {"the claim": claim, **{one.attack + one.positive.what: judge(one) for one in evidence}}


@pytest.fixture(scope="module")
def context():
    return Context(RunPlan().with_settings(SMALL), EFFORTS["smoke"])


def test_ring_masks_hold_and_every_strategy_works_where_nothing_is_checked():
    def of(seed):
        rows = rows_of(SMALL, seed)
        assert len(rows) == 5
        return rows

    each_holds(of)


@pytest.mark.parametrize(
    "noise",
    [
        {"noise.epsilon": 3.0},
        {"noise.unit": "client", "noise.noise_multiplier": 1.0, "noise.adaptive_clip": True},
    ],
)
def test_clients_that_add_noise_hold_too_and_their_upload_is_known_with_its_noise(noise):
    small = {**SMALL, "data.name": "wine", "model.options": {"width": 8}, "training.rounds": 4}
    each_holds(lambda seed: rows_of({**small, "noise.mechanism": "sound", **noise}, seed))


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
