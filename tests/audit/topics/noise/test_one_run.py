"""One run with canaries: noise as claimed is not refuted, a tenth of it is, and so is P2's."""

from __future__ import annotations

import pytest
import torch
from tests.audit.chance import none_is_broken

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.noise import neighbouring_worlds as worlds
from bilateral.audit.topics.noise.one_run import EXPERIMENT, seen_scores
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

SMALL = {"model.name": "mlp-3", "training.loss": "mse", "training.batch_size": 16, "training.rounds": 5}
ADAPTIVE = "one run with canaries, likelihood ratio of all terms"


def judged(mechanism, seed=0, **settings):
    plan = RunPlan().with_settings({**SMALL, "noise.mechanism": mechanism, "seed": seed, **settings})
    context = Context(plan, EFFORTS["smoke"])
    assert EXPERIMENT.applies(plan, context.guarantee()) == ""
    return {one.attack: judge(one) for one in EXPERIMENT.run(context) if one.tests != 4}


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_sound_noise_is_not_refuted_and_a_tenth_of_it_would_be(unit):
    settings = {"noise.noise_multiplier": 2.5 if unit == "client" else 2.0, "noise.unit": unit}
    settings["training.batch_size"] = 64
    found = judged("sound", **settings)
    none_is_broken(lambda seed: judged("sound", seed, **settings) if seed else found)
    row = found[ADAPTIVE].evidence
    assert row.positive.scores[0].mean > row.bound > row.target.scores[0].mean
    shown = {x: y for x, y, *_ in row.curves[0].lines["shown"]}
    assert shown[1e-6] >= shown[0.1] > row.bound  # without noise at least as much


def test_clients_that_draw_a_tenth_of_what_was_accounted_for_are_found(monkeypatch):
    """A deliberately broken protection."""
    honest = worlds.sound_noise_of
    monkeypatch.setattr(worlds, "sound_noise_of", lambda *given: 0.1 * honest(*given))
    assert judged("sound", **{"noise.noise_multiplier": 2.5, "noise.unit": "client"})[ADAPTIVE].verdict == "broken"


def test_noise_of_p2_is_refuted_in_one_round_and_mp_cdps_is_not():
    found = judged("published", **{"noise.epsilon": 2.0})
    assert found["one round with canaries, exact likelihood ratio"].verdict == "broken"
    none_is_broken(lambda seed: judged("mp-cdp", seed, **{"noise.epsilon": 2.0}))


def test_noise_on_what_is_perturbed_is_refuted_by_who_knows_the_factors_alone():
    found = judged("mp-dp-naive", **{"noise.epsilon": 2.0})
    assert found["one run with canaries, likelihood ratio, known factors"].verdict == "broken"
    assert found["one run with canaries, likelihood ratio"].verdict != "broken"


def test_a_canarys_score_is_that_of_its_own_world():
    inside, outside = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, -3.0])
    assert seen_scores((inside, outside), torch.tensor([True, False, True])).tolist() == [1.0, -2.0, 3.0]


def test_a_plan_without_noise_is_left_alone():
    plan = RunPlan().with_settings(SMALL)
    assert "no noise" in EXPERIMENT.applies(plan, Context(plan, EFFORTS["smoke"]).guarantee())
