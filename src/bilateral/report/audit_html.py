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
from bilateral.report.audit_pictures import OVERVIEW, pictures_of, write_overview
from bilateral.report.audit_words import (
    CAVEAT,
    LEAKS_TITLE,
    OWN_TITLE,
    about_whom,
    attacker,
    figure,
    figure_of,
    heading,
    leaks,
    own_claims,
    spoken,
    tally,
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
        (OWN_TITLE, "".join(_claim(verdict, pictures) for verdict in own_claims(result.verdicts))),
        (LEAKS_TITLE, "".join(_claim(verdict, pictures) for verdict in leaks(result.verdicts))),
        ("All findings beside their controls", "".join(_image(path) for path in pictures if path.name == OVERVIEW)),
        ("Controls and other figures", _controls(result)),
        ("Not tried", _list([f"{one.title}: {one.reason}" for one in result.skipped])),
        ("The guarantee", _guarantee(result)),
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
        f"<b>Claims of this plan:</b> {escape(tally(own))}",
        f"<b>Papers' claims and admitted leaks:</b> {escape(tally(admitted))}",
        f'<span class="small">{escape(CAVEAT)}</span>',
        f'<span class="small">{escape(result.effort)} effort, {result.seconds:.0f} s of work</span>',
    ]
    paragraphs = "".join(f"<p>{line}</p>" for line in lines if line)
    return f'<div class="summary{" alarm" if broken else ""}">{paragraphs}</div>'


def _claim(verdict: ClaimVerdict, pictures: Sequence[Path]) -> str:
    head = ("verdict", "attack", "attacker gets", "positive control", "chance")
    table = _table(head, [_attack(found) for found in verdict.findings]) if verdict.findings else ""
    ours = dict.fromkeys(path for found in verdict.findings for path in pictures_of(found.evidence, pictures))
    return (
        f'<div class="claim"><h3>{_word(verdict.verdict)} {escape(heading(verdict))}</h3>\n'
        f'<span class="small">{escape(about_whom(verdict))}</span><br>{escape(verdict.reason)}\n{table}</div>\n'
        + "".join(_image(path) for path in ours)
    )


def _attack(found: Finding) -> tuple[str, ...]:
    evidence = found.evidence
    main = evidence.target.scores[0]
    bound = "" if evidence.bound is None else f"; claimed: {evidence.bound:g}"
    controls = (evidence.positive, evidence.negative)
    return (
        _word(found.verdict) + _what(found.reason),
        escape(evidence.attack) + _what(attacker(evidence)) + _what(f"sees {evidence.seen}") + _what(evidence.remark),
        _figure(figure(main)) + _what(main.metric.name + bound),
        *(_figure(figure_of(one, main.metric)) + _what(one.what if one else "none") for one in controls),
    )


def _controls(result: AuditResult) -> str:
    """Every metric of every attack, under every condition, and the gates of the positive control."""
    rows = [
        (
            escape(one.attack) + _what(attacker(one)),
            escape(scores.metric.name),
            *(_figure(figure_of(condition, scores.metric)) for condition in (one.target, one.positive, one.negative)),
            str(len(scores.values)),
            escape(", ".join(str(gate) for gate in one.gates if gate.metric == scores.metric) or "-"),
        )
        for one in result.evidence
        for scores in one.target.scores
    ]
    head = ("attack", "metric", "this plan", "positive control", "chance", "trials", "gate of the positive control")
    return _table(head, rows) if rows else ""


def _guarantee(result: AuditResult) -> str:
    guarantee = result.guarantee
    claims = [(escape(c.what), escape(c.whom), escape(c.assumption)) for c in guarantee.claims]
    admitted = [(escape(leak.what), escape(leak.whom), str(leak.ledger_line)) for leak in guarantee.leaks]
    return _table(("claim", "hidden from", "if"), claims) + _table(("what leaks", "to", "ledger line"), admitted)


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


def _word(word: Word) -> str:
    return f'<span class="{_CLASSES[word]}">{escape(spoken(word))}</span>'


def _what(text: str) -> str:
    return f'<span class="what">{escape(text)}</span>' if text else ""


def _figure(text: str) -> str:
    return f'<span class="figure">{escape(text)}</span>'


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(path.stem.replace("-", " "))}">\n'
