"""The judge is honest by construction: what is broken is called so, and a failed control never ends in "holds"."""

import json
from dataclasses import replace

import pytest
from tests.audit.samples import (
    BLIND_ATTACK,
    BROKEN,
    FUNCTION,
    GUARANTEE,
    HOLDS,
    OTHERS,
    SIZES,
    SOFTMAX,
    SUMS,
    UPLOADS,
    around,
    distinguisher,
    fitted_secrets,
    inversion,
    membership,
    rate,
    read_softmax,
    with_ssim,
)

from bilateral.audit.evidence import Condition, Evidence, Gate, evidence_from
from bilateral.audit.scores import AUC, EPSILON_BOUND, PSNR, SSIM, Metric, Scores
from bilateral.audit.verdict import LEVEL, SUSPICION, combine, judge, judge_claims, rows
from bilateral.protocols.guarantee import Claim, Guarantee, Leak

ROW_KEYS = {
    "claim",
    "adversary",
    "attack",
    "adaptive",
    "metric",
    "value",
    "interval",
    "positive_control",
    "negative_control",
    "verdict",
}


def verdict_of(subject, *evidence):
    return next(one for one in judge_claims(GUARANTEE, evidence) if one.tests == subject)


class TestAnAttack:
    def test_on_a_deliberately_broken_protection_is_reported_broken(self):
        found = judge(BROKEN)
        assert found.verdict == "broken"
        assert found.p_value <= LEVEL
        assert "PSNR" in found.reason

    def test_at_chance_with_all_controls_in_order_holds(self):
        assert judge(HOLDS).verdict == "holds"

    def test_whose_positive_control_failed_proves_nothing_however_good_the_target_looks(self):
        found = judge(BLIND_ATTACK)
        assert found.verdict == "proves nothing"
        assert "positive control" in found.reason
        assert "median PSNR dB >= 20" in found.reason

    @pytest.mark.parametrize("psnr", [-50.0, 0.0, 5.0, 9.5])
    def test_with_a_failed_positive_control_never_holds(self, psnr):
        assert judge(inversion(target=around(psnr, seed=1), positive=around(19.0))).verdict == "proves nothing"

    def test_that_succeeds_is_broken_even_if_its_positive_control_failed(self):
        assert judge(inversion(target=around(25.0), positive=around(5.0))).verdict == "broken"

    def test_that_succeeds_is_broken_without_any_positive_control(self):
        assert judge(inversion(target=around(25.0), positive=None)).verdict == "broken"

    def test_must_miss_no_gate_of_several(self):
        gates = (Gate(PSNR, 20.0), Gate(SSIM, 0.95))
        found = judge(with_ssim(replace(HOLDS, gates=gates), 0.05, 0.05))
        assert found.verdict == "proves nothing"
        assert "SSIM" in found.reason
        assert "PSNR" not in found.reason

    def test_whose_gate_is_about_something_the_positive_control_did_not_measure_proves_nothing(self):
        measured = with_ssim(HOLDS, 0.05, 0.05)
        found = judge(replace(measured, positive=HOLDS.positive, gates=(Gate(SSIM, 0.7),)))
        assert found.verdict == "proves nothing"
        assert "positive control (FedSGD) misses mean SSIM >= 0.7" in found.reason

    def test_without_a_positive_control_proves_nothing(self):
        assert judge(inversion(positive=None)).verdict == "proves nothing"

    def test_without_gates_proves_nothing(self):
        found = judge(replace(HOLDS, gates=()))
        assert found.verdict == "proves nothing"
        assert "never seen to work" in found.reason

    def test_without_a_negative_control_proves_nothing(self):
        found = judge(inversion(negative=None))
        assert found.verdict == "proves nothing"
        assert "chance is unknown" in found.reason

    def test_with_a_blind_metric_proves_nothing(self):
        """The metric calls chance a success: neither target nor chance can be told apart by it."""
        found = judge(inversion(target=around(25.0, seed=1), negative=around(25.0, seed=3)))
        assert found.verdict == "proves nothing"
        assert "blind" in found.reason

    def test_with_too_few_trials_proves_nothing_even_if_all_of_them_succeed(self):
        found = judge(inversion(target=around(25.0, trials=8), negative=around(9.5, trials=8)))
        assert found.verdict == "proves nothing"
        assert "too few" in found.reason

    def test_needs_more_trials_the_more_metrics_it_has(self):
        ten = inversion(target=around(9.4, trials=10, seed=1), negative=around(9.5, trials=10))
        assert judge(ten).verdict == "holds"
        three = replace(
            ten,
            target=Condition("this plan", tuple(Scores(m, around(0.3, trials=10, seed=1)) for m in (PSNR, SSIM, AUC))),
            negative=Condition("chance", tuple(Scores(m, around(0.3, trials=10, seed=2)) for m in (PSNR, SSIM, AUC))),
        )
        assert judge(three).verdict == "proves nothing"

    def test_has_one_level_for_all_its_metrics_together(self):
        """Ten better ones of ten: 1 in 1024, which is a finding for one metric and none for three."""
        better = tuple(value + 1.0 for value in around(9.5, trials=10))
        one = inversion(target=better, negative=around(9.5, trials=10))
        assert judge(one).verdict == "broken"
        others = tuple(Scores(metric, (0.3,) * 10) for metric in (SSIM, AUC))
        three = replace(
            one,
            target=Condition("this plan", (*one.target.scores, *others)),
            negative=Condition("chance", (*one.negative.scores, *others)),
        )
        assert judge(three).verdict == "proves nothing"

    def test_with_too_few_trials_of_one_metric_proves_nothing(self):
        few = Scores(SSIM, around(0.05, trials=5, spread=0.01))
        evidence = replace(
            with_ssim(HOLDS, 0.05, 0.05),
            target=Condition("this plan", (*HOLDS.target.scores, few)),
            negative=Condition("chance", (*HOLDS.negative.scores, few)),
        )
        assert judge(evidence).verdict == "proves nothing"

    def test_is_broken_by_its_second_metric_alone(self):
        found = judge(with_ssim(HOLDS, 0.6, 0.05))
        assert found.verdict == "broken"
        assert found.reason.startswith("SSIM")

    def test_worse_than_chance_is_not_called_broken(self):
        assert judge(inversion(target=around(5.0, seed=1))).verdict == "holds"

    def test_is_judged_in_the_attackers_direction_where_low_is_good(self):
        assert judge(read_softmax()).verdict == "broken"
        swapped = read_softmax(target=Condition("this plan", (read_softmax().negative.scores[0],)))
        assert judge(swapped).verdict == "holds"

    def test_unpaired_needs_no_equal_numbers_of_trials(self):
        assert judge(membership()).verdict == "holds"
        found = membership(target=Condition("this plan", (Scores(AUC, around(0.9, trials=5, spread=0.01)),)))
        assert judge(found).verdict == "broken"

    def test_pairing_sees_a_small_gain_that_is_there_in_every_trial(self):
        chance = around(9.5, spread=3.0, seed=3)
        better = tuple(value + 0.2 + 0.01 * number for number, value in enumerate(chance))
        assert judge(inversion(target=better, negative=chance)).verdict == "broken"
        assert judge(inversion(target=better, negative=chance, paired=False)).verdict != "broken"


class TestABound:
    def test_that_is_exceeded_with_the_whole_interval_is_broken(self):
        found = judge(distinguisher(low=5.0, bound=3.0))
        assert found.verdict == "broken"
        assert "3" in found.reason

    def test_that_is_not_reached_holds(self):
        assert judge(distinguisher(low=0.4, bound=3.0)).verdict == "holds"

    def test_that_the_negative_control_exceeds_proves_nothing(self):
        wrong = Condition("equal neighbours", (Scores(EPSILON_BOUND, (3.5,), (3.5, 9.0)),))
        found = judge(distinguisher(low=0.4, negative=wrong))
        assert found.verdict == "proves nothing"
        assert "wrong" in found.reason

    def test_whose_game_cannot_be_won_even_without_noise_proves_nothing(self):
        weak = Condition("no noise", (Scores(EPSILON_BOUND, (1.0,), (1.0, 9.0)),))
        assert judge(distinguisher(low=0.4, positive=weak)).verdict == "proves nothing"

    def test_without_a_negative_control_proves_nothing(self):
        assert judge(distinguisher(low=0.4, negative=None)).verdict == "proves nothing"


class TestAClaim:
    def test_that_nobody_tried_is_not_tested(self):
        assert verdict_of("overlapping sums", BROKEN).verdict == "not tested"

    def test_that_only_naive_attackers_tried_is_not_tested(self):
        verdict = verdict_of("single uploads", replace(HOLDS, adaptive=False))
        assert verdict.verdict == "not tested"
        assert "do not know the protocol" in verdict.reason

    def test_is_broken_by_a_naive_attacker_too(self):
        assert verdict_of("single uploads", replace(BROKEN, adaptive=False)).verdict == "broken"

    def test_is_broken_if_one_attack_of_many_breaks_it(self):
        verdict = verdict_of("single uploads", HOLDS, replace(BROKEN, attack="iDLG"), BLIND_ATTACK)
        assert verdict.verdict == "broken"
        assert "iDLG (adaptive curious server)" in verdict.reason

    def test_with_a_failed_positive_control_and_nothing_else_proves_nothing(self):
        assert verdict_of("single uploads", BLIND_ATTACK).verdict == "proves nothing"

    def test_with_a_failed_adaptive_attack_and_a_naive_one_that_found_nothing_proves_nothing(self):
        verdict = verdict_of("single uploads", BLIND_ATTACK, replace(HOLDS, adaptive=False))
        assert verdict.verdict == "proves nothing"

    def test_holds_only_by_naming_the_attacks_that_found_nothing(self):
        verdict = verdict_of("single uploads", HOLDS)
        assert verdict.verdict == "holds"
        assert verdict.reason == "nothing found by cosine inversion (adaptive curious server)"

    def test_of_a_leak_is_judged_like_any_other(self):
        assert verdict_of(1, fitted_secrets(), membership()).verdict == "broken"
        assert verdict_of(11).verdict == "not tested"

    def test_gets_only_the_findings_of_those_it_is_about(self):
        both = Guarantee("FedSGD", (), (Leak("the model", "clients", 0), Leak("gradients", "server", 0)))
        to_clients, to_server = judge_claims(both, [replace(BROKEN, tests=0)])
        assert (to_clients.verdict, to_server.verdict) == ("not tested", "broken")


def test_no_evidence_at_all_is_not_tested():
    assert combine(()) == ("not tested", "no attack of this audit is about it")


def test_every_claim_and_every_leak_has_a_verdict_and_a_row_whether_tested_or_not():
    verdicts = judge_claims(GUARANTEE, [BROKEN, fitted_secrets()])
    stated = [one.what for one in (OTHERS, UPLOADS, SUMS, FUNCTION, SOFTMAX, SIZES)]
    assert [verdict.what for verdict in verdicts] == stated
    assert list(dict.fromkeys(row["claim"] for row in rows(verdicts))) == stated


def test_rows_have_the_keys_that_machines_rely_on_and_are_plain_json():
    evidence = [BROKEN, BLIND_ATTACK, inversion(positive=None, negative=None), fitted_secrets(), distinguisher()]
    found = rows(judge_claims(GUARANTEE, evidence))
    assert all(set(row) >= ROW_KEYS for row in found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_row_has_the_figures_of_target_and_controls():
    row = next(row for row in rows(judge_claims(GUARANTEE, [BROKEN])) if row["attack"])
    assert row["verdict"] == row["claim_verdict"] == "broken"
    assert row["value"] == pytest.approx(25.0)
    assert row["interval"][0] < 25.0 < row["interval"][1]
    assert row["positive_control"]["value"] == pytest.approx(26.0)
    assert row["negative_control"]["value"] == pytest.approx(9.5)


def test_a_row_of_a_failed_control_says_so_beside_what_the_claim_came_to():
    found = [row for row in rows(judge_claims(GUARANTEE, [BLIND_ATTACK, HOLDS])) if row["attack"]]
    assert [row["verdict"] for row in found] == ["proves nothing", "holds"]
    assert {row["claim_verdict"] for row in found} == {"holds"}


def test_stored_evidence_is_judged_as_it_was():
    dp = Claim("differential privacy", "one sample", "server", "sound noise")
    guarantee = replace(GUARANTEE, claims=(*GUARANTEE.claims, dp))
    evidence = [
        BROKEN,
        BLIND_ATTACK,
        HOLDS,
        with_ssim(HOLDS, 0.6, 0.05),
        fitted_secrets(),
        membership(),
        read_softmax(),
    ]
    evidence += [distinguisher(), distinguisher(5.0), inversion(negative=None), inversion(positive=None)]
    stored = json.loads(json.dumps([one.as_dict() for one in evidence], allow_nan=False))
    again = [evidence_from(one) for one in stored]
    assert again == evidence
    assert rows(judge_claims(guarantee, again)) == rows(judge_claims(guarantee, evidence))


def test_the_judge_says_the_same_twice():
    """The permutation test draws; it must not make a verdict a matter of luck."""
    near = inversion(target=around(9.8, seed=1))
    assert judge(near) == judge(near)


def test_a_perfect_rate_of_success_is_broken():
    sure = fitted_secrets(target=Condition("this plan", (Scores(fitted_secrets().gates[0].metric, rate(200, 200)),)))
    assert judge(sure).verdict == "broken"


class TestHoles:
    """Ways in which "holds", or silence, would say more than was found."""

    def test_a_target_on_which_the_measure_of_success_was_not_taken_does_not_hold(self):
        """The positive control passes by SSIM, but the target was only scored by PSNR."""
        scored = with_ssim(HOLDS, 0.9, 0.05)
        evidence = replace(scored, target=HOLDS.target, gates=(Gate(SSIM, 0.7),))
        assert judge(evidence).verdict == "proves nothing"

    def test_a_metric_that_the_negative_control_lacks_is_not_passed_over(self):
        evidence = replace(with_ssim(HOLDS, 0.9, 0.05), negative=HOLDS.negative)
        assert judge(evidence).verdict == "proves nothing"

    def test_a_target_that_passes_the_gates_of_success_does_not_hold(self):
        """Not clearly better than a control that almost passes as well: undecided, and never "holds"."""
        evidence = inversion(target=around(20.5, spread=2.0, seed=1), negative=around(19.5, spread=2.0, seed=3))
        assert judge(evidence).verdict == "proves nothing"

    def test_a_value_beyond_a_bound_without_a_known_interval_does_not_hold(self):
        one_trial = Condition("this plan", (Scores(EPSILON_BOUND, (100.0,)),))
        assert judge(distinguisher(bound=1.0, target=one_trial)).verdict == "proves nothing"

    def test_what_was_found_about_something_the_plan_does_not_mention_is_not_lost(self):
        verdicts = judge_claims(Guarantee("nothing", (), ()), [BROKEN, fitted_secrets()])
        assert [(verdict.tests, verdict.verdict) for verdict in verdicts] == [
            ("single uploads", "broken"),
            (1, "broken"),
        ]
        assert all(verdict.claimed_by != "this plan" for verdict in verdicts)


class TestNothingHoldsOnASuspicion:
    """Sparse or weak signs of success are no proof of a break, and the opposite of a reason to say that it holds."""

    @pytest.mark.parametrize("hits", [1, 5, 9])
    def test_a_few_trials_that_succeed_completely(self, hits):
        stolen = taken(rate(hits), rate(0))
        assert judge(stolen).verdict != "holds"
        assert judge(taken(rate(0), rate(0))).verdict == "holds"

    def test_the_same_successes_by_chance_are_no_suspicion(self):
        assert judge(taken(rate(2), rate(3))).verdict == "holds"

    def test_almost_all_trials_that_succeed_are_a_break(self):
        assert judge(taken(rate(18), rate(0))).verdict == "broken"

    def test_a_difference_between_the_two_levels(self):
        chance = around(9.5, spread=1.0, seed=3)
        better = tuple(value + (0.9 if number % 2 else -0.25) for number, value in enumerate(chance))
        found = judge(inversion(better, negative=chance))
        assert LEVEL < found.p_value <= SUSPICION
        assert (found.verdict, "suspicious" in found.reason) == ("proves nothing", True)

    def test_an_interval_that_reaches_success(self):
        wide = Evidence(
            "single uploads", "curious server", "two seeds", True, "", two_seeds(0.45, 0.62),
            Condition("FedSGD", (Scores(AUC, around(0.95, spread=0.01)),)),
            Condition("null", (Scores(AUC, around(0.5, trials=60, spread=0.05, seed=5)),)), (Gate(AUC, 0.85),),
        )  # fmt: skip
        found = judge(wide)
        assert (found.verdict, "interval" in found.reason) == ("proves nothing", True)

    def test_a_claim_names_what_proved_nothing_and_what_is_broken_beside_it(self):
        stolen = taken(rate(5), rate(0))
        server_leak = Leak("the softmax", "server", 8)
        guarantee = Guarantee("x", (UPLOADS,), (server_leak,))
        softmax = replace(read_softmax(), tests=8, adversary="curious server")
        verdict = judge_claims(guarantee, [HOLDS, stolen, softmax])[0]
        assert verdict.verdict == "holds"
        assert "Proves nothing: stealing" in verdict.reason
        assert "ledger lines 8" in verdict.reason


def test_a_control_that_passes_one_of_two_gates_is_not_blind():
    both = with_ssim(HOLDS, 0.05, 0.05)
    loose = replace(both, gates=(*both.gates, Gate(PSNR, 1.0)))  # every image passes the second
    assert judge(loose).verdict == "holds"
    assert judge(replace(both, gates=(Gate(PSNR, 1.0),))).verdict == "proves nothing"


def test_what_an_eavesdropper_finds_counts_against_what_is_hidden_from_the_server():
    listener = replace(BROKEN, adversary="eavesdropper")
    assert judge_claims(Guarantee("x", (UPLOADS,), ()), [listener])[0].verdict == "broken"


def taken(target, negative):
    metric = Metric("uploads stolen", "high", is_rate=True)
    return Evidence(
        "single uploads", "dishonest server", "stealing", True, "everything",
        Condition("this plan", (Scores(metric, target),)),
        Condition("no checks", (Scores(metric, rate(20)),)), Condition("guessing", (Scores(metric, negative),)),
        (Gate(metric, 1.0),), paired=True,
    )  # fmt: skip


def two_seeds(*values):
    return Condition("this plan", (Scores(AUC, values),))
