"""Answers follow the guarantee and the audit, and never say more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.report.run_pages import RUNS, directory_of

from bilateral.audit.auditor import stored_result
from bilateral.audit.verdict import OWN
from bilateral.report.run_page.facts import RunFacts, facts_of
from bilateral.report.run_page.questions import Answer, answers

_AUDITS = Path(__file__).resolve().parents[2] / "docs" / "audits"
MODEL, RECORD, PRESENCE, TOGETHER = range(4)


@pytest.mark.parametrize(
    ("name", "tones"),
    [
        ("fedavg", ("admitted", "admitted", "admitted", "admitted")),
        ("masks", ("admitted", "held", "admitted", "admitted")),
        ("perturbation", ("admitted", "held", "admitted", "admitted")),
        ("sealed", ("held", "held", "admitted", "admitted")),
        ("noise", ("admitted", "held", "held", "admitted")),
    ],
)
def test_what_is_claimed_is_held_and_all_else_admitted(name: str, tones: tuple[str, ...]) -> None:
    assert tuple(one.tone for one in answers(facts_of(directory_of(name)))) == tones


@pytest.mark.parametrize("name", RUNS)
def test_without_a_claim_nothing_is_held(name: str) -> None:
    facts = facts_of(directory_of(name))
    bare: Any = {**facts.guarantee, "claims": []}
    assert all(one.tone != "held" for one in answers(replace(facts, guarantee=bare)))


@pytest.mark.parametrize("name", RUNS)
def test_without_an_audit_no_attack_found_nothing(name: str) -> None:
    assert all("found nothing" not in one.text for one in answers(facts_of(directory_of(name))))


def _audited(verdict: str, subject: str) -> RunFacts:
    """The sealed run with the stored audit of sealed training, whose verdict on one claim is another."""
    result = stored_result(_AUDITS / "sealed" / "audit.json")
    changed = [
        replace(one, verdict=verdict) if one.claimed_by == OWN and one.tests == subject else one
        for one in result.verdicts
    ]
    return replace(facts_of(directory_of("sealed")), audit=replace(result, verdicts=tuple(changed)))


def _answer(facts: RunFacts, number: int) -> Answer:
    return answers(facts)[number]


@pytest.mark.parametrize(("number", "subject"), [(MODEL, "sealed model"), (RECORD, "sealed batch")])
def test_what_an_audit_broke_is_called_broken(number: int, subject: str) -> None:
    assert _answer(_audited("broken", subject), number).tone == "broken"
    assert _answer(_audited("broken", subject), 1 - number).tone != "broken"


def test_what_an_audit_does_not_settle_is_open() -> None:
    assert _answer(_audited("proves nothing", "sealed model"), MODEL).tone == "open"
    assert _answer(_audited("not tested", "sealed model"), MODEL).tone == "open"


def test_what_an_audit_found_to_hold_says_that_it_is_no_proof() -> None:
    found = _answer(_audited("holds", "sealed model"), MODEL)
    assert found.tone == "held"
    assert "no proof" in found.text


def test_the_audit_of_another_plan_settles_nothing() -> None:
    facts = replace(_audited("holds", "sealed model"), audit_note="of another plan")
    assert "not audited" in _answer(facts, MODEL).text


def test_noise_is_advised_only_where_it_can_be_had() -> None:
    assert "does not go with sealed" in _answer(facts_of(directory_of("sealed")), PRESENCE).text
    assert "--epsilon 8" in _answer(facts_of(directory_of("masks")), PRESENCE).text


def test_a_dealer_of_its_own_is_named() -> None:
    assert "auditor" in _answer(facts_of(directory_of("sealed")), TOGETHER).text
