"""Words that stand out in tables."""

from __future__ import annotations

from bilateral.report.html import Html, el


def no(said: str = "no") -> Html:
    """What a party does not see."""
    return el("span", said, class_="tag ok")
