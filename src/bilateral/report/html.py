"""HTML by functions: an element is made of its children, and what is not made so is text and is escaped.

Formal guarantee (tests/report/test_html.py): whatever a text or an attribute contains is shown, not interpreted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

_VOID: Final = frozenset({"meta", "img", "br", "link"})


class Html(str):
    """Markup that was made here. Anything else is text."""

    __slots__ = ()


Child = str | Html | Iterable["Child"] | None


def el(tag: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    """An element. Attributes: `class_` is `class`, `_` is `-`; None and False leave one out, True has no value."""
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        said = name.rstrip("_").replace("_", "-")
        words.append(said if value is True else f'{said}="{escape(_number(value), quote=True)}"')
    opened = f"<{' '.join(words)}>"
    return Html(opened) if tag in _VOID else Html(f"{opened}{joined(children)}</{tag}>")


def joined(children: Child) -> Html:
    """Children one after the other."""
    if children is None:
        return Html()
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return Html(escape(children, quote=False))
    return Html("".join(joined(child) for child in children))


def table(head: Sequence[Child], rows: Iterable[Sequence[Child]], *, caption: str, numeric: Sequence[int] = ()) -> Html:
    """Rows under a head; the first cell of a row is its heading. `numeric`: columns that stand to the right."""

    def of(column: int) -> str | None:
        return "n" if column in numeric else None

    titles = [el("th", title, scope="col", class_=of(column)) for column, title in enumerate(head)]
    lines = [
        el(
            "tr",
            [
                el("th", cell, scope="row") if column == 0 else el("td", cell, class_=of(column))
                for column, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    inner = el("table", el("caption", caption), el("thead", el("tr", titles)), el("tbody", lines))
    return el("div", inner, class_="scroll", role="region", aria_label=caption, tabindex=0)


def _number(value: str | float | bool) -> str:
    """Numbers short: pictures have thousands of them."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
