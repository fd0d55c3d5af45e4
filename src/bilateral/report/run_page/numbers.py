"""Figures that stand by themselves, and bytes as people read them."""

from __future__ import annotations

from bilateral.report.html import Html, el


def number_card(figure: str, text: str) -> Html:
    return el("div", el("div", figure, class_="num"), el("p", text), class_="card")


def megabytes(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.3g} GB"
    return f"{value:.3g} MB" if value >= 0.1 else f"{1000 * value:.3g} kB"
