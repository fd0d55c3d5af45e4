"""The attack that is shown where there is room for one: it never hides one that broke something."""

from dataclasses import replace

import pytest
from tests.audit.samples import (
    BLIND_ATTACK,
    BROKEN,
    HOLDS,
    around,
    distinguisher,
    fitted_secrets,
    inversion,
    membership,
    read_softmax,
)

from bilateral.audit.evidence import Condition
from bilateral.audit.scores import AUC, EPSILON_BOUND, PSNR, SOFTMAX_ERROR, Scores
from bilateral.audit.verdict import judge
from bilateral.report.audit_strength import beside, progress, ranked, short_figure, strongest, telling


def judged(*evidence):
    return [judge(one) for one in evidence]


def test_progress_goes_from_the_negative_control_to_the_positive_one():
    assert progress(HOLDS, PSNR) == pytest.approx(0.0)
    assert progress(BROKEN, PSNR) == pytest.approx((25.0 - 9.5) / (26.0 - 9.5))
    assert progress(read_softmax(), SOFTMAX_ERROR) == pytest.approx(1.0)  # small is good there
    assert progress(distinguisher(4.5, bound=3.0), EPSILON_BOUND) == pytest.approx(1.5)


def test_progress_without_controls_or_with_infinite_figures_is_a_number():
    assert progress(inversion(negative=None), PSNR) == 0.0
    perfect = Condition("this plan", (Scores(PSNR, (float("inf"),) * 20),))
    assert progress(replace(HOLDS, target=perfect), PSNR) > 1.0
    assert progress(replace(HOLDS, target=perfect, positive=perfect), PSNR) == 1.0


def test_what_broke_something_comes_before_whatever_got_further_without():
    far = inversion(target=around(26.0, trials=3), positive=around(26.0, trials=3), negative=around(9.5, trials=3))
    assert judge(far).verdict == "proves nothing"
    assert [found.verdict for found in ranked(judged(far, HOLDS, BROKEN))] == ["broken", "holds", "proves nothing"]


def test_the_strongest_of_a_kind():
    better = inversion(target=around(25.5, seed=1))
    assert strongest(judged(BROKEN, better)).evidence is better
    assert strongest(judged(BROKEN, better), adaptive=False) is None


def test_what_stands_for_a_claim_has_the_claims_verdict():
    naive = replace(BROKEN, adaptive=False)
    assert telling(judged(HOLDS, naive)).evidence is naive
    assert telling(judged(BLIND_ATTACK, HOLDS)).evidence is HOLDS
    assert telling(judged(BLIND_ATTACK, replace(HOLDS, adaptive=False))).evidence is BLIND_ATTACK
    assert telling([]) is None


def test_beside_an_adaptive_attack_stands_a_naive_one_that_compares_unless_another_broke_something():
    reader, lira = fitted_secrets(attack="reading", adaptive=False, target=fitted_secrets().negative), membership()
    adaptive = judge(fitted_secrets())
    assert beside(adaptive, judged(lira, reader)).evidence is reader
    broken = membership(target=Condition("this plan", (Scores(AUC, around(0.9, trials=5, spread=0.02)),)))
    assert beside(adaptive, judged(broken, reader)).evidence is broken
    assert beside(adaptive, judged(lira)).evidence is lira
    assert beside(adaptive, []) is None


def test_a_short_figure_has_its_controls_or_what_was_claimed():
    assert short_figure(judge(BROKEN)) == "PSNR dB 25.0; controls 26.0 and 9.5"
    assert short_figure(judge(distinguisher(5.0))) == "epsilon at least 5.00; claimed: at most 3"
    assert short_figure(judge(inversion(positive=None))) == "PSNR dB 9.5; controls none and 9.5: proves nothing"
