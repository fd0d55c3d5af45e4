"""Which of several attacks is the strongest: the one to show where there is room for one.

It never decides a verdict; that is `audit.verdict`'s. A broken claim always shows an attack that broke it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bilateral.audit.evidence import Evidence
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.verdict import Finding, Word, combine
from bilateral.report.audit_words import attacker, claimed, mean_of, measured, shown_metrics, told_apart

_RANK: dict[Word, int] = {"broken": 0, "holds": 1, "proves nothing": 2, "not tested": 3}


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """The strongest first: those that broke something, and by how far they got; equals stay in their order."""
    return sorted(findings, key=_weakness)


def strongest(findings: Sequence[Finding], *, adaptive: bool | None = None) -> Finding | None:
    """Of all, or of the attackers that know the protocol, or of those that do not."""
    of_kind = [found for found in findings if adaptive is None or found.evidence.adaptive == adaptive]
    return ranked(of_kind)[0] if of_kind else None


def telling(findings: Sequence[Finding]) -> Finding | None:
    """The attack that stands for a claim's verdict: of those that have this verdict themselves, the strongest."""
    verdict, _ = combine(findings)
    decided = [found for found in findings if found.verdict == verdict] or findings
    return strongest(decided, adaptive=True) or strongest(decided)


def beside(best: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """The naive attack to show beside an adaptive one: the strongest if it broke anything, else one that compares."""
    naive = strongest(findings, adaptive=False)
    if best is None or naive is None or naive.verdict == "broken":
        return naive
    metric = shown_metrics(best)[-1].name
    comparable = [found for found in findings if shown_metrics(found)[-1].name == metric]
    return strongest(comparable, adaptive=False) or naive


def progress(evidence: Evidence, metric: Metric) -> float:
    """How far an attack gets from its negative control (0) to its positive one (1); against a bound, in parts of it."""
    got = _mean(evidence.target.of(metric))
    if evidence.bound:
        return _finite(got / evidence.bound)
    positive, negative = (
        _mean(None if condition is None else condition.of(metric))
        for condition in (evidence.positive, evidence.negative)
    )
    if got == positive != negative:
        return 1.0
    way = positive - negative
    return _finite((got - negative) / way if way else 0.0)


def short_figure(found: Finding) -> str:
    """`AUC 0.979; controls 0.980 and 0.499`, `epsilon at least 5.13; claimed: at most 3`: without intervals."""
    evidence, metric = found.evidence, shown_metrics(found)[-1]
    scores = evidence.target.of(metric)
    known = scores is not None and math.isinf(scores.interval[1]) and scores.interval[0] == scores.mean
    value = measured(metric, f"{'at least ' if known else ''}{mean_of(evidence.target, metric)}")
    controls = " and ".join(
        "none" if condition is None else mean_of(condition, metric)
        for condition in (evidence.positive, evidence.negative)
    )
    void = ": proves nothing" if found.verdict == "proves nothing" else ""
    return f"{value}; {claimed(evidence) or f'controls {controls}'}{void}"


def short_attack(found: Finding, among: Sequence[Finding]) -> str:
    """`iDLG (adaptive curious server)`, told apart from the others."""
    names = told_apart([one.evidence for one in among])
    name = next(name for name, one in zip(names, among, strict=True) if one.evidence is found.evidence)
    return f"{name} ({attacker(found.evidence)})"


def _weakness(found: Finding) -> tuple[int, float]:
    """Not by p-values: among attacks that succeeded they tell the number of trials."""
    return _RANK[found.verdict], -round(progress(found.evidence, shown_metrics(found)[-1]), 3)


def _mean(scores: Scores | None) -> float:
    return math.nan if scores is None else scores.mean


def _finite(value: float) -> float:
    """A missing control gives no figure; an infinite one (a perfect reconstruction) counts as all the way."""
    return 0.0 if math.isnan(value) else min(max(value, -9.0), 9.0)
