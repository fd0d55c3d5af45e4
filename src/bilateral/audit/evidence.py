"""What an experiment hands in: raw figures of one attack on the plan and on its controls. It draws no conclusion.

`Evidence` is plain data and goes to JSON and back (`as_dict`, `evidence_from`), so that a stored audit can be judged
again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

from torch import Tensor

from bilateral.audit.scores import Metric, Scores
from bilateral.audit.views import AdversaryName
from bilateral.protocols.guarantee import Subject

Statistic = Literal["mean", "median"]
NUM_PICTURES: Final = 6
"""So many trials of an experiment are shown."""


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
class Fresh:
    """The same attack on other seeds, `runs` of them put together."""

    runs: int
    target: Condition
    positive: Condition | None
    negative: Condition | None


@dataclass(frozen=True)
class Evidence:
    """One attack by one adversary.

    `tests`: the subject of a claim, or a line of the leakage ledger. `seen`: what of its view the attack used.
    The first metric of `target` is the one that tables show; all of them are compared with `negative`. `paired`: the
    scores of target and negative control belong to the same trials, in the same order.
    `bound`: a figure that was claimed (an epsilon); then the attack succeeds if the whole interval lies beyond it, and
    the negative control must not.
    `fresh`: what was found when the row was repeated, because it looked suspicious (`fresh_trials.py`).
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
    fresh: Fresh | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything but the pictures."""
        values = {name: getattr(self, name) for name in _PLAIN}
        conditions = {name: _condition_dict(getattr(self, name)) for name in ("target", "positive", "negative")}
        gates = [asdict(gate) for gate in self.gates]
        found = {**values, **conditions, "gates": gates, "curves": [asdict(curve) for curve in self.curves]}
        return found if self.fresh is None else {**found, "fresh": _fresh_dict(self.fresh)}


Tried = Condition | tuple[str, Sequence[float] | Scores]
"""An attack under one condition; in short, what it was tried on, and a value a trial of the first gate's metric."""


def with_controls(
    tests: Subject | int,
    adversary: AdversaryName,
    attack: str,
    seen: str,
    gates: Gate | tuple[Gate, ...],
    *,
    target: Tried,
    positive: Tried | None,
    negative: Tried | None,
    adaptive: bool = True,
    paired: bool = True,
    bound: float | None = None,
    remark: str = "",
    pictures: tuple[Picture, ...] = (),
    curves: tuple[Curve, ...] = (),
) -> Evidence:
    """An attack on the plan (`target`), where nothing defends, and where there is nothing to find.

    By default by an adaptive attacker, and with the same trials in target and negative control. A control that could
    not be had is None, and the attack then proves nothing.
    """
    gates = (gates,) if isinstance(gates, Gate) else gates
    tried = _tried(target, gates)
    works = None if positive is None else _tried(positive, gates)
    chance = None if negative is None else _tried(negative, gates)
    return Evidence(
        tests, adversary, attack, adaptive, seen, tried, works, chance, gates, paired, bound, remark, pictures, curves
    )


def _tried(tried: Tried, gates: tuple[Gate, ...]) -> Condition:
    if isinstance(tried, Condition):
        return tried
    what, values = tried
    return Condition(what, (values if isinstance(values, Scores) else Scores(gates[0].metric, tuple(values)),))


MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What reading a document of another form than expected raises: `evidence_from` and its callers."""
_PLAIN = ("tests", "adversary", "attack", "adaptive", "seen", "paired", "bound", "remark")


_CONDITIONS = ("target", "positive", "negative")


def _fresh_dict(fresh: Fresh) -> dict[str, Any]:
    return {"runs": fresh.runs, **{name: _condition_dict(getattr(fresh, name)) for name in _CONDITIONS}}


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
        **_plain_fields(values),
        target=_condition(values["target"]),
        positive=_condition(values["positive"]) if values["positive"] else None,
        negative=_condition(values["negative"]) if values["negative"] else None,
        gates=tuple(_gate(gate) for gate in values["gates"]),
        curves=tuple(_curve(curve) for curve in values["curves"]),
        fresh=_fresh(as_object(values["fresh"])) if "fresh" in values else None,
    )


def _fresh(values: Mapping[str, Any]) -> Fresh:
    if type(values["runs"]) is not int or values["runs"] < 1:
        raise ValueError("a row is repeated on one seed or more")
    target, *controls = (_condition(values[name]) if values[name] else None for name in _CONDITIONS)
    if target is None:
        raise ValueError("a repetition without figures")
    return Fresh(values["runs"], target, *controls)


def _plain_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    tests, adversary, bound = values["tests"], values["adversary"], values["bound"]
    if type(tests) is not int and tests not in get_args(Subject):
        raise ValueError("`tests` names nothing that a claim or a line of the ledger is about")
    if adversary not in get_args(AdversaryName):
        raise ValueError("`adversary` is nobody that is known")
    return {
        "tests": tests,
        "adversary": adversary,
        "bound": None if bound is None else _number(bound),
        **{name: as_text(values[name]) for name in ("attack", "seen", "remark")},
        **{name: _flag(values[name]) for name in ("adaptive", "paired")},
    }


def _condition(values: Mapping[str, Any]) -> Condition:
    scores = tuple(_scores(scores) for scores in values["scores"])
    if not scores:
        raise ValueError("a condition without scores")
    return Condition(as_text(values["what"]), scores)


def _scores(values: Mapping[str, Any]) -> Scores:
    metric, given = _metric(values["metric"]), values["given_interval"]
    figures = tuple(_number(value) for value in values["values"])
    if metric.is_rate and given is None and not set(figures) <= {0.0, 1.0}:
        raise ValueError(f"{metric.name}: a rate is made of zeros and ones")
    return Scores(metric, figures, None if given is None else (_number(given[0]), _number(given[1])))


def _metric(values: Mapping[str, Any]) -> Metric:
    metric = Metric(**values)
    if metric.better not in ("high", "low") or type(metric.digits) is not int or not 0 <= metric.digits <= 20:
        raise ValueError("a metric is better high or low, and shown with some digits")
    as_text(metric.name)
    _flag(metric.is_rate)
    _flag(metric.is_share)
    return metric


def _gate(values: Mapping[str, Any]) -> Gate:
    if values["statistic"] not in get_args(Statistic):
        raise ValueError("a gate is about a mean or a median")
    return Gate(_metric(values["metric"]), _number(values["threshold"]), values["statistic"])


def _curve(values: Mapping[str, Any]) -> Curve:
    lines: dict[str, tuple[tuple[float, float, float, float], ...]] = {}
    for name, line in values["lines"].items():
        points = []
        for point in line:
            x, y, low, high = (_number(part) for part in point)
            points.append((x, y, low, high))
        lines[name] = tuple(points)
    return Curve(as_text(values["title"]), as_text(values["x"]), as_text(values["y"]), lines)


def as_text(value: object) -> str:
    """The value, which must be a text."""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return value


def as_object(value: object) -> dict[str, Any]:
    """The value, which must be an object."""
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value


def as_texts(value: object, *, whole: str = "") -> dict[str, Any]:
    """The value, which must be an object of texts, but for a whole number under the name `whole`."""
    found = as_object(value)
    for name, one in found.items():
        if name != whole:
            as_text(one)
        elif type(one) is not int:
            raise TypeError(f"expected a whole number as `{name}`, got {type(one).__name__}")
    return found


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, got {type(value).__name__}")
    return value


def _number(value: object) -> float:
    """A number, or a word for an infinite one (`_plain`)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return float(value)
