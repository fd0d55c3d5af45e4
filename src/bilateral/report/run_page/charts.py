"""Pictures of a run as SVG without scripts: every one has a title that is read aloud, and shapes besides colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bilateral.report.html import Html, el

COLOURS: Final = ("var(--a)", "var(--b)", "var(--c)", "var(--d)", "var(--e)", "var(--f)")
REST: Final = "left"
"""A part of a bar by this name is what is not used: it has no colour of its own."""
_WIDTH, _HEIGHT = 900, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 14, 14, 34
_MAX_POINTS: Final = 400
"""A line is thinned to so many: a run may have a million rounds."""


@dataclass(frozen=True)
class Line:
    """One curve. `wide`: drawn broad and pale, to lie below another that it should equal."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = COLOURS[0]
    wide: bool = False
    dashed: bool = False


def curves(title: str, lines: Sequence[Line], *, x_name: str, show: Callable[[float], str]) -> Html:
    """Curves over rounds, with a key. `show` writes a value of the vertical axis."""
    lines = [line for line in lines if line.points]
    if not lines:
        return Html()
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    low, high, step = _axis(min(ys), max(ys))
    last = max(xs) or 1.0

    def x_at(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / last

    def y_at(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    grid = []
    for number in range(round((high - low) / step) + 1):
        y = low + number * step
        grid.append(el("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y_at(y), y2=y_at(y), stroke="var(--line)"))
        grid.append(el("text", show(y), x=_LEFT - 8, y=y_at(y) + 4, text_anchor="end"))
    base = _HEIGHT - _BOTTOM + 18
    ticks = [el("text", f"{x:,.0f}", x=x_at(x), y=base, text_anchor="middle") for x in _whole_ticks(last)]
    axis = el("text", x_name, x=_WIDTH - _RIGHT, y=_HEIGHT - 1, text_anchor="end")
    drawn = [_polyline(line, x_at, y_at) for line in sorted(lines, key=lambda line: not line.wide)]
    view = f"0 0 {_WIDTH} {_HEIGHT}"
    picture = el("svg", el("title", title), grid, ticks, axis, drawn, viewBox=view, role="img", aria_label=title)
    return el("figure", _key(lines), picture, el("figcaption", title))


def _polyline(line: Line, x_at: Callable[[float], float], y_at: Callable[[float], float]) -> Html:
    points = _thinned(line.points)
    if len(points) == 1:
        return el("circle", cx=x_at(points[0][0]), cy=y_at(points[0][1]), r=4, fill=line.colour)
    path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
    return el("polyline", points=path, **_stroke(line))


def _stroke(line: Line) -> dict[str, str | float | None]:
    return {
        "fill": "none",
        "stroke": line.colour,
        "stroke_width": 6 if line.wide else 2,
        "stroke_opacity": 0.45 if line.wide else None,
        "stroke_dasharray": "6 4" if line.dashed else None,
        "stroke_linejoin": "round",
    }


def _key(lines: Sequence[Line]) -> Html:
    def sample(line: Line) -> Html:
        return el("svg", el("line", x1=0, x2=26, y1=6, y2=6, **_stroke(line)), viewBox="0 0 26 12", aria_hidden="true")

    return el("ul", [el("li", sample(line), line.name) for line in lines], class_="key")


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(points) <= _MAX_POINTS:
        return points
    stride = math.ceil(len(points) / _MAX_POINTS)
    return [*points[:-1:stride], points[-1]]


def _axis(low: float, high: float) -> tuple[float, float, float]:
    """Ends and step of an axis with round numbers, three to seven of them."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / 4
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    return math.floor(low / step) * step, math.ceil(high / step) * step, step


def _whole_ticks(last: float) -> list[float]:
    """0 and round numbers of rounds up to the last."""
    step = max(1.0, float(math.floor(_axis(0.0, last)[2])))
    count = int(last / step)
    return [number * step for number in range(count + 1)]


@dataclass(frozen=True)
class Bar:
    """A row of parts that are added up."""

    name: str
    parts: Mapping[str, float]
    said: str


def bars(title: str, rows: Sequence[Bar]) -> Html:
    """Stacked bars, one a row, to one scale; the figures beside them are the text of it."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.parts))
    colour = {kind: COLOURS[number % len(COLOURS)] for number, kind in enumerate(kinds)} | {REST: "var(--line)"}
    largest = max((sum(row.parts.values()) for row in rows), default=0.0) or 1.0
    key = [el("li", _swatch(colour[kind]), kind) for kind in kinds]
    body = []
    for row in rows:
        parts = [
            el(
                "span",
                style=f"width:{100 * value / largest:.2f}%;background:{colour[kind]}",
                title=f"{kind}: {value:.3g}",
            )
            for kind, value in row.parts.items()
            if value > 0
        ]
        body += [
            el("div", row.name, class_="l"),
            el("div", parts, class_="bar", aria_hidden="true"),
            el("div", row.said, class_="v"),
        ]
    return el("figure", el("ul", key, class_="key"), el("div", body, class_="bars"), el("figcaption", title))


def _swatch(colour: str) -> Html:
    box = el("rect", x=2, y=1, width=18, height=10, rx=2, fill=colour)
    return el("svg", box, viewBox="0 0 26 12", aria_hidden="true")


_SHAPES: Final = {"missed": "M0,-6 6,5 -6,5Z", "refused": "M-5,-5 5,5M5,-5 -5,5", "back": "M0,-6 6,0 0,6 -6,0Z"}


def timeline(title: str, sites: Sequence[str], last: int, present: Mapping[str, Sequence[int]],
             marks: Sequence[tuple[str, int, str]], across: Sequence[tuple[int, str]],
             there: str = "in the round's sum") -> Html:  # fmt: skip
    """A row a site: a line where it took part, a mark where it was missed, refused or came back.

    `across`: (round, word) of what happened to the run as a whole.
    """
    row, left, width = 26, 190, _WIDTH
    height = row * len(sites) + 46
    scale = (width - left - 14) / max(1, last)

    def x_at(number: float) -> float:
        return left + scale * number

    parts = []
    for index, site in enumerate(sites):
        y = 22 + row * index
        parts.append(el("text", _short(site), x=left - 10, y=y + 4, text_anchor="end"))
        parts.append(el("line", x1=left, x2=width - 14, y1=y, y2=y, stroke="var(--line)", stroke_width=2))
        for first, end in _spans(present.get(site, ())):
            parts.append(el("line", x1=x_at(first - 1), x2=x_at(end), y1=y, y2=y, stroke="var(--a)", stroke_width=7))
        for what, number in [(what, number) for name, number, what in marks if name == site and what in _SHAPES]:
            place = f"translate({x_at(max(0.0, number - 0.5)):.1f},{y})"
            line = {"stroke": "var(--bad)", "stroke_width": 2.5, "fill": "none"}
            filled = {"fill": "var(--c)" if what == "back" else "var(--b)"}
            style = line if what == "refused" else filled
            said = el("title", f"{site}, round {number}: {what}")
            parts.append(el("path", said, d=_SHAPES[what], transform=place, **style))
    for number, word in across:
        x = x_at(max(0.0, number - 0.5))
        said = el("title", f"round {number}: {word}")
        parts.append(
            el(
                "line",
                said,
                x1=x,
                x2=x,
                y1=8,
                y2=height - 34,
                stroke="var(--bad)",
                stroke_width=2,
                stroke_dasharray="3 3",
            )
        )
    ticks = [el("text", f"{n:,.0f}", x=x_at(n), y=height - 14, text_anchor="middle") for n in _whole_ticks(last)]
    view = f"0 0 {width} {height}"
    picture = el("svg", el("title", title), parts, ticks, viewBox=view, role="img", aria_label=title)
    key = el("ul", [
        el("li", _sample(el("line", x1=1, x2=25, y1=6, y2=6, stroke="var(--a)", stroke_width=7)), there),
        el("li", _sample(_mark("missed", "var(--b)")), "gave no answer"),
        el("li", _sample(_mark("refused", "")), "message refused"),
        el("li", _sample(_mark("back", "var(--c)")), "came back"),
    ], class_="key")  # fmt: skip
    return el("figure", key, picture, el("figcaption", title))


def _sample(shape: Html) -> Html:
    return el("svg", shape, viewBox="0 0 26 12", aria_hidden="true")


def _mark(what: str, fill: str) -> Html:
    place = "translate(13,6) scale(.8)"
    if what == "refused":
        return el("path", d=_SHAPES[what], transform=place, stroke="var(--bad)", stroke_width=2.5, fill="none")
    return el("path", d=_SHAPES[what], transform=place, fill=fill)


def _spans(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive rounds: (first, last)."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def _short(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
