"""Model inversion: broken where the function leaks, not where it does not, and silent about other data."""

from __future__ import annotations

import pytest
import torch
from tests.audit.chance import each_holds

from bilateral.audit.effort import EFFORTS
from bilateral.audit.evidence import evidence_from
from bilateral.audit.experiment import Context
from bilateral.audit.scores import p_value
from bilateral.audit.topics.model.model_inversion import EXPERIMENT, MIN_TRIALS
from bilateral.audit.topics.model.private_judge import ATTACK_ACCURACY
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee

QUICK = RunPlan().with_settings(
    {
        "model.name": "mlp-3",
        "training.loss": "mse",
        "training.optimiser": "adam",
        "training.learning_rate": 0.01,
        "training.rounds": 40,
        "aggregation.masks": "none",
    }
)
LOUD = QUICK.with_settings({"perturbation.noise_ratio": 1000.0})
"""Noise that drowns the outputs, for those who read them as they come (at 100 something gets through)."""


@pytest.fixture(scope="module")
def loud():
    told = []
    context = Context(LOUD, EFFORTS["smoke"], on_progress=lambda fraction, note: told.append(fraction))
    naive, adaptive = EXPERIMENT.run(context)
    return naive, adaptive, told


def test_an_adaptive_client_sees_what_classes_look_like_through_any_noise(loud):
    _, adaptive, _ = loud
    assert adaptive.adaptive and judge(adaptive).verdict == "broken"
    assert adaptive.target.of(ATTACK_ACCURACY).mean >= 0.7


def test_a_naive_client_fails_at_noise_that_drowns_the_outputs_and_the_audit_says_no_more(loud):
    naive, _, _ = loud
    assert not naive.adaptive
    assert naive.target.of(ATTACK_ACCURACY).mean <= 0.5

    def of(seed):
        found = EXPERIMENT.run(Context(LOUD.with_settings({"seed": seed}), EFFORTS["smoke"]))[0] if seed else naive
        return {"naive": judge(found)}

    each_holds(of)


def test_the_positive_control_meets_its_gate_and_the_negative_does_not(loud):
    for evidence in loud[:2]:
        (gate,) = evidence.gates
        assert gate.passed_by(evidence.positive.of(ATTACK_ACCURACY))
        assert not gate.passed_by(evidence.negative.of(ATTACK_ACCURACY))
        assert p_value(evidence.positive.scores[0], evidence.negative.scores[0], paired=True) < 0.002


def test_trials_are_enough_for_the_test_and_paired(loud):
    for evidence in loud[:2]:
        counts = {len(s.values) for c in (evidence.target, evidence.positive, evidence.negative) for s in c.scores}
        assert evidence.paired and counts == {20} and min(counts) >= MIN_TRIALS
        assert len(evidence.target.scores) / 2**MIN_TRIALS <= 0.002
        assert evidence.tests == 1 and evidence.adversary == "curious client"
        assert judge(evidence_from(evidence.as_dict())).verdict == judge(evidence).verdict


def test_the_picture_shows_each_class_in_every_condition(loud):
    naive, adaptive, _ = loud
    (picture,) = adaptive.pictures
    assert not naive.pictures
    assert picture.columns == ("nearest private image", "FedSGD", "naive client", "adaptive client", "untrained")
    assert len(picture.rows) == 10
    for row in picture.rows:
        assert len(row) == 5 and all(image.shape == (1, 8, 8) for image in row)
        assert all(float(image.min()) >= 0.0 and float(image.max()) <= 1.0 for image in row)


def test_progress_goes_up_to_one(loud):
    *_, told = loud
    assert told == sorted(told) and told[-1] == pytest.approx(1.0)


def test_plain_fedavg_is_broken_in_one_row_about_line_0():
    plan = QUICK.with_settings({"protection": "fedavg", "training.loss": "ce"})
    context = Context(plan, EFFORTS["smoke"])
    (evidence,) = EXPERIMENT.run(context)
    assert EXPERIMENT.applies(plan, context.guarantee()) == ""
    assert evidence.tests == 0 and judge(evidence).verdict == "broken"
    assert evidence.target.scores == evidence.positive.scores


@pytest.mark.long
def test_a_model_that_was_not_trained_proves_nothing():
    (_, adaptive) = EXPERIMENT.run(Context(LOUD.with_settings({"training.rounds": 1}), EFFORTS["smoke"]))
    found = judge(adaptive)
    assert found.verdict == "proves nothing" and "positive control" in found.reason


def test_data_that_are_no_images_have_no_evidence():
    plan = QUICK.with_settings({"data.name": "breast-cancer"})
    assert EXPERIMENT.run(Context(plan, EFFORTS["smoke"])) == ()
    assert EXPERIMENT.applies(plan, Guarantee("nothing", (), ())) == "the plan shows no client a model"


@pytest.mark.long
def test_sound_noise_that_spends_almost_nothing_leaves_nothing_to_invert():
    plan = QUICK.with_settings({"aggregation.masks": "ring", "noise.mechanism": "sound", "noise.epsilon": 0.05})
    for evidence in EXPERIMENT.run(Context(plan, EFFORTS["smoke"])):
        assert judge(evidence).verdict == "holds"


@pytest.mark.long
def test_an_audit_is_repeatable():
    one, two = (EXPERIMENT.run(Context(LOUD, EFFORTS["smoke"])) for _ in range(2))
    assert [e.target for e in one] == [e.target for e in two]
    assert all(torch.equal(a, b) for a, b in zip(one[1].pictures[0].rows[3], two[1].pictures[0].rows[3], strict=True))
