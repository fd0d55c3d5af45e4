"""Attacks of stored audits as rows of the leakage page: all of them folded, the strongest in the open."""

from __future__ import annotations

from collections.abc import Sequence

from bilateral.audit.verdict import Finding
from bilateral.report.audit_strength import beside, strongest
from bilateral.report.audit_words import (
    NEGATIVE,
    POSITIVE,
    attacker,
    claimed,
    figure_of,
    measured,
    shown_metrics,
    spoken,
    told_apart,
)
from bilateral.report.leakage_markdown import Tried, counted, folded, table

_HEAD = ("attack", "attacker", "gets", POSITIVE, NEGATIVE, "verdict")


def best_attacks(tried: Sequence[Tried]) -> str:
    """The strongest attacker that knows the protocol, and the strongest that does not: two rows, whoever was tried."""
    findings = [found for _, found in tried]
    adaptive = strongest(findings, adaptive=True)
    rows = []
    for best, word in ((adaptive, "adaptive"), (beside(adaptive, findings), "naive")):
        row = next((row for row, one in zip(_rows(tried), tried, strict=True) if one[1] is best), None)
        rows.append(row or ("-", "not tried", word, *["-"] * 4))
    return table(("audit", *_HEAD), rows)


def all_attacks(tried: Sequence[Tried], about: str) -> str:
    """One a row."""
    return folded(f"All {counted(len(tried), 'attack')} on {about}", table(("audit", *_HEAD), _rows(tried)))


def claim_attacks(tried: Sequence[tuple[str, Finding]]) -> str:
    """The same for the claims of one plan: `tried` has the claim's name in place of the audit's."""
    return folded(f"All {counted(len(tried), 'attack')} on these claims", table(("claim", *_HEAD), _rows(tried)))


def _rows(tried: Sequence[Tried]) -> list[tuple[str, ...]]:
    names: dict[int, str] = {}
    for where in dict.fromkeys(where for where, _ in tried):
        here = [found for other, found in tried if other == where]
        names |= {id(found): name for name, found in zip(told_apart([one.evidence for one in here]), here, strict=True)}
    return [
        (
            where,
            names[id(found)],
            attacker(found.evidence),
            *_figures(found),
            _verdict(found),
        )
        for where, found in tried
    ]


def _figures(found: Finding) -> tuple[str, str, str]:
    evidence, metrics = found.evidence, shown_metrics(found)
    bound = f" ({claimed(evidence)})" if claimed(evidence) else ""
    got = "; ".join(measured(metric, figure_of(evidence.target, metric)) for metric in metrics) + bound
    positive = "; ".join(figure_of(evidence.positive, metric) for metric in metrics)
    negative = "; ".join(figure_of(evidence.negative, metric) for metric in metrics)
    return got, positive, negative


def _verdict(found: Finding) -> str:
    """With its reason where nothing was decided. What "holds" means is said at the top of the page."""
    if found.verdict == "proves nothing":
        return f"{spoken(found.verdict)}: {found.reason}"
    return "nothing found" if found.verdict == "holds" else f"**{spoken(found.verdict)}**"
