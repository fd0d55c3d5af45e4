"""Every view says the same, and "holds" never without what it means."""

import math

import pytest

from audit.samples import BLIND_ATTACK, BROKEN, GUARANTEE, HOLDS, fitted_secrets, with_ssim
from bilateral.audit.scores import AUC, PSNR, SOFTMAX_ERROR, Scores
from bilateral.audit.verdict import judge, judge_claims
from bilateral.report.audit_words import (
    NOTHING_FOUND,
    ORDER,
    about_whom,
    figure,
    heading,
    leaks,
    number,
    own_claims,
    shown_metrics,
    spoken,
    tally,
)


def test_holds_is_never_said_without_what_it_means():
    assert spoken("holds") == f"holds ({NOTHING_FOUND})"
    assert NOTHING_FOUND in tally(own_claims(judge_claims(GUARANTEE, [HOLDS])))


def test_every_verdict_has_its_own_words():
    assert len({spoken(word) for word in ORDER}) == 4


def test_a_tally_counts_every_verdict_once_and_the_worst_first():
    verdicts = judge_claims(GUARANTEE, [BROKEN, fitted_secrets()])
    assert tally(own_claims(verdicts)) == "1 BROKEN, 2 not tested"
    assert tally(leaks(verdicts)) == "1 BROKEN, 2 not tested"
    assert tally([]) == "none"


def test_own_claims_and_the_rest_are_all_there_is():
    verdicts = judge_claims(GUARANTEE, [])
    assert own_claims(verdicts) + leaks(verdicts) == verdicts
    assert [verdict.tests for verdict in leaks(verdicts)] == [1, 2, 11]


def test_it_is_said_who_denies_a_leak():
    own, function, sizes = (judge_claims(GUARANTEE, [])[place] for place in (1, 3, 5))
    assert about_whom(own) == "hidden from server; claimed by this plan"
    assert about_whom(function) == "leaks to clients; P0, P1, P3 say that it does not"
    assert about_whom(sizes) == "leaks to server; nobody says that it does not"
    assert heading(function) == "line 1: the function the model computes"


@pytest.mark.parametrize(
    ("value", "metric", "said"),
    [
        (24.06, PSNR, "24.1"),
        (0.9, AUC, "0.900"),
        (2.3e-9, SOFTMAX_ERROR, "2.3e-09"),
        (0.0, SOFTMAX_ERROR, "0.00"),
        (1234567.0, PSNR, "1.2e+06"),
        (math.inf, PSNR, "inf"),
        (-math.inf, PSNR, "-inf"),
        (math.nan, PSNR, "?"),
    ],
)
def test_numbers_keep_their_size(value, metric, said):
    assert number(value, metric) == said


def test_a_figure_has_its_interval_and_a_missing_one_is_a_dash():
    assert figure(Scores(AUC, (0.5,), (0.4, 0.6))) == "0.500 [0.400, 0.600]"
    assert figure(None) == "-"


def test_the_metric_that_decided_is_shown_beside_the_main_one():
    assert [metric.name for metric in shown_metrics(judge(with_ssim(HOLDS, 0.6, 0.05)))] == ["PSNR dB", "SSIM"]
    assert [metric.name for metric in shown_metrics(judge(BLIND_ATTACK))] == ["PSNR dB"]
