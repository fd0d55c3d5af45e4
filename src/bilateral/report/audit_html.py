"""An audit as one HTML file that needs nothing else: no scripts, no other files, fit for printing.

Formal guarantee (tests/report/test_audit_html.py): whatever an audit's texts contain is shown, not interpreted.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bilateral.audit.auditor import AuditResult
from bilateral.audit.verdict import ClaimVerdict, Finding, Word
from bilateral.engine.plan import parse_plan
from bilateral.errors import PlanError
from bilateral.protections.ladder import LADDER, TITLES
from bilateral.report.audit_pictures import OVERVIEW, pictures_of, slug, write_overview
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
    claimed,
    figure,
    figure_of,
    heading,
    leaks,
    own_claims,
    short_reason,
    spoken,
    spoken_of,
    subject,
    tally,
    title_of,
    told_apart,
)

_CLASSES: dict[Word, str] = {"broken": "broken", "holds": "holds", "proves nothing": "open", "not tested": "open"}
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c1917; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.2rem; border-bottom: 1px solid #d6d3d1; } h3 { margin-bottom: .2rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid #e7e5e4; }
.summary { border: 2px solid #78716c; padding: .4rem 1rem; } .summary.alarm { border-color: #b91c1c; }
.broken { color: #b91c1c; font-weight: 700; } .holds { color: #15803d; } .open { color: #854d0e; font-weight: 600; }
.small, .what { color: #57534e; font-size: .85rem; } .what { display: block; } .figure { white-space: nowrap; }
img { max-width: 100%; height: auto; margin: .5rem 1rem .5rem 0; } code { background: #f5f5f4; }
@media print { body { margin: 0; max-width: none; font-size: 11px; } tr, img, .claim { break-inside: avoid; } }
"""


def audit_html(result: AuditResult, pictures: Sequence[Path] = ()) -> str:
    """The whole audit. `pictures`: files of `write_pictures`, put into the page itself."""
    title = f"Audit of {result.protection}"
    sections = (
        ("In short", _in_short(result)),
        (OWN_TITLE, "".join(_claim(verdict, result, pictures) for verdict in own_claims(result.verdicts))),
        (LEAKS_TITLE, "".join(_claim(verdict, result, pictures) for verdict in leaks(result.verdicts))),
        ("All findings beside their controls", "".join(_image(path) for path in pictures if path.name == OVERVIEW)),
        ("Controls and other figures", _controls(result)),
        ("Not tried", _list([f"{one.title}: {one.reason}" for one in result.skipped])),
        ("The guarantee", _guarantee(result)),
        ("Among the protections that there are", _ladder(result)),
        ("Settings", _settings(result.plan)),
    )
    body = "".join(f"<h2>{escape(name)}</h2>\n{content}" for name, content in sections if content)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{_summary(result)}\n{body}</body></html>\n"
    )


def write_html(result: AuditResult, pictures: Path, page: Path) -> Path:
    """The page with what is in the folder of pictures, and an overview of the whole audit, which is drawn anew."""
    if result.evidence:
        write_overview(result.evidence, pictures)
    page.write_text(audit_html(result, sorted(pictures.glob("*.png"))), encoding="utf-8")
    return page


def _summary(result: AuditResult) -> str:
    own, admitted = own_claims(result.verdicts), leaks(result.verdicts)
    broken = "; ".join(str(verdict.tests) for verdict in own if verdict.verdict == "broken")
    lines = [
        f'<span class="broken">This plan\'s own claim is BROKEN: {escape(broken)}</span>' if broken else "",
        "" if result.finished else '<span class="open">This audit was stopped before its end.</span>',
        f"<b>Claims of this plan:</b> {escape(tally(own, result))}",
        f"<b>Papers' claims and admitted leaks:</b> {escape(tally(admitted, result))}",
        f'<span class="small">{escape(CAVEAT)}</span>',
        f'<span class="small">{escape(CONTROLS.replace("*", ""))}</span>',
        f'<span class="small">{escape(result.effort)} effort, {result.seconds:.0f} s of work</span>',
    ]
    paragraphs = "".join(f"<p>{line}</p>" for line in lines if line)
    return f'<div class="summary{" alarm" if broken else ""}">{paragraphs}</div>'


def _in_short(result: AuditResult) -> str:
    """A row a claim: its verdict, and the attack that tells most."""
    rows = []
    for verdict in (*own_claims(result.verdicts), *leaks(result.verdicts)):
        best = telling(verdict.findings)
        rows.append(
            (
                _said(spoken_of(verdict, result), verdict.verdict),
                f'<a href="#{_anchor(verdict)}">{escape(title_of(verdict))}</a>' + _what(about_whom(verdict)),
                escape(short_attack(best, verdict.findings)) if best else "-",
                escape(short_figure(best)) if best else "-",
                str(len(verdict.findings)),
            )
        )
    head = ("verdict", "claim or leak", "strongest attack", f"gets; its {POSITIVE} and {NEGATIVE}", "attacks")
    return _table(head, rows) if rows else ""


def _anchor(verdict: ClaimVerdict) -> str:
    return slug(f"{subject(verdict.tests)} {verdict.whom}")


def _claim(verdict: ClaimVerdict, result: AuditResult, pictures: Sequence[Path]) -> str:
    head = ("verdict", "attack", "attacker gets", POSITIVE, NEGATIVE)
    names = told_apart([found.evidence for found in verdict.findings])
    attacks = [_attack(name, found) for name, found in zip(names, verdict.findings, strict=True)]
    ours = dict.fromkeys(path for found in verdict.findings for path in pictures_of(found.evidence, pictures))
    title = f"{_said(spoken_of(verdict, result), verdict.verdict)} {escape(heading(verdict))}"
    return (
        f'<div class="claim"><h3 id="{_anchor(verdict)}">{title}</h3>\n'
        f'<span class="small">{escape(about_whom(verdict))}</span><br>{escape(short_reason(verdict, result))}\n'
        f"{_table(head, attacks) if attacks else ''}</div>\n" + "".join(_image(path) for path in ours)
    )


def _attack(name: str, found: Finding) -> tuple[str, ...]:
    evidence = found.evidence
    main = evidence.target.scores[0]
    controls = (evidence.positive, evidence.negative)
    said = "nothing found" if found.verdict == "holds" else spoken(found.verdict)
    return (
        _said(said, found.verdict) + _what(found.reason),
        escape(name) + _what(attacker(evidence)) + _what(f"sees {evidence.seen}") + _what(evidence.remark),
        _figure(figure(main)) + _what(main.metric.name) + _what(claimed(evidence)),
        *(_figure(figure_of(one, main.metric)) + _what(one.what if one else "none") for one in controls),
    )


def _controls(result: AuditResult) -> str:
    """Every metric of every attack, under every condition, and the gates of the positive control."""
    rows = [
        (
            escape(name) + _what(attacker(one)),
            escape(scores.metric.name),
            *(_figure(figure_of(condition, scores.metric)) for condition in (one.target, one.positive, one.negative)),
            str(len(scores.values)),
            escape(", ".join(str(gate) for gate in one.gates if gate.metric == scores.metric) or "-"),
        )
        for name, one in zip(told_apart(result.evidence), result.evidence, strict=True)
        for scores in one.target.scores
    ]
    head = ("attack", "metric", "this plan", POSITIVE, NEGATIVE, "trials", f"gate of the {POSITIVE}")
    return _table(head, rows) if rows else ""


def _guarantee(result: AuditResult) -> str:
    guarantee = result.guarantee
    claims = [(escape(c.what), escape(c.whom), escape(c.assumption)) for c in guarantee.claims]
    admitted = [(escape(leak.what), escape(leak.whom), str(leak.ledger_line)) for leak in guarantee.leaks]
    return _table(("claim", "hidden from", "if"), claims) + _table(("what leaks", "to", "ledger line"), admitted)


def _ladder(result: AuditResult) -> str:
    """All rungs; the one that this plan stands on is marked."""
    try:
        own = parse_plan(dict(result.plan), "of the audit").rung
    except PlanError:  # of another kind of run
        own = None
    rows = []
    for rung in LADDER:
        name = f"<code>{escape(rung.protection)}</code>"
        cells = [escape(getattr(rung, column)) for column in TITLES if column != "protection"]
        rows.append((f"<b>{name}: this plan</b>" if rung == own else name, *cells))
    return _table([title.replace("`", "") for title in TITLES.values()], rows)


def _settings(plan: Mapping[str, Any]) -> str:
    rows = [(f"<code>{escape(key)}</code>", f"<code>{escape(str(value))}</code>") for key, value in flat(plan)]
    return _table(("setting", "value"), rows)


def flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names and values."""
    found: list[tuple[str, Any]] = []
    for key, value in settings.items():
        inner = isinstance(value, Mapping) and value
        found += flat(value, f"{prefix}{key}.") if inner else [(f"{prefix}{key}", value)]
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>\n{lines}\n</tbody></table>\n"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>\n" if lines else ""


def _said(words: str, verdict: Word) -> str:
    return f'<span class="{_CLASSES[verdict]}">{escape(words)}</span>'


def _what(text: str) -> str:
    return f'<span class="what">{escape(text)}</span>' if text else ""


def _figure(text: str) -> str:
    return f'<span class="figure">{escape(text)}</span>'


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(path.stem.replace("-", " "))}">\n'
