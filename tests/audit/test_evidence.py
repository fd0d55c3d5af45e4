"""Evidence is plain data: it goes to JSON and back, and gates say what a positive control must reach."""

import json
import math
from dataclasses import replace

import pytest
from tests.audit.samples import (
    BROKEN,
    HOLDS,
    distinguisher,
    fitted_secrets,
    inversion,
    picture,
    rate,
    read_softmax,
    with_ssim,
)

from bilateral.audit.evidence import Condition, Evidence, Gate, evidence_from, with_controls
from bilateral.audit.scores import AGREEMENT, AUC, PSNR, SOFTMAX_ERROR, SSIM, Scores


def through_json(evidence):
    return evidence_from(json.loads(json.dumps(evidence.as_dict(), allow_nan=False)))


@pytest.mark.parametrize(
    "evidence",
    [
        BROKEN,
        with_ssim(HOLDS, 0.1, 0.1),
        fitted_secrets(remark="with Umlaut ü and | pipe"),
        read_softmax(),
        distinguisher(),
        inversion(positive=None),
        inversion(negative=None),
    ],
    ids=lambda one: one.attack,
)
def test_evidence_survives_json(evidence):
    assert through_json(evidence) == evidence


def test_curves_survive_json():
    assert through_json(fitted_secrets()).curves == fitted_secrets().curves


def test_infinities_survive_json_that_has_none():
    odd = inversion(target=(math.inf, -math.inf, 3.0))
    assert through_json(odd).target.scores[0].values == (math.inf, -math.inf, 3.0)
    assert through_json(distinguisher()).target.scores[0].interval[1] == math.inf


def test_pictures_are_not_stored():
    seen = replace(BROKEN, pictures=(picture(),))
    assert "pictures" not in seen.as_dict()
    assert through_json(seen).pictures == ()


def test_a_gate_is_passed_at_its_threshold_and_not_below():
    gate = Gate(AUC, 0.85)
    assert gate.passed_by(Scores(AUC, (0.85,)))
    assert not gate.passed_by(Scores(AUC, (0.849,)))


def test_a_gate_where_low_is_good_is_passed_from_below():
    gate = Gate(SOFTMAX_ERROR, 1e-6)
    assert gate.passed_by(Scores(SOFTMAX_ERROR, (1e-9,)))
    assert not gate.passed_by(Scores(SOFTMAX_ERROR, (1e-3,)))


def test_a_gate_on_the_median_is_not_moved_by_an_outlier():
    scores = Scores(PSNR, (21.0, 22.0, -300.0))
    assert Gate(PSNR, 20.0, "median").passed_by(scores)
    assert not Gate(PSNR, 20.0, "mean").passed_by(scores)


def test_a_gate_names_what_it_asks():
    assert str(Gate(PSNR, 20.0, "median")) == "median PSNR dB >= 20"
    assert str(Gate(SOFTMAX_ERROR, 1e-6)) == "mean largest softmax error <= 1e-06"


def test_a_condition_finds_its_scores_by_metric():
    scores = Scores(AGREEMENT, rate(3, 5))
    condition = Condition("this plan", (scores,))
    assert condition.of(AGREEMENT) is scores
    assert condition.of(SSIM) is None


def test_an_attack_with_its_controls_is_evidence_by_the_gates_metric():
    known = Condition("chance", (Scores(AUC, (0.5, 0.4)), Scores(SSIM, (0.1, 0.2))))
    found = with_controls(
        12,
        "curious server",
        "guessing",
        "nothing",
        Gate(AUC, 0.85),
        target=("this plan", [0.6, 0.7]),
        positive=("FedSGD", Scores(AUC, (0.9, 1.0))),
        negative=known,
    )
    assert found == Evidence(
        tests=12,
        adversary="curious server",
        attack="guessing",
        adaptive=True,
        seen="nothing",
        target=Condition("this plan", (Scores(AUC, (0.6, 0.7)),)),
        positive=Condition("FedSGD", (Scores(AUC, (0.9, 1.0)),)),
        negative=known,
        gates=(Gate(AUC, 0.85),),
        paired=True,
    )


def test_a_control_that_could_not_be_had_is_missing_in_the_evidence():
    gates = (Gate(AUC, 0.85), Gate(SSIM, 0.7))
    found = with_controls(
        12, "eavesdropper", "guessing", "all", gates, target=("this plan", [0.6]), positive=None, negative=None
    )
    assert (found.positive, found.negative, found.gates) == (None, None, gates)
