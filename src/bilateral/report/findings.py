"""What attackers got, claim by claim, beside the same attack where nothing defends and where nothing is to find.

Broken claims are red; a leak that the plan admits is not, whoever found it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bilateral.audit.auditor import AuditResult
from bilateral.audit.verdict import ClaimVerdict, Finding, Word
from bilateral.report.audit_pictures import pictures_of, slug
from bilateral.report.audit_words import (
    NEGATIVE,
    POSITIVE,
    about_whom,
    attacker,
    claimed,
    figure,
    figure_of,
    heading,
    not_asked,
    short_reason,
    spoken,
    spoken_of,
    subject,
    told_apart,
)
from bilateral.report.html import Html, el, joined, table

_TONES: Final[dict[Word, str]] = {"holds": "ok", "broken": "bad", "not tested": "warn", "proves nothing": "warn"}
_HEAD: Final = ("attack", "attacker gets", POSITIVE, NEGATIVE, "verdict")


def claim_block(verdict: ClaimVerdict, result: AuditResult, pictures: Sequence[Path], *, own: bool) -> Html:
    """A claim or an admitted leak, to open: all its attacks with intervals and controls, and their pictures.

    `pictures`: files of `write_pictures`, put into the page itself.
    """
    title = el("summary", verdict_tag(verdict, result, own=own), " ", heading(verdict))
    text = el("p", about_whom(verdict), ". ", short_reason(verdict, result), class_="note", id=anchor_of(verdict))
    rows = _rows(verdict.findings)
    listed = table(_HEAD, rows, caption=f"Attacks on: {heading(verdict)}") if rows else None
    ours = dict.fromkeys(path for found in verdict.findings for path in pictures_of(found.evidence, pictures))
    shown = [image(path) for path in ours]
    is_open = own and verdict.verdict == "broken"
    return el("details", title, text, listed, el("div", shown, class_="pictures") if shown else None, open=is_open)


def verdict_tag(verdict: ClaimVerdict, result: AuditResult, *, own: bool) -> Html:
    """The verdict as people read it."""
    if not own and verdict.verdict == "broken":
        return el("span", "admitted, and found", class_="tag warn")
    tone = "plain" if not_asked(verdict, result) else _TONES[verdict.verdict] if own else "warn"
    return el("span", spoken_of(verdict, result), class_=f"tag {tone}")


def anchor_of(verdict: ClaimVerdict) -> str:
    return slug(f"{subject(verdict.tests)} {verdict.whom}")


def image(path: Path) -> Html:
    """A picture as a part of the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    words = path.stem.replace("--", ": ").replace("-", " ")
    return el("img", src=f"data:image/png;base64,{data}", alt=words)


def what(text: str) -> Html:
    """A line of small print below a figure."""
    return el("span", text, class_="what") if text else Html()


def _rows(findings: Sequence[Finding]) -> list[tuple[Html | str, ...]]:
    names = told_apart([found.evidence for found in findings])
    return [_row(name, found) for name, found in zip(names, findings, strict=True)]


def _row(name: str, found: Finding) -> tuple[Html | str, ...]:
    evidence = found.evidence
    main = evidence.target.scores[0]
    controls = [
        joined((figure_of(one, main.metric), what(one.what if one else "none")))
        for one in (evidence.positive, evidence.negative)
    ]
    said = "nothing found" if found.verdict == "holds" else spoken(found.verdict)
    return (
        joined((name, what(attacker(evidence)), what(f"sees {evidence.seen}"), what(evidence.remark))),
        joined((figure(main), what(main.metric.name), what(claimed(evidence)))),
        *controls,
        joined((said, what(found.reason))),
    )
