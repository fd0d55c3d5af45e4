"""What all pages have in common: the frame, answers to questions as cards, sections, settings, versions.

Formal guarantee (tests/report/test_html.py): pages are made of `Html` alone, so whatever a text contains is shown.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import torch

from bilateral.audit.ledger import LEDGER
from bilateral.report.html import Child, Html, el, joined, table
from bilateral.report.run_page.questions import Answer, Tone
from bilateral.report.style import STYLE
from bilateral.version import __version__

SETTINGS: Final = "Settings and versions"
_CLASSES: Final[dict[Tone, str]] = {"held": "ok", "admitted": "warn", "open": "warn", "broken": "bad"}
_SIGNS: Final[dict[Tone, str]] = {"held": "✓", "admitted": "!", "open": "?", "broken": "✗"}
_TOLD: Final[dict[Tone, str]] = {
    "held": "claimed and not broken",
    "admitted": "admitted",
    "open": "open",
    "broken": "claim broken",
}


def page(title: str, in_short: Child, found: Sequence[Answer], sections: Iterable[tuple[str, Html]], *,
         kind: str, digest: str) -> str:  # fmt: skip
    """A whole page: the questions and their answers first, then the sections that have something in them."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width,initial-scale=1"),
        el("title", f"{kind}: {title}"),
        el("style", Html(STYLE)),
    )
    made = f"bilateral {__version__} · {datetime.now(UTC):%-d %B %Y} · plan {digest}"
    to_settings = el("a", "settings", href=f"#{anchor(SETTINGS)}")
    top = el("header", el("p", made, " · ", to_settings, class_="meta"), el("h1", title), in_short)
    skip = el("a", "To the answers", href="#answers", class_="skip")
    cards = el("div", [_card(one) for one in found], class_="grid answers")
    body = [
        el("section", el("h2", name, id=anchor(name)), content, aria_labelledby=anchor(name))
        for name, content in (("What you came to know", cards), *sections)
        if content
    ]
    main = el("main", top, _alarm(found), body, id="answers")
    return f"<!DOCTYPE html>\n{el('html', head, el('body', skip, main), lang='en')}\n"


def anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"


def folded(title: Child, *content: Child, is_open: bool = False) -> Html:
    """Something to open."""
    return el("details", el("summary", title), content, open=is_open)


def guarantee_tables(guarantee: Mapping[str, Any]) -> Html:
    """Claims and admitted leaks, in the guarantee's own words, with what closes a leak."""
    claims = [
        (claim["whom"], joined((claim["what"], el("span", f"if {claim['assumption']}", class_="what"))))
        for claim in guarantee.get("claims", ())
    ]
    leaks = [
        (leak["whom"], joined((leak["what"], el("span", _closed(leak["ledger_line"]), class_="what"))))
        for leak in guarantee.get("leaks", ())
    ]
    nothing = el("p", "This plan claims to hide nothing.", class_="note")
    hidden = table(("hidden from", "what"), claims, caption="What this plan claims") if claims else nothing
    admitted = table(("open to", "what"), leaks, caption="What it does not hide, and says so") if leaks else Html()
    return joined((hidden, admitted))


def settings_section(settings: Mapping[str, Any], versions: Sequence[tuple[str, str]]) -> Html:
    """Versions of what made the page, what else there is to say, and every setting of the plan."""
    rows = [(el("code", key), el("code", _text(value))) for key, value in flat(settings)]
    own = [("bilateral", __version__), ("torch", torch.__version__), ("Python", platform.python_version())]
    told = table(("", ""), [*own, *versions], caption="Versions of what made this page, and when it was")
    return joined((told, folded("All settings of the plan", table(("setting", "value"), rows, caption="The plan"))))


def flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names and values."""
    found: list[tuple[str, Any]] = []
    for key, value in settings.items():
        inner = isinstance(value, Mapping) and value
        found += flat(value, f"{prefix}{key}.") if inner else [(f"{prefix}{key}", value)]
    return found


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def _closed(line: int) -> str:
    closed = f"; what closes it: {LEDGER[line].closed_by}" if line in LEDGER else ""
    return f"line {line} of the leakage ledger{closed}"


def _alarm(found: Sequence[Answer]) -> Html:
    broken = [one for one in found if one.tone == "broken"]
    if not broken:
        return Html()
    lines = [el("li", f"{one.question} {one.text}") for one in broken]
    return el(
        "div", el("strong", "This plan claims what an attack broke."), el("ul", lines), class_="alarm", role="alert"
    )


def _card(one: Answer) -> Html:
    sign = el("span", f"{_SIGNS[one.tone]} ", aria_hidden="true")
    tag = el("span", sign, one.short, class_=f"tag {_CLASSES[one.tone]}", title=_TOLD[one.tone])
    rests = folded("What this rests on", el("p", one.rests_on)) if one.rests_on else None
    return el("div", el("h3", one.question), tag, el("p", one.text), rests, class_="card")


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | Mapping | bool) or value is None else str(value)
