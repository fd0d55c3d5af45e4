"""The command line's view: loud, complete, and within its columns."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests.audit.samples import (
    BLIND_ATTACK,
    BROKEN,
    HOLDS,
    SOFTMAX,
    audit_of,
    distinguisher,
    fitted_secrets,
    inversion,
    membership,
    read_softmax,
    with_ssim,
)

from bilateral.audit.auditor import FAILED, NOT_ASKED, Skipped
from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.report.audit_table import WIDEST, audit_tables

ALL = [BROKEN, BLIND_ATTACK, HOLDS, with_ssim(HOLDS, 0.6, 0.05), fitted_secrets(), membership(), read_softmax()]


def printed(result, width=100, colour=None, details=True):
    text = io.StringIO()
    console = Console(
        file=text, width=width, highlight=False, soft_wrap=True, color_system=colour, force_terminal=colour is not None
    )
    for part in audit_tables(result, details=details):
        console.print(part)
    return text.getvalue()


@pytest.mark.parametrize("details", [True, False])
@pytest.mark.parametrize("width", [80, 100, 140, 220])
def test_no_line_is_wider_than_the_terminal(width, details):
    assert max(len(line) for line in printed(audit_of(ALL), width, details=details).splitlines()) <= width


def test_the_short_form_has_every_attack_with_its_figures_and_why_something_is_not_decided():
    text = printed(audit_of([*ALL, distinguisher()]), 140, details=False)
    for words in ("0.980 [0.950, 0.995]", "1.000", "0.110", "BROKEN", "proves nothing", "no attack of this audit"):
        assert words in text
    rows = " ".join(text.split())
    for one in ALL:
        assert one.attack in rows
    assert len(text.splitlines()) < len(printed(audit_of(ALL), 140).splitlines())


def test_the_summary_comes_first_and_counts_own_claims_apart():
    lines = printed(audit_of(ALL)).splitlines()
    assert "THIS PLAN'S OWN CLAIM IS BROKEN: single uploads" in lines[1]
    assert "Claims of this plan: 1 BROKEN, 2 not tested" in lines[2]
    assert "Papers' claims and admitted leaks: 2 BROKEN, 1 not tested" in lines[3]


def test_a_broken_leak_that_the_plan_admits_is_no_broken_claim_of_the_plan():
    text = printed(audit_of([HOLDS, fitted_secrets()]))
    assert "THIS PLAN'S OWN CLAIM" not in text
    assert "1 BROKEN" in text


def test_every_attack_has_its_figures_and_controls():
    text = printed(audit_of([fitted_secrets()]))
    for figure in ("0.980 [0.950, 0.995]", "1.000 [0.982, 1.000]", "0.110 [0.070, 0.162]"):
        assert figure in text
    for word in ("FedSGD", "random secrets", "adaptive curious", "agreement with"):
        assert word in text


def test_a_missing_control_is_shown_as_missing():
    text = printed(audit_of([inversion(positive=None, negative=None)]))
    row = next(line for line in text.splitlines() if "9.5 [" in line)
    assert row.split().count("-") == 2


def test_the_metric_that_decided_is_there():
    text = printed(audit_of([with_ssim(HOLDS, 0.6, 0.05)]))
    assert "0.60 [" in text
    assert "SSIM" in text


def test_a_claimed_bound_is_there():
    dp = Guarantee("sound noise", (Claim("differential privacy", "one sample", "server", "noise"),), ())
    assert "claimed: at most 3" in printed(audit_of([distinguisher(5.0)], dp))


def test_broken_is_bold_red_and_holds_is_green():
    assert "\x1b[1;31mBROKEN" in printed(audit_of([BROKEN]), colour="standard")
    assert "\x1b[32mholds" in printed(audit_of([HOLDS]), colour="standard")
    assert "\x1b[33mproves nothing" in printed(audit_of([BLIND_ATTACK]), colour="standard")
    assert "\x1b[33mnot tested" in printed(audit_of([]), colour="standard")


def test_what_was_not_tried_is_listed_with_its_reason():
    skipped = [Skipped("dp", "Distinguishing game", "no noise in this plan"), Skipped("x", "Labels", "failed: oh [no]")]
    text = printed(audit_of([HOLDS], skipped=skipped))
    assert "Distinguishing game: no noise in this plan" in text
    assert "Labels: failed: oh [no]" in text


def test_an_unfinished_audit_says_so():
    assert "stopped before its end" in printed(replace(audit_of([HOLDS]), finished=False))


def test_an_audit_without_claims_is_printed_too():
    assert "Claims of this plan: none" in printed(audit_of([], Guarantee("FedSGD", (), ())))


def test_brackets_in_texts_are_shown_as_they_are():
    assert "[bold]inversion[/]" in printed(audit_of([replace(HOLDS, attack="[bold]inversion[/]")]))


def test_figures_stay_beside_their_attack_in_a_wide_terminal():
    rows = [line for line in printed(audit_of([HOLDS]), 300).splitlines() if "cosine inversion" in line]
    assert rows
    assert all(len(row.rstrip()) <= WIDEST for row in rows)


def test_the_end_has_a_row_for_every_claim_with_the_attack_that_tells_most():
    text = printed(audit_of([BROKEN, BLIND_ATTACK, fitted_secrets()]), 140, details=False)
    short = text.split("In short")[1]
    assert [short.count(word) for word in ("BROKEN", "not tested")] == [2, 4]
    row = next(line for line in short.splitlines() if "single uploads" in line)
    assert "cosine inversion" in row
    assert "PSNR dB 25.0" in row
    blind = printed(audit_of([BLIND_ATTACK]), 140, details=False).split("In short")[1]
    assert "BROKEN" not in blind
    assert blind.count("proves nothing") == 2


def test_a_line_that_leaks_two_things_to_the_same_party_is_shown_and_counted_once():
    again = Leak("softmax values of a second kind", SOFTMAX.whom, SOFTMAX.ledger_line)
    elsewhere = Leak(SOFTMAX.what, "server", SOFTMAX.ledger_line)
    result = audit_of([read_softmax()], guarantee=Guarantee("perturbation", (), (SOFTMAX, again, elsewhere)))
    text = printed(result, 140)
    assert "Papers' claims and admitted leaks: 1 BROKEN, 1 not tested" in text
    assert text.split("In short")[1].count("BROKEN") == 1
    assert f"line 2: {SOFTMAX.what}; {again.what}" in text


def test_a_bound_reads_as_one_and_nothing_is_called_chance():
    dp = Guarantee("sound noise", (Claim("differential privacy", "one sample", "server", "noise"),), ())
    for details in (True, False):
        text = printed(audit_of([distinguisher(5.0)], dp), details=details)
        assert "at least 5.00" in text
        assert "inf]" not in text
        assert "chance" not in text


def test_what_was_not_asked_for_is_not_called_untested():
    left_out = [Skipped("membership", "Membership", NOT_ASKED)]
    asked = replace(audit_of([fitted_secrets()], skipped=left_out), only=("function-recovery",))
    text = printed(asked)
    assert "Claims of this plan: 3 not asked for" in text
    assert "this audit asked for function-recovery alone" in text
    failed = replace(asked, skipped=(*left_out, Skipped("x", "Labels", f"{FAILED}: oh")))
    assert "Claims of this plan: 3 not tested" in printed(failed)
    assert "Claims of this plan: 3 not tested" in printed(replace(asked, finished=False))
    elsewhere = tuple(replace(one, reason="dp: the plan adds no noise") for one in asked.verdicts)
    assert "Claims of this plan: 3 not tested" in printed(replace(asked, verdicts=elsewhere))


def test_two_attacks_of_one_name_say_what_is_different():
    text = " ".join(printed(audit_of([HOLDS, replace(HOLDS, seen="the sum")]), 140, details=False).split())
    assert "cosine inversion (uploads)" in text
    assert "cosine inversion (the sum)" in text
