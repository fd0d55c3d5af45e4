"""Every view says the same, and "holds" never without what it means."""

import math
from dataclasses import replace

import pytest
from tests.audit.samples import (
    BLIND_ATTACK,
    BROKEN,
    GUARANTEE,
    HOLDS,
    audit_of,
    distinguisher,
    fitted_secrets,
    with_ssim,
)

from bilateral.audit.scores import (
    AGREEMENT,
    AUC,
    BALANCED_ACCURACY,
    EPSILON_BOUND,
    PSNR,
    SOFTMAX_ERROR,
    TPR_AT_1,
    Metric,
    Scores,
)
from bilateral.audit.topics.model.private_judge import CONFIDENCE
from bilateral.audit.verdict import judge, judge_claims
from bilateral.report.audit_words import (
    NOTHING_FOUND,
    ORDER,
    about_whom,
    claimed,
    figure,
    heading,
    leaks,
    number,
    own_claims,
    shown_metrics,
    spoken,
    tally,
    told_apart,
)


def test_holds_is_never_said_without_what_it_means():
    assert spoken("holds") == f"holds ({NOTHING_FOUND})"
    result = audit_of([HOLDS])
    assert tally(own_claims(result.verdicts), result) == f"2 not tested, 1 holds ({NOTHING_FOUND})"
    assert tally([own_claims(result.verdicts)[1]] * 2, result) == f"2 hold ({NOTHING_FOUND})"


def test_every_verdict_has_its_own_words():
    assert len({spoken(word) for word in ORDER}) == 4


def test_a_tally_counts_every_verdict_once_and_the_worst_first():
    result = audit_of([BROKEN, fitted_secrets()])
    assert tally(own_claims(result.verdicts), result) == "1 BROKEN, 2 not tested"
    assert tally(leaks(result.verdicts), result) == "1 BROKEN, 2 not tested"
    assert tally([], result) == "none"


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


def test_what_the_plan_does_not_mention_is_not_said_to_leak():
    tried = replace(HOLDS, tests=16, adversary="dishonest server")
    (unstated,) = [verdict for verdict in judge_claims(GUARANTEE, [tried]) if verdict.tests == 16]
    assert about_whom(unstated) == "tried by dishonest server; this plan neither claims nor admits it"


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


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((5.13, math.inf), "at least 5.13"),
        ((-math.inf, 5.13), "at most 5.13"),
        ((-math.inf, math.inf), "5.13 (interval unknown)"),
        ((4.0, math.inf), "5.13 [4.00, inf]"),
    ],
)
def test_a_bound_reads_as_a_bound(interval, said):
    assert figure(Scores(EPSILON_BOUND, (5.13,), interval)) == said


@pytest.mark.parametrize("metric", [AUC, AGREEMENT, TPR_AT_1, BALANCED_ACCURACY, CONFIDENCE])
def test_no_interval_of_a_share_goes_beyond_it_whatever_file_it_comes_from(metric):
    old = Metric(metric.name, "high", digits=3)
    assert Scores(old, (1.0, 0.9, 1.0)).interval[1] > 1
    assert figure(Scores(old, (1.0, 0.9, 1.0))).endswith(", 1.000]")
    assert "[0.000, " in figure(Scores(old, (0.0, 0.1, 0.0)))


def test_a_claimed_figure_says_which_way_it_binds():
    assert claimed(distinguisher(bound=1.4315864)) == "claimed: at most 1.43"
    assert claimed(HOLDS) == ""


def test_attacks_of_one_name_are_told_apart_by_what_differs():
    other = replace(HOLDS, seen="the sum")
    assert told_apart([HOLDS, other]) == ["cosine inversion (uploads)", "cosine inversion (the sum)"]
    assert told_apart([HOLDS, replace(HOLDS, adversary="eavesdropper")]) == ["cosine inversion"] * 2
    assert told_apart([HOLDS, replace(HOLDS, remark="again")]) == ["cosine inversion ()", "cosine inversion (again)"]
    assert told_apart([HOLDS, replace(HOLDS)]) == ["cosine inversion (1 of 2)", "cosine inversion (2 of 2)"]
    assert told_apart([HOLDS, HOLDS]) == ["cosine inversion"] * 2  # one attack, said twice


def test_the_metric_that_decided_is_shown_beside_the_main_one():
    assert [metric.name for metric in shown_metrics(judge(with_ssim(HOLDS, 0.6, 0.05)))] == ["PSNR dB", "SSIM"]
    assert [metric.name for metric in shown_metrics(judge(BLIND_ATTACK))] == ["PSNR dB"]
