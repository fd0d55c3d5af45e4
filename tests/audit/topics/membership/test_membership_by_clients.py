"""The client's membership game on small plans: what it must find, and what it must not."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.scores import AUC
from bilateral.audit.topics.membership.membership_by_clients import EXPERIMENT
from bilateral.audit.topics.membership.membership_game import make_game
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

SMALL = {"model.name": "mlp-3", "federation.clients": 3, "aggregation.masks": "none"}


def played(**settings):
    context = Context(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"])
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    return {(e.attack, e.adaptive): e for e in EXPERIMENT.run(context)}


@pytest.fixture(scope="module")
def perturbed():
    return played()


def test_an_adaptive_client_is_as_strong_against_perturbation_as_against_fedavg(perturbed):
    for (attack, adaptive), evidence in perturbed.items():
        if adaptive:
            assert judge(evidence).verdict == "broken", attack
            assert evidence.tests == 1
            assert evidence.target.of(AUC).mean > evidence.positive.of(AUC).mean - 0.02, attack


def test_its_positive_control_passes_the_gates(perturbed):
    for attack in ("loss threshold", "LiRA offline", "LiRA online", "RMIA offline"):
        evidence = perturbed[f"membership by {attack}", True]
        assert all(gate.passed_by(evidence.positive.of(gate.metric)) for gate in evidence.gates), attack


def test_the_naive_client_is_there_too_and_finds_less(perturbed):
    naive, adaptive = (perturbed["membership by LiRA online", a] for a in (False, True))
    assert naive.target.of(AUC).mean < adaptive.target.of(AUC).mean


def test_strangers_look_like_strangers(perturbed):
    for evidence in perturbed.values():
        assert 0.45 < evidence.negative.of(AUC).mean < 0.55


def test_the_game_says_that_digits_need_canaries(perturbed):
    assert all("canaries" in evidence.target.what for evidence in perturbed.values())


def test_fedavg_is_broken_at_line_0():
    found = played(protection="fedavg")
    assert {evidence.tests for evidence in found.values()} == {0}
    assert judge(found["membership by LiRA online", True]).verdict == "broken"


@pytest.mark.long
def test_sound_noise_with_a_small_epsilon_leaves_nothing_to_find():
    noise = {"noise.mechanism": "sound", "noise.epsilon": 1.0, "noise.delta": 1e-3}
    found = played(**noise, **{"training.loss": "mse", "aggregation.masks": "ring"})
    words = {attack: judge(evidence).verdict for (attack, adaptive), evidence in found.items() if adaptive}
    assert "broken" not in words.values()
    assert words["membership by LiRA online"] == "holds"


def test_the_parts_of_the_game_have_no_sample_in_common():
    game = make_game(Context(RunPlan().with_settings(SMALL), EFFORTS["smoke"]))
    parts = [game.natural, game.others_natural, game.spare_natural, game.known.members, game.known.strangers, game.pool]
    rows = [row.numpy().tobytes() for part in parts for row in part.inputs]
    assert len(set(rows)) == len(rows)


def test_a_run_has_its_members_and_no_stranger():
    context = Context(RunPlan().with_settings(SMALL), EFFORTS["smoke"])
    game = make_game(context)
    dealt = game.deal(context.randomness("test"))
    others = torch.cat([s.inputs for n, s in game.federation_of(dealt).shares.items() if n != game.attacker])
    held = {row.numpy().tobytes() for row in others}
    assert all(row.numpy().tobytes() in held for row in game.pool.inputs[dealt.members])
    for part in (dealt.strangers, dealt.spare, *dealt.null_split(context.randomness("null"))):
        assert not any(row.numpy().tobytes() in held for row in game.pool.inputs[part])


def test_a_single_client_has_nobody_to_attack():
    plan = RunPlan().with_settings({"federation.clients": 1})
    assert "single client" in EXPERIMENT.applies(plan, Context(plan, EFFORTS["smoke"]).guarantee())
