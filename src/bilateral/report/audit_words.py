"""How an audit is put into words, in one place: tables, pages and pictures say the same, and never more than was found.

Formal guarantees (tests/report/test_audit_words.py): the verdict "holds" is always written with what it means, that
these attacks found nothing; no interval of a share goes beyond 0 and 1, whatever file it was read from; two attacks of
one attacker never have the same name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from bilateral.audit.auditor import NOT_ASKED, AuditResult
from bilateral.audit.evidence import Condition, Evidence
from bilateral.audit.ledger import LEDGER
from bilateral.audit.scores import AGREEMENT, AUC, BALANCED_ACCURACY, SSIM, TPR_AT_1, Metric, Scores
from bilateral.audit.topics.model.private_judge import CONFIDENCE
from bilateral.audit.verdict import BESIDE, OWN, UNSTATED, ClaimVerdict, Finding, Word, combine

NOTHING_FOUND = "nothing found by these attacks"
CAVEAT = (
    f'"holds" means: {NOTHING_FOUND}. It is no proof, and another attack may find something. "proves nothing" means '
    "that a control failed, so that the attack's failure says nothing. Figures are means with 95 % intervals."
)
ORDER: tuple[Word, ...] = ("broken", "proves nothing", "not tested", "holds")
_SPOKEN: dict[Word, str] = {
    "broken": "BROKEN",
    "proves nothing": "proves nothing",
    "not tested": "not tested",
    "holds": f"holds ({NOTHING_FOUND})",
}
OWN_TITLE = "What this plan claims"
LEAKS_TITLE = "Papers' claims and admitted leaks"
POSITIVE, NEGATIVE = "positive control", "negative control"
CONTROLS = (
    f"The *{POSITIVE}* is the same attack where nothing defends; if it fails there, it proves nothing. The "
    f"*{NEGATIVE}* is the same attack where there is nothing to find, or no more than the attacker has anyway; against "
    "a claimed epsilon it is noise of exactly that epsilon."
)
_LIMITS = {metric.name: (0.0, 1.0) for metric in (AUC, BALANCED_ACCURACY, TPR_AT_1, AGREEMENT, CONFIDENCE)} | {
    SSIM.name: (-1.0, 1.0)
}
"""Of metrics by name: in older files they do not say it themselves."""


def spoken(word: Word) -> str:
    """A verdict as people read it."""
    return _SPOKEN[word]


def spoken_of(verdict: ClaimVerdict, result: AuditResult) -> str:
    """A claim's verdict, and whether it is for want of asking that it was not tested."""
    return NOT_ASKED if not_asked(verdict, result) else spoken(verdict.verdict)


def not_asked(verdict: ClaimVerdict, result: AuditResult) -> bool:
    """Nothing was tried, and experiments were left out on purpose; never if one failed or the audit was stopped."""
    untried = verdict.verdict == "not tested" and not verdict.findings
    left_out = any(one.reason == NOT_ASKED for one in result.skipped)
    no_other_reason = NOT_ASKED in verdict.reason or verdict.reason == combine(())[1]
    return untried and left_out and no_other_reason and result.finished and not result.failed


def reason_of(verdict: ClaimVerdict, result: AuditResult) -> str:
    """Why a claim has its verdict."""
    asked = f"this audit asked for {', '.join(result.only)} alone" if result.only else "this audit asked for other ones"
    return f"not tested, since {asked}" if not_asked(verdict, result) else verdict.reason


def short_reason(verdict: ClaimVerdict, result: AuditResult) -> str:
    """What the rows of its attacks do not say themselves."""
    if verdict.verdict in ("not tested", "proves nothing"):
        return reason_of(verdict, result)
    return BESIDE + verdict.reason.partition(BESIDE)[2] if BESIDE in verdict.reason else ""


def tally(verdicts: Sequence[ClaimVerdict], result: AuditResult) -> str:
    """`1 BROKEN, 2 not tested, 3 hold (nothing found by these attacks)`: the worst first."""
    counts = Counter(spoken_of(verdict, result) for verdict in verdicts)
    words = [*(_SPOKEN[word] for word in ORDER[:-1]), NOT_ASKED, _SPOKEN["holds"]]
    said = [f"{counts[word]} {word}" for word in words if counts[word]]
    if counts[_SPOKEN["holds"]] > 1:
        said[-1] = said[-1].replace("holds", "hold", 1)
    return ", ".join(said) or "none"


def own_claims(verdicts: Sequence[ClaimVerdict]) -> list[ClaimVerdict]:
    """What the plan itself claims."""
    return [verdict for verdict in verdicts if verdict.claimed_by == OWN]


def leaks(verdicts: Sequence[ClaimVerdict]) -> list[ClaimVerdict]:
    """All else: what the plan admits, some of which the papers deny. A line that leaks several things to one is one."""
    merged: dict[tuple[str | int, str, str], ClaimVerdict] = {}
    for verdict in verdicts:
        if verdict.claimed_by == OWN:
            continue
        key = (verdict.tests, verdict.whom, verdict.claimed_by)  # the same findings are about both
        first = merged.setdefault(key, verdict)
        if first is not verdict and verdict.what not in first.what.split("; "):
            merged[key] = replace(first, what=f"{first.what}; {verdict.what}")
    return list(merged.values())


def heading(verdict: ClaimVerdict) -> str:
    """`single uploads: every upload and its weight`, `line 2: every true softmax`."""
    return f"{subject(verdict.tests)}: {verdict.what}"


def subject(tests: str | int) -> str:
    """A claim's subject, or the line of the ledger."""
    return f"line {tests}" if isinstance(tests, int) else tests


def title_of(verdict: ClaimVerdict) -> str:
    """`single uploads`, `line 2: every true softmax, to the client whose sample it is`: the ledger's few words."""
    what = f": {LEDGER[verdict.tests].leak}" if isinstance(verdict.tests, int) else ""
    return subject(verdict.tests) + what


def about_whom(verdict: ClaimVerdict) -> str:
    """From whom it stays hidden, or to whom it leaks; and who says that it does not."""
    if verdict.claimed_by == OWN:
        return f"hidden from {verdict.whom}; claimed by this plan"
    if verdict.claimed_by == UNSTATED:
        return f"tried by {verdict.whom}; this plan neither claims nor admits it"
    paper = LEDGER[verdict.tests].paper if isinstance(verdict.tests, int) else ""
    denied = f"{paper} {says(paper)} that it does not" if paper else "nobody says that it does not"
    return f"leaks to {verdict.whom}; {denied}"


def says(papers: str) -> str:
    return "say" if "," in papers else "says"


def kind(evidence: Evidence) -> str:
    """Whether the attacker knows the protocol."""
    return "adaptive" if evidence.adaptive else "naive"


def attacker(evidence: Evidence) -> str:
    """`adaptive curious server`."""
    return f"{kind(evidence)} {evidence.adversary}"


def number(value: float, metric: Metric) -> str:
    """With the metric's digits; very small and very large values keep their size."""
    if math.isnan(value):
        return "?"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    tiny = value != 0 and abs(value) < 0.5 * 10.0**-metric.digits
    return f"{value:.1e}" if tiny or abs(value) >= 1e5 else f"{value:.{metric.digits}f}"


def shown_interval(scores: Scores) -> tuple[float, float]:
    """The interval, within what the metric can be."""
    low, high = scores.interval
    least, most = (0.0, 1.0) if scores.metric.is_share else _LIMITS.get(scores.metric.name, (-math.inf, math.inf))
    return max(low, least), min(high, most)


def figure(scores: Scores | None) -> str:
    """`24.1 [22.0, 26.2]`, or `at least 5.13` if that is all that is known; of a missing condition a dash."""
    if scores is None:
        return "-"
    mean, (low, high) = scores.mean, scores.interval
    value = number(mean, scores.metric)
    if math.isinf(low) and math.isinf(high):
        return f"{value} (interval unknown)"
    if math.isinf(high) and low == mean:
        return f"at least {value}"
    if math.isinf(low) and high == mean:
        return f"at most {value}"
    ends = ", ".join(number(end, scores.metric) for end in shown_interval(scores))
    return f"{value} [{ends}]"


def claimed(evidence: Evidence) -> str:
    """`claimed: at most 3`; empty if no figure was claimed."""
    if evidence.bound is None:
        return ""
    side = "at most" if evidence.target.scores[0].metric.better == "high" else "at least"
    return f"claimed: {side} {evidence.bound:.3g}"


def called(metric: Metric, text: str) -> str:
    """The metric's name beside a figure: what reads "at least" is not called a lower bound once more."""
    return metric.name.removesuffix(", lower bound") if text.startswith("at least") else metric.name


def measured(metric: Metric, text: str) -> str:
    """`AUC 0.500`."""
    return f"{called(metric, text)} {text}"


def figure_of(condition: Condition | None, metric: Metric) -> str:
    """A metric under a condition, if it was measured there."""
    return figure(None if condition is None else condition.of(metric))


def mean_of(condition: Condition | None, metric: Metric) -> str:
    """The same without its interval."""
    scores = None if condition is None else condition.of(metric)
    return "-" if scores is None else number(scores.mean, metric)


def shown_metrics(found: Finding) -> list[Metric]:
    """The attack's main metric, and the one that decided if that is another."""
    metrics = [scores.metric for scores in found.evidence.target.scores]
    decided = [metric for metric in metrics[1:] if found.reason.startswith(f"{metric.name} is ")]
    return [metrics[0], *decided]


def told_apart(evidence: Sequence[Evidence]) -> list[str]:
    """The attacks' names; where an attacker has two of the same name, with what is different about them."""
    alike: dict[tuple[str | int, str, str], dict[int, Evidence]] = {}
    for one in evidence:
        alike.setdefault(_alike(one), {})[id(one)] = one
    return [_full_name(one, [*alike[_alike(one)].values()]) for one in evidence]


def _alike(evidence: Evidence) -> tuple[str | int, str, str]:
    return evidence.tests, evidence.attack, attacker(evidence)


def _full_name(evidence: Evidence, alike: Sequence[Evidence]) -> str:
    if len(alike) == 1:
        return evidence.attack
    for ours, all_of_them in zip(_traits(evidence), zip(*map(_traits, alike), strict=True), strict=True):
        if len(set(all_of_them)) == len(alike):
            return f"{evidence.attack} ({ours})"
    place = next(place for place, one in enumerate(alike, 1) if one is evidence)
    return f"{evidence.attack} ({place} of {len(alike)})"


def _traits(evidence: Evidence) -> tuple[str, ...]:
    """By which attacks of one name may differ, the most telling first."""
    return evidence.seen, evidence.target.what, evidence.remark
