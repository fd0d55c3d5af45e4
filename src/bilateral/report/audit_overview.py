"""One figure of a whole audit: what each attacker gets, between its positive and its negative control."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bilateral.audit.evidence import Condition, Evidence
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.verdict import Finding, Word, judge
from bilateral.report.audit_words import attacker, shown_interval, shown_metrics, spoken, subject, told_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: dict[Word, str] = {
    "broken": "#b91c1c",
    "holds": "#15803d",
    "proves nothing": "#a16207",
    "not tested": "#a16207",
}
_POSITIVE, _NEGATIVE = "#93c5fd", "#d4d4d4"
_ROW_HEIGHT, _HEAD_HEIGHT = 0.55, 0.75


def overview_figure(evidence: Sequence[Evidence]) -> Figure:
    """A panel for each metric, a row for each attack: its value with interval, and the bands of both controls."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and needed only here

    families: dict[Metric, list[Finding]] = {}
    for one in evidence:
        found = judge(one)
        for metric in shown_metrics(found):
            families.setdefault(metric, []).append(found)
    heights = [_HEAD_HEIGHT + _ROW_HEIGHT * len(findings) for findings in families.values()]
    figure = Figure(figsize=(9.5, sum(heights) + 1.0), layout="constrained")
    panels = figure.subplots(len(families), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (metric, findings) in zip(panels, families.items(), strict=True):
        _panel(axes, metric, findings)
    figure.suptitle("What each attacker gets, beside what it gets from its controls", fontsize=11)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _panel(axes: Axes, metric: Metric, findings: Sequence[Finding]) -> None:
    everything = [condition for found in findings for condition in _conditions(found.evidence)]
    means = [scores.mean for condition in everything if (scores := condition.of(metric)) is not None]
    finite = [mean for mean in means if np.isfinite(mean)]
    if finite and min(finite) > 0 and max(finite) / min(finite) >= 300:
        axes.set_xscale("log")
    for row, found in enumerate(findings):
        _row(axes, row, found, metric)
    axes.set_ylim(len(findings) - 0.4, -0.6)
    axes.set_yticks(range(len(findings)), _labels([found.evidence for found in findings]), fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    arrow = "to the right" if metric.better == "high" else "to the left"
    axes.set_title(f"{metric.name} (better for the attacker {arrow})", fontsize=9, loc="left")
    axes.grid(axis="x", color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _row(axes: Axes, row: int, found: Finding, metric: Metric) -> None:
    evidence = found.evidence
    for condition, colour in ((evidence.positive, _POSITIVE), (evidence.negative, _NEGATIVE)):
        scores = None if condition is None else condition.of(metric)
        if scores is not None and np.isfinite(scores.mean):
            low, high = _drawn_interval(scores)
            axes.plot([low, high], [row, row], color=colour, linewidth=11, solid_capstyle="butt", zorder=1)
            axes.plot([scores.mean] * 2, [row - 0.24, row + 0.24], color=colour, linewidth=2.5, zorder=1)
    scores = evidence.target.of(metric)
    colour = COLOURS[found.verdict]
    if scores is not None and np.isfinite(scores.mean):
        axes.plot(_drawn_interval(scores), [row, row], color=colour, linewidth=1.6, zorder=2)
        face = colour if evidence.adaptive else "white"
        axes.plot([scores.mean], [row], marker="o", color=colour, markerfacecolor=face, markersize=6.5, zorder=3)
    if evidence.bound is not None:
        axes.plot([evidence.bound] * 2, [row - 0.36, row + 0.36], color="black", linewidth=1.2, linestyle=":", zorder=2)


def _drawn_interval(scores: Scores) -> tuple[float, float]:
    """Where an end is unknown or infinite, the value itself."""
    low, high = shown_interval(scores)
    return low if np.isfinite(low) else scores.mean, high if np.isfinite(high) else scores.mean


def _conditions(evidence: Evidence) -> list[Condition]:
    return [one for one in (evidence.target, evidence.positive, evidence.negative) if one is not None]


def _labels(evidence: Sequence[Evidence]) -> list[str]:
    """What each attack is, on at most two lines, and whose."""
    return [
        "\n".join([*_two_lines(name), f"{subject(one.tests)}, {attacker(one)}"])
        for name, one in zip(told_apart(evidence), evidence, strict=True)
    ]


def _two_lines(name: str) -> list[str]:
    return textwrap.wrap(name, 56, max_lines=2, placeholder=" ...")


def _legend() -> list[object]:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    def dot(label: str, colour: str, face: str) -> Line2D:
        return Line2D([], [], color=colour, marker="o", markerfacecolor=face, label=label, linewidth=1.6)

    return [
        dot(spoken("broken"), COLOURS["broken"], COLOURS["broken"]),
        dot(spoken("holds"), COLOURS["holds"], COLOURS["holds"]),
        dot(spoken("proves nothing"), COLOURS["proves nothing"], COLOURS["proves nothing"]),
        dot("hollow: attacker that does not know the protocol", "#525252", "white"),
        Line2D([], [], color=_POSITIVE, linewidth=8, label="positive control (such as FedSGD)"),
        Line2D([], [], color=_NEGATIVE, linewidth=8, label="negative control (nothing to find)"),
        Line2D([], [], color="black", linestyle=":", label="what was claimed"),
    ]
