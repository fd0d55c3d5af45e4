"""Findings follow from figures: each judge agrees where it should, and does not where it should not."""

from __future__ import annotations

import pytest

from bilateral.reproduce.judges import Trial, below, compared, equal_within_seed_noise, ordered, verdicts
from bilateral.reproduce.tables import Found, Measured

TRIAL = Trial("row", "test_accuracy", "plain", "control")


def found(words=None, **lanes):
    return Found(
        (), {"row": Measured({f"{lane}/test_accuracy": values for lane, values in lanes.items()}, words=words or {})}
    )


@pytest.mark.parametrize(
    ("ours", "agrees"),
    [([0.80, 0.90], True), ([0.85, 0.85], True), ([0.80, 0.70], False), ([0.80, None], False)],
)
def test_equality_is_within_what_seeds_do_to_fedsgd(ours, agrees):
    judge = equal_within_seed_noise("equal", [TRIAL], "ours", why="rounding")
    finding = judge(found(plain=[0.80, 0.90], control=[0.81, 0.90], ours=ours))
    assert finding.agrees is agrees
    assert finding.why == ("" if agrees else "rounding")


def test_what_was_not_run_is_no_agreement():
    for judge in (
        equal_within_seed_noise("equal", [TRIAL], "ours"),
        below("below", ["row"], "test_accuracy", "ours", "plain"),
        ordered("order", "row", ["ours/test_accuracy", "plain/test_accuracy"], ["a", "b"]),
        compared("compared", {"a": ("row", "ours/test_accuracy")}, {}, lambda _: True),
    ):
        assert judge(found(plain=[0.8])).agrees is None


def test_below_is_asked_on_every_row_and_a_diverged_run_is_below():
    judge = below("below", ["row"], "test_accuracy", "ours", "plain")
    assert judge(found(plain=[0.8], ours=[0.7])).agrees is True
    assert judge(found(plain=[0.8], ours=[0.9])).agrees is False
    assert "diverged" in judge(found(plain=[0.8], ours=[None])).found


def test_an_order_must_hold_on_every_seed():
    judge = ordered("order", "row", ["low/test_accuracy", "high/test_accuracy"], ["low", "high"])
    assert judge(found(low=[0.1, 0.2], high=[0.2, 0.3])).agrees is True
    assert judge(found(low=[0.1, 0.4], high=[0.2, 0.3])).agrees is False


def test_attacks_are_told_with_their_control_and_the_audits_word_and_claim_nothing():
    key = "an experiment/adaptive/PSNR dB"
    measured = Measured({key: [9.0], f"{key}/positive": [40.0]}, words={key: "matching: holds"})
    finding = verdicts("privacy", [("ours", "row", "an experiment/adaptive", "PSNR dB")])(Found((), {"row": measured}))
    assert finding.agrees is None
    assert finding.found == "ours 9, nothing defending 40 (matching: holds)"
