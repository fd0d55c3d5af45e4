"""The leakage page on what the plans themselves claim: in short for all of them, then plan by plan."""

from __future__ import annotations

from collections.abc import Sequence

from bilateral.audit.auditor import AuditResult
from bilateral.audit.verdict import ClaimVerdict, Finding
from bilateral.report.audit_strength import ranked, short_attack, short_figure, telling
from bilateral.report.audit_words import not_asked, own_claims, spoken_of
from bilateral.report.leakage_attacks import claim_attacks
from bilateral.report.leakage_markdown import Named, Pictures, folded, gallery, loud, table

NONE_TRIED = "-"


def claims_in_short(results: Sequence[Named]) -> str:
    """A row a claim and plan, broken claims first; plans in which nobody tried it share one."""
    claims = [(name, result, verdict) for name, result in results for verdict in own_claims(result.verdicts)]
    claims.sort(key=lambda one: one[2].verdict != "broken")
    rows: list[tuple[str, ...]] = []
    for subject in dict.fromkeys(str(verdict.tests) for _, _, verdict in claims):
        untried: dict[str, list[str]] = {}
        for name, result, verdict in claims:
            if str(verdict.tests) != subject:
                continue
            if verdict.findings:
                rows.append((subject, name, loud(verdict, result), *_tried(verdict)))
            else:
                untried.setdefault(spoken_of(verdict, result), []).append(name)
        rows += [(subject, ", ".join(names), said, "0", NONE_TRIED, NONE_TRIED) for said, names in untried.items()]
    head = ("claim", "audit", "verdict", "attacks", "strongest of them", "gets")
    return table(head, rows) if rows else "No plan claims anything."


def plan_claims(name: str, result: AuditResult, pictures: Pictures) -> list[str]:
    """One plan: what stays hidden from whom, and the verdict; all attacks folded."""
    verdicts = own_claims(result.verdicts)
    parts = [f"### {name}"]
    if not verdicts:
        return [*parts, "It claims nothing."]
    rows = [
        (str(verdict.tests), verdict.what, verdict.whom, loud(verdict, result), _count(verdict.findings))
        for verdict in verdicts
    ]
    parts.append(table(("claim", "what stays hidden", "from", "verdict", "attacks"), rows))
    undecided = [one for one in verdicts if one.verdict in ("not tested", "proves nothing")]
    parts += [f"*{one.tests}*, {one.verdict}: {one.reason}." for one in undecided if not not_asked(one, result)]
    tried = [(str(verdict.tests), found) for verdict in verdicts for found in verdict.findings]
    if tried:
        parts.append(claim_attacks(tried))
    order = [(name, found) for found in ranked([found for _, found in tried])]
    shown = gallery(order, pictures)
    broken = any(verdict.verdict == "broken" for verdict in verdicts)
    return [*parts, *shown] if broken or name == "default" or not shown else [*parts, folded("Pictures", *shown)]


def _tried(verdict: ClaimVerdict) -> tuple[str, str, str]:
    best = telling(verdict.findings)
    shown = (short_attack(best, verdict.findings), short_figure(best)) if best else (NONE_TRIED, NONE_TRIED)
    return (_count(verdict.findings), *shown)


def _count(findings: Sequence[Finding]) -> str:
    """`18`, `18, 1 of which proves nothing`."""
    void = sum(found.verdict == "proves nothing" for found in findings)
    said = f", {void} of which prove{'s' if void == 1 else ''} nothing" if void else ""
    return f"{len(findings)}{said}"
