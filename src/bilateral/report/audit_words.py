"""How an audit is put into words, in one place: tables, pages and pictures say the same, and never more than was found.

Formal guarantee (tests/report/test_audit_words.py): the verdict "holds" is always written with what it means, that
these attacks found nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from bilateral.audit.evidence import Condition, Evidence
from bilateral.audit.ledger import LEDGER
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.verdict import OWN, ClaimVerdict, Finding, Word

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


def spoken(word: Word) -> str:
    """A verdict as people read it."""
    return _SPOKEN[word]


def tally(verdicts: Sequence[ClaimVerdict]) -> str:
    """`1 BROKEN, 2 not tested, 3 hold (nothing found by these attacks)`: the worst first."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    words = {**_SPOKEN, "holds": f"hold ({NOTHING_FOUND})"}
    said = [f"{counts[word]} {_SPOKEN[word] if counts[word] == 1 else words[word]}" for word in ORDER if counts[word]]
    return ", ".join(said) or "none"


def own_claims(verdicts: Sequence[ClaimVerdict]) -> list[ClaimVerdict]:
    """What the plan itself claims."""
    return [verdict for verdict in verdicts if verdict.claimed_by == OWN]


def leaks(verdicts: Sequence[ClaimVerdict]) -> list[ClaimVerdict]:
    """All else: what the plan admits, some of which the papers deny."""
    return [verdict for verdict in verdicts if verdict.claimed_by != OWN]


def heading(verdict: ClaimVerdict) -> str:
    """`single uploads: every upload and its weight`, `line 2: every true softmax`."""
    return f"{subject(verdict.tests)}: {verdict.what}"


def subject(tests: str | int) -> str:
    """A claim's subject, or the line of the ledger."""
    return f"line {tests}" if isinstance(tests, int) else tests


def about_whom(verdict: ClaimVerdict) -> str:
    """From whom it stays hidden, or to whom it leaks; and who says that it does not."""
    if verdict.claimed_by == OWN:
        return f"hidden from {verdict.whom}; claimed by this plan"
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


def figure(scores: Scores | None) -> str:
    """`24.1 [22.0, 26.2]`; of a missing condition a dash."""
    if scores is None:
        return "-"
    low, high = scores.interval
    return f"{number(scores.mean, scores.metric)} [{number(low, scores.metric)}, {number(high, scores.metric)}]"


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
