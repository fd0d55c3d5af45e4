"""What attackers got, beside the same attack where nothing defends and where there is nothing to find."""

from __future__ import annotations

from collections.abc import Sequence

from bilateral.audit.auditor import AuditResult
from bilateral.audit.verdict import ClaimVerdict, Finding, Word
from bilateral.report.audit_words import (
    CAVEAT,
    NEGATIVE,
    POSITIVE,
    about_whom,
    attacker,
    claimed,
    figure,
    figure_of,
    leaks,
    own_claims,
    short_reason,
    spoken,
    spoken_of,
    tally,
    title_of,
    told_apart,
)
from bilateral.report.html import Html, el, joined, table
from bilateral.report.run_page.facts import RunFacts

_OWN: dict[Word, str] = {"holds": "ok", "broken": "bad", "not tested": "warn", "proves nothing": "warn"}
_HEAD = ("attack", "attacker gets", POSITIVE, NEGATIVE, "verdict")


def attacks(facts: RunFacts) -> Html:
    """The audit's findings, claim by claim; or how to have one."""
    if facts.audit is None:
        command = el("code", f"bilateral audit {facts.directory / 'plan.toml'}")
        how = (
            " attacks its plan from the place of each party; with that folder, ",
            el("code", "bilateral report --audit"),
        )
        return el("p", "This run was not audited. ", command, how, " shows here what attackers got.")
    result = facts.audit
    own, admitted = own_claims(result.verdicts), leaks(result.verdicts)
    said = [el("li", "Claims of the plan: ", tally(own, result)), el("li", "Admitted leaks: ", tally(admitted, result))]
    note = el("p", facts.audit_note, class_="alarm") if facts.audit_note else None
    blocks = [_claim(verdict, result, own=True) for verdict in own]
    blocks += [_claim(verdict, result, own=False) for verdict in admitted]
    return joined((note, el("ul", said), el("p", CAVEAT, class_="note"), blocks))


def _claim(verdict: ClaimVerdict, result: AuditResult, *, own: bool) -> Html:
    """Broken claims are red; a leak that the plan admits is not, whoever found it."""
    tone = _OWN[verdict.verdict] if own else "warn"
    words = spoken_of(verdict, result) if own or verdict.verdict != "broken" else "admitted, and found"
    title = el("summary", el("span", words, class_=f"tag {tone}"), " ", title_of(verdict))
    text = el("p", about_whom(verdict), ". ", short_reason(verdict, result), class_="note")
    rows = _rows(verdict.findings)
    caption = f"Attacks on: {title_of(verdict)}"
    listed = table(_HEAD, rows, caption=caption) if rows else None
    return el("details", title, text, listed, open=own and verdict.verdict == "broken")


def _rows(findings: Sequence[Finding]) -> list[tuple[Html | str, ...]]:
    names = told_apart([found.evidence for found in findings])
    return [_row(name, found) for name, found in zip(names, findings, strict=True)]


def _row(name: str, found: Finding) -> tuple[Html | str, ...]:
    evidence = found.evidence
    main = evidence.target.scores[0]
    controls = [
        joined((figure_of(one, main.metric), _what(one.what if one else "none")))
        for one in (evidence.positive, evidence.negative)
    ]
    return (
        joined((name, _what(f"{attacker(evidence)}; sees {evidence.seen}"))),
        joined((figure(main), _what(main.metric.name), _what(claimed(evidence)))),
        *controls,
        joined((spoken(found.verdict), _what(found.reason))),
    )


def _what(text: str) -> Html:
    return el("span", text, class_="what") if text else Html()
