"""Markdown as the leakage page needs it: tables, folded parts, pictures, links to headings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from bilateral.audit.auditor import AuditResult
from bilateral.audit.verdict import ClaimVerdict, Finding
from bilateral.report.audit_pictures import pictures_of
from bilateral.report.audit_words import attacker, spoken, spoken_of

Named = tuple[str, AuditResult]
"""A stored audit and its name."""
Tried = tuple[str, Finding]
"""An attack, and the audit that tried it."""
Pictures = Mapping[str, Sequence[str]]
"""The files in docs/audits/NAME/pictures, by that name."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Well formed whatever the cells contain."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def folded(title: str, *parts: str) -> str:
    """Parts that open on a click. Blank lines around them: else what is inside is no Markdown."""
    return "\n\n".join([f"<details><summary>{escape(title, quote=False)}</summary>", *parts, "</details>"])


def link_to(heading: str, text: str) -> str:
    """To a heading of the same page, by the name that GitHub gives it."""
    return f"[{text}](#{re.sub(r'[^a-z0-9 _-]', '', heading.lower()).replace(' ', '-')})"


def images(tried: Sequence[Tried], pictures: Pictures) -> list[str]:
    """All pictures of these attacks, each once, in their order."""
    found = [
        f"![{one.evidence.attack}, {attacker(one.evidence)}](audits/{name}/pictures/{path.name})"
        for name, one in tried
        for path in pictures_of(one.evidence, [Path(file) for file in pictures.get(name, ())])
    ]
    return list(dict.fromkeys(found))


def gallery(tried: Sequence[Tried], pictures: Pictures) -> list[str]:
    """The first picture in the open, the others folded."""
    found = images(tried, pictures)
    more = f"{len(found) - 1} more picture{'s' if len(found) > 2 else ''}"
    return found if len(found) < 2 else [found[0], folded(more, *found[1:])]


def loud(verdict: ClaimVerdict, result: AuditResult) -> str:
    """A verdict's words; broken ones in bold."""
    said = spoken_of(verdict, result)
    return f"**{said}**" if said == spoken("broken") else said


def counted(number: int, thing: str) -> str:
    """`1 attack`, `2 attacks`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
