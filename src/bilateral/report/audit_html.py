"""An audit as one HTML file that needs nothing else: no scripts, no other files, fit for printing.

What people ask first stands first, as on the page of a run; then every claim with what attackers got.

Formal guarantee (tests/report/test_audit_html.py): whatever an audit's texts contain is shown, not interpreted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bilateral.audit.auditor import AuditResult
from bilateral.audit.verdict import ClaimVerdict
from bilateral.engine.kind import parse_any
from bilateral.engine.plan import parse_plan
from bilateral.errors import BilateralError, PlanError
from bilateral.protections.ladder import LADDER, TITLES
from bilateral.report.audit_pictures import OVERVIEW, write_overview
from bilateral.report.audit_strength import short_attack, short_figure, telling
from bilateral.report.audit_words import (
    CAVEAT,
    CONTROLS,
    LEAKS_TITLE,
    NEGATIVE,
    OWN_TITLE,
    POSITIVE,
    about_whom,
    attacker,
    figure_of,
    leaks,
    own_claims,
    tally,
    title_of,
    told_apart,
)
from bilateral.report.findings import anchor_of, claim_block, image, verdict_tag, what
from bilateral.report.frame import SETTINGS, duration, folded, guarantee_tables, page, settings_section
from bilateral.report.html import Html, el, joined, table
from bilateral.report.run_page.questions import answers_to

UNREADABLE: Final = "unreadable"


def audit_html(result: AuditResult, pictures: Sequence[Path] = ()) -> str:
    """The whole audit. `pictures`: files of `write_pictures`, put into the page itself."""
    own, admitted = own_claims(result.verdicts), leaks(result.verdicts)
    kind, digest = _plan_of(result.plan)
    found = answers_to(kind, result.guarantee.as_dict(), None, result.plan, result.verdicts)
    sections = (
        ("In short", _in_short(result)),
        (OWN_TITLE, joined([claim_block(verdict, result, pictures, own=True) for verdict in own])),
        (LEAKS_TITLE, joined([claim_block(verdict, result, pictures, own=False) for verdict in admitted])),
        ("All findings beside their controls", joined([image(path) for path in pictures if path.name == OVERVIEW])),
        ("Controls and other figures", _controls(result)),
        ("Not tried", _not_tried(result)),
        ("The guarantee", guarantee_tables(result.guarantee.as_dict())),
        ("Among the protections that there are", _ladder(result)),
        (SETTINGS, settings_section(result.plan, [("plan digest", digest), ("effort", result.effort)])),
    )
    title = f"Audit of {result.protection}"
    return page(title, _meta(result), found, sections, kind="Audit", digest=digest)


def write_html(result: AuditResult, pictures: Path, file: Path) -> Path:
    """The page with what is in the folder of pictures, and an overview of the whole audit, which is drawn anew."""
    if result.evidence:
        write_overview(result.evidence, pictures)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(audit_html(result, sorted(pictures.glob("*.png"))), encoding="utf-8")
    os.replace(partial, file)  # noqa: PTH105 (the atomic one)
    return file


def _plan_of(settings: Mapping[str, Any]) -> tuple[str, str]:
    """The kind and the digest of the plan; audits from before may have settings that there are no more."""
    try:
        kind, plan = parse_any(dict(settings), "of the audit")
    except BilateralError:
        return "rounds", UNREADABLE
    return kind.name, plan.digest()


def _meta(result: AuditResult) -> Html:
    said = [
        _where(result.plan),
        f"{len(result.evidence)} attacks with controls",
        f"{result.effort} effort",
        f"{duration(result.seconds)} of work",
    ]
    said += [] if result.finished else ["stopped before its end"]
    return el("p", " · ".join(one for one in said if one), class_="meta")


def _where(plan: Mapping[str, Any]) -> str:
    """`digits, lenet`, as far as the plan says it."""
    named = [section.get("name") for section in (plan.get("data"), plan.get("model")) if isinstance(section, Mapping)]
    return ", ".join(str(name) for name in named if name)


def _in_short(result: AuditResult) -> Html:
    """Both tallies, and a row a claim: its verdict, and the attack that tells most."""
    own, admitted = own_claims(result.verdicts), leaks(result.verdicts)
    said = [
        el("li", "Claims of this plan: ", tally(own, result)),
        el("li", "Papers' claims and admitted leaks: ", tally(admitted, result)),
    ]
    rows = [_short_row(verdict, result, own=True) for verdict in own]
    rows += [_short_row(verdict, result, own=False) for verdict in admitted]
    head = ("claim or leak", "verdict", "strongest attack", f"gets; its {POSITIVE} and {NEGATIVE}", "attacks")
    listed = table(head, rows, caption="Claims of the plan, then what it admits", numeric=(4,)) if rows else None
    how = folded("How to read it", el("p", CAVEAT), el("p", CONTROLS.replace("*", "")))
    return joined((el("ul", said), listed, how))


def _short_row(verdict: ClaimVerdict, result: AuditResult, *, own: bool) -> tuple[Html | str, ...]:
    best = telling(verdict.findings)
    link = el("a", title_of(verdict), href=f"#{anchor_of(verdict)}")
    return (
        joined((link, what(about_whom(verdict)))),
        verdict_tag(verdict, result, own=own),
        short_attack(best, verdict.findings) if best else "-",
        short_figure(best) if best else "-",
        str(len(verdict.findings)),
    )


def _controls(result: AuditResult) -> Html:
    """Every metric of every attack, under every condition, and the gates of the positive control."""
    rows = [
        (
            joined((name, what(attacker(one)))),
            scores.metric.name,
            *(figure_of(condition, scores.metric) for condition in (one.target, one.positive, one.negative)),
            str(len(scores.values)),
            ", ".join(str(gate) for gate in one.gates if gate.metric == scores.metric) or "-",
        )
        for name, one in zip(told_apart(result.evidence), result.evidence, strict=True)
        for scores in one.target.scores
    ]
    head = ("attack", "metric", "this plan", POSITIVE, NEGATIVE, "trials", f"gate of the {POSITIVE}")
    if not rows:
        return Html()
    listed = table(head, rows, caption="Every measure of every attack, with 95 % intervals", numeric=(5,))
    return folded(f"{len(rows)} figures", listed)


def _not_tried(result: AuditResult) -> Html:
    if not result.skipped:
        return Html()
    lines = [el("li", f"{one.title}: {one.reason}") for one in result.skipped]
    return folded(f"{len(lines)} experiments, each with its reason", el("ul", lines))


def _ladder(result: AuditResult) -> Html:
    """All rungs; the one that this plan stands on is marked."""
    try:
        own = parse_plan(dict(result.plan), "of the audit").rung
    except PlanError:  # of another kind of run
        own = None
    rows: list[tuple[Html | str, ...]] = []
    for rung in LADDER:
        name = el("code", rung.protection)
        cells = [getattr(rung, column) for column in TITLES if column != "protection"]
        rows.append((joined((name, ": this plan")) if rung == own else name, *cells))
    head = [title.replace("`", "") for title in TITLES.values()]
    return folded("Who sees what with each", table(head, rows, caption="From none to both directions"))
