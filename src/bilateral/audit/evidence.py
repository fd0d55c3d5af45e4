"""What an experiment hands in: raw figures of one attack on the plan and on its controls. It draws no conclusion.

`Evidence` is plain data and goes to JSON and back (`as_dict`, `evidence_from`), so that a stored audit can be judged
again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torch import Tensor

from bilateral.audit.scores import Metric, Scores
from bilateral.audit.threat import AdversaryName
from bilateral.protocols.guarantee import Subject

Statistic = Literal["mean", "median"]


@dataclass(frozen=True)
class Gate:
    """What the positive control must reach, or the attack proves nothing: `statistic` of `metric` at `threshold`."""

    metric: Metric
    threshold: float
    statistic: Statistic = "mean"

    def passed_by(self, scores: Scores) -> bool:
        return self.reached_by(scores.mean if self.statistic == "mean" else scores.median)

    def reached_by(self, value: float) -> bool:
        """Whether a single figure would do."""
        return value >= self.threshold if self.metric.better == "high" else value <= self.threshold

    def __str__(self) -> str:
        sign = ">=" if self.metric.better == "high" else "<="
        return f"{self.statistic} {self.metric.name} {sign} {self.threshold:g}"


@dataclass(frozen=True)
class Condition:
    """One attack under one condition: its scores, by metric, and what it was tried on, in words."""

    what: str
    scores: tuple[Scores, ...]

    def of(self, metric: Metric) -> Scores | None:
        return next((scores for scores in self.scores if scores.metric.name == metric.name), None)


@dataclass(frozen=True, eq=False)
class Picture:
    """Images side by side, in rows: `columns` are captions, `rows` hold one image (CHW, 0 to 1) a column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Tensor, ...], ...] = field(repr=False)


@dataclass(frozen=True)
class Curve:
    """A figure over what the attacker has more or less of; `lines` maps a name to (x, y, low, high) points."""

    title: str
    x: str
    y: str
    lines: Mapping[str, tuple[tuple[float, float, float, float], ...]]


@dataclass(frozen=True)
class Evidence:
    """One attack by one adversary.

    `tests`: the subject of a claim, or a line of the leakage ledger. `seen`: what of its view the attack used.
    The first metric of `target` is the one that tables show; all of them are compared with `negative`. `paired`: the
    scores of target and negative control belong to the same trials, in the same order.
    `bound`: a figure that was claimed (an epsilon); then the attack succeeds if the whole interval lies beyond it, and
    the negative control must not.
    """

    tests: Subject | int
    adversary: AdversaryName
    attack: str
    adaptive: bool
    seen: str
    target: Condition
    positive: Condition | None
    negative: Condition | None
    gates: tuple[Gate, ...]
    paired: bool = False
    bound: float | None = None
    remark: str = ""
    pictures: tuple[Picture, ...] = field(default=(), repr=False, compare=False)
    curves: tuple[Curve, ...] = field(default=(), repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the pictures."""
        values = {name: getattr(self, name) for name in _PLAIN}
        conditions = {name: _condition_dict(getattr(self, name)) for name in ("target", "positive", "negative")}
        gates = [asdict(gate) for gate in self.gates]
        return {**values, **conditions, "gates": gates, "curves": [asdict(curve) for curve in self.curves]}


_PLAIN = ("tests", "adversary", "attack", "adaptive", "seen", "paired", "bound", "remark")


def _condition_dict(condition: Condition | None) -> dict[str, Any] | None:
    return (
        None if condition is None else {"what": condition.what, "scores": [_scores_dict(s) for s in condition.scores]}
    )


def _scores_dict(scores: Scores) -> dict[str, Any]:
    given = scores.given_interval
    return {
        "metric": asdict(scores.metric),
        "values": [_plain(value) for value in scores.values],
        "given_interval": None if given is None else [_plain(end) for end in given],
    }


def _plain(value: float) -> float | str:
    """JSON has no infinity; `float` reads the word."""
    return value if math.isfinite(value) else str(value)


def evidence_from(values: Mapping[str, Any]) -> Evidence:
    """The inverse of `as_dict`."""
    return Evidence(
        **{name: values[name] for name in _PLAIN},
        target=_condition(values["target"]),
        positive=_condition(values["positive"]) if values["positive"] else None,
        negative=_condition(values["negative"]) if values["negative"] else None,
        gates=tuple(Gate(Metric(**g["metric"]), g["threshold"], g["statistic"]) for g in values["gates"]),
        curves=tuple(
            Curve(
                c["title"], c["x"], c["y"], {name: tuple(tuple(p) for p in line) for name, line in c["lines"].items()}
            )
            for c in values["curves"]
        ),
    )


def _condition(values: Mapping[str, Any]) -> Condition:
    return Condition(values["what"], tuple(_scores(scores) for scores in values["scores"]))


def _scores(values: Mapping[str, Any]) -> Scores:
    given = values["given_interval"]
    interval = None if given is None else (float(given[0]), float(given[1]))
    return Scores(Metric(**values["metric"]), tuple(float(value) for value in values["values"]), interval)
