"""What the figures mean. The only place of the audit that says so, and it is given nothing but raw figures.

An attack (`judge`), in this order:
1. **broken** if it succeeded: better for the attacker than the negative control in any metric, at a level of 0.2 % for
   all metrics together; or, against a claimed bound, with its whole interval beyond that bound;
2. **proves nothing** if it could not have been seen to succeed: no positive control or one that fails its gates, no
   negative control or one that passes them, too few trials for the test; or if it may have succeeded: better than
   chance at a level of 2 %, a single trial that reaches what counts as success where no trial of the control does, or
   an interval that reaches it;
3. **holds** otherwise: nothing was found by this attack. Never more than that.

An attack that is suspicious by (2) for its p is repeated on other seeds, and then judged by those figures alone, as
above (`fresh_trials.py`). No other row is judged again, whatever it brings.

A claim (`judge_claims`): broken if one attack broke it; holds if an adaptive attack, with its controls in order, found
nothing; proves nothing if all that was tried proves nothing; not tested if nothing was tried, or by naive attackers
alone. Its reason names what proved nothing, and what else is broken for the same party.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from bilateral.audit.evidence import Condition, Evidence, Gate
from bilateral.audit.ledger import LEDGER
from bilateral.audit.scores import Scores, p_value, smallest_p_value
from bilateral.protocols.guarantee import Claim, Guarantee, Leak

OWN = "this plan"
"""`ClaimVerdict.claimed_by` of the plan's own claims."""
UNSTATED = "nobody: this plan does not mention it"
"""And of what was tried all the same."""
Word = Literal["holds", "broken", "not tested", "proves nothing"]
LEVEL = 0.002
"""Of one attack, all its metrics together. An audit of the default plan has some eighty attacks: were they all at
chance, it would raise a false alarm about once in six audits. What is called broken here has a p-value beside it."""
BESIDE = "Not part of this claim, and broken for the same party"
SUSPICION = 0.02
"""Between the two levels nothing is concluded."""


@dataclass(frozen=True)
class Finding:
    """One attack, judged, with the figures that decided: of a row that was repeated, those of the repetition."""

    evidence: Evidence
    verdict: Word
    reason: str
    p_value: float | None = None


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim of the plan, or a leak that it admits, with all that was tried against it."""

    tests: str | int
    what: str
    whom: str
    claimed_by: str
    verdict: Word
    reason: str
    findings: tuple[Finding, ...]


def judge(evidence: Evidence) -> Finding:
    """One attack's verdict."""
    first, fresh = _judge(evidence), evidence.fresh
    if fresh is None or not is_suspicious(evidence):
        return first
    again = replace(evidence, target=fresh.target, positive=fresh.positive, negative=fresh.negative, fresh=None)
    found = _judge(again)
    said = f"{found.reason}; on {fresh.runs} fresh runs, because the first was suspicious (p = {first.p_value:.2g})"
    return Finding(again, found.verdict, said, found.p_value)


def is_suspicious(evidence: Evidence) -> bool:
    """Better than chance, and not enough so: neither broken nor fit to be said to hold, for its p alone."""
    least = None if evidence.bound is not None else _least_p_value(evidence)
    return least is not None and LEVEL < least[0] <= SUSPICION and not _doubt(evidence)


def _judge(evidence: Evidence) -> Finding:
    if evidence.bound is not None:
        return _judge_bound(evidence, evidence.bound)
    least = _least_p_value(evidence)
    p = None if least is None else least[0]
    if least is not None and least[0] <= LEVEL:
        return Finding(evidence, "broken", f"{least[1].metric.name} is better than the negative control's", p)
    doubt = _doubt(evidence) or _suspicion(evidence, p)
    if doubt:
        return Finding(evidence, "proves nothing", doubt, p)
    return Finding(evidence, "holds", f"no better than the negative control (p = {p:.2g})", p)


def judge_claims(guarantee: Guarantee, evidence: Sequence[Evidence]) -> list[ClaimVerdict]:
    """Every claim and every admitted leak of the guarantee, whether tested or not."""
    findings = [judge(one) for one in evidence]

    def about(tests: str | int, whom: str) -> tuple[Finding, ...]:
        of_it = [found for found in findings if found.evidence.tests == tests]
        return tuple(found for found in of_it if _concerns(found.evidence.adversary, whom))

    leaks = [_leak_verdict(leak, about(leak.ledger_line, leak.whom)) for leak in guarantee.leaks]
    claims = [_claim_verdict(claim, about(claim.subject, claim.whom), leaks) for claim in guarantee.claims]
    placed = {id(found) for verdict in claims + leaks for found in verdict.findings}
    return claims + leaks + _unstated([found for found in findings if id(found) not in placed])


def _unstated(findings: Sequence[Finding]) -> list[ClaimVerdict]:
    """What was tried though the plan neither claims nor admits it: nothing that was found may be lost."""
    verdicts = []
    for tests in dict.fromkeys(found.evidence.tests for found in findings):
        about = tuple(found for found in findings if found.evidence.tests == tests)
        whom = ", ".join(dict.fromkeys(found.evidence.adversary for found in about))
        what = LEDGER[tests].leak if isinstance(tests, int) else tests
        verdict, reason = combine(about)
        verdicts.append(ClaimVerdict(tests, what, whom, UNSTATED, verdict, reason, about))
    return verdicts


def combine(findings: Sequence[Finding]) -> tuple[Word, str]:
    """The verdict of several attacks on one claim, and its reason."""
    words = [found.verdict for found in findings]
    if "broken" in words:
        return "broken", f"by {_names([found for found in findings if found.verdict == 'broken'])}"
    sound = [found for found in findings if found.verdict == "holds" and found.evidence.adaptive]
    if sound:
        void = [found for found in findings if found.verdict == "proves nothing"]
        but = f". Proves nothing: {_names(void)}" if void else ""
        return "holds", f"nothing found by {_names(sound)}{but}"
    if "proves nothing" in words:
        reasons = [f"{_name(found)}: {found.reason}" for found in findings if found.verdict == "proves nothing"]
        return "proves nothing", "; ".join(dict.fromkeys(reasons))
    if findings:
        return "not tested", "only by attackers that do not know the protocol"
    return "not tested", "no attack of this audit is about it"


def rows(verdicts: Sequence[ClaimVerdict]) -> list[dict[str, Any]]:
    """Flat rows for machines: one an attack, and one for each claim that was not tested."""
    return [row for verdict in verdicts for row in _rows_of(verdict)]


def _rows_of(verdict: ClaimVerdict) -> list[dict[str, Any]]:
    head = {"claim": verdict.what, "claimed_by": verdict.claimed_by, "tests": verdict.tests, "whom": verdict.whom}
    overall = {"claim_verdict": verdict.verdict, "claim_reason": verdict.reason}
    if not verdict.findings:
        nothing = dict.fromkeys(
            ("adversary", "attack", "adaptive", "metric", "value", "interval", "positive_control", "negative_control")
        )
        return [{**head, **nothing, "verdict": "not tested", "reason": verdict.reason, "p_value": None, **overall}]
    return [{**head, **_finding_row(found), **overall} for found in verdict.findings]


def _finding_row(found: Finding) -> dict[str, Any]:
    evidence, main = found.evidence, found.evidence.target.scores[0]
    return {
        "adversary": evidence.adversary,
        "attack": evidence.attack,
        "adaptive": evidence.adaptive,
        "seen": evidence.seen,
        **_figures(evidence.target, main),
        "positive_control": _control(evidence.positive, main),
        "negative_control": _control(evidence.negative, main),
        "gates": [str(gate) for gate in evidence.gates],
        "verdict": found.verdict,
        "reason": found.reason,
        "p_value": found.p_value,
        "bound": evidence.bound,
    }


def _control(condition: Condition | None, main: Scores) -> dict[str, Any] | None:
    if condition is None:
        return None
    scores = condition.of(main.metric) or condition.scores[0]
    return {"what": condition.what, **_figures(condition, scores)}


def _figures(condition: Condition, main: Scores) -> dict[str, Any]:
    others = {scores.metric.name: _figure(scores) for scores in condition.scores if scores is not main}
    return {"metric": main.metric.name, **_figure(main), "others": others}


def _figure(scores: Scores) -> dict[str, Any]:
    low, high = scores.interval
    return {
        "value": _finite(scores.mean),
        "interval": [_finite(low), _finite(high)],
        "median": _finite(scores.median),
        "trials": len(scores.values),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if abs(value) < float("inf") else None


def _least_p_value(evidence: Evidence) -> tuple[float, Scores] | None:
    """Of the metrics that both have, corrected for their number."""
    if evidence.negative is None:
        return None
    pairs = [(s, c) for s in evidence.target.scores if (c := evidence.negative.of(s.metric)) is not None]
    if not pairs:
        return None
    found = [(min(1.0, len(pairs) * p_value(s, c, paired=evidence.paired)), s) for s, c in pairs]
    return min(found, key=lambda one: one[0])


def _doubt(evidence: Evidence) -> str:
    """Why a failure of this attack would mean nothing; empty if it would mean something."""
    doubt = _doubt_of_positive(evidence) or _doubt_of_negative(evidence)
    if not doubt and evidence.bound is None and all(_passes(gate, evidence.target) for gate in evidence.gates):
        return "it reaches what counts as success, but not so clearly that chance is out of the question"
    return doubt


def _suspicion(evidence: Evidence, p: float | None) -> str:
    """Signs of success that are no proof of it: with them, nothing may be said to hold."""
    if p is not None and p <= SUSPICION:
        return f"suspicious: better than the negative control with p = {p:.2g}, too little to call it broken"
    for gate in evidence.gates:
        target, control = evidence.target.of(gate.metric), evidence.negative and evidence.negative.of(gate.metric)
        if (
            target
            and control
            and any(map(gate.reached_by, target.values))
            and not any(map(gate.reached_by, control.values))
        ):
            hits = sum(map(gate.reached_by, target.values))
            return f"suspicious: {hits} of {len(target.values)} trials reach {gate.threshold:g} {gate.metric.name}"
    if evidence.gates and all(_may_reach(gate, evidence.target) for gate in evidence.gates):
        return "its interval reaches what counts as success: too few trials"
    return ""


def _may_reach(gate: Gate, condition: Condition) -> bool:
    scores = condition.of(gate.metric)
    return scores is not None and gate.reached_by(scores.interval[1 if gate.metric.better == "high" else 0])


def _doubt_of_positive(evidence: Evidence) -> str:
    if evidence.positive is None or not evidence.gates:
        return "no positive control: it was never seen to work"
    missed = [str(gate) for gate in evidence.gates if not _passes(gate, evidence.positive)]
    if missed:
        return f"its positive control ({evidence.positive.what}) misses {', '.join(missed)}"
    unmeasured = [gate.metric.name for gate in evidence.gates if evidence.target.of(gate.metric) is None]
    return f"{', '.join(unmeasured)}, by which it counts as working, was not measured here" if unmeasured else ""


def _doubt_of_negative(evidence: Evidence) -> str:
    negative = evidence.negative
    if negative is None:
        return "no negative control: chance is unknown"
    unknown = [scores.metric.name for scores in evidence.target.scores if negative.of(scores.metric) is None]
    if unknown:
        return f"its negative control ({negative.what}) has no {', '.join(unknown)}: chance is unknown"
    if all(_passes(gate, negative) for gate in evidence.gates):
        return f"its negative control ({negative.what}) passes the gates of success: the measure is blind"
    if evidence.bound is None and not _can_tell(evidence, negative):
        return "too few trials to tell it from its negative control"
    return ""


def _passes(gate: Gate, condition: Condition) -> bool:
    scores = condition.of(gate.metric)
    return scores is not None and gate.passed_by(scores)


def _can_tell(evidence: Evidence, negative: Condition) -> bool:
    pairs = [(s, c) for s in evidence.target.scores if (c := negative.of(s.metric)) is not None]
    return bool(pairs) and all(len(pairs) * smallest_p_value(s, c, paired=evidence.paired) <= LEVEL for s, c in pairs)


def _judge_bound(evidence: Evidence, bound: float) -> Finding:
    main = evidence.target.scores[0]
    if _beyond(main, bound):
        return Finding(evidence, "broken", f"{main.metric.name} {main.mean:.3g} is beyond the claimed {bound:g}")
    if evidence.negative is not None:
        control = evidence.negative.of(main.metric)
        if control is not None and _beyond(control, bound):
            return Finding(evidence, "proves nothing", "its negative control is beyond the bound: the measure is wrong")
    doubt = _doubt(evidence) or _doubt_of_bound(main, bound)
    if doubt:
        return Finding(evidence, "proves nothing", doubt)
    return Finding(evidence, "holds", f"{main.metric.name} {main.mean:.3g} is within the claimed {bound:g}")


def _doubt_of_bound(main: Scores, bound: float) -> str:
    """A value beyond the bound, or without a known interval, is not within it."""
    beyond = main.mean > bound if main.metric.better == "high" else main.mean < bound
    if beyond:
        return f"{main.metric.name} {main.mean:.3g} is beyond the claimed {bound:g}, but its interval is not"
    known = main.interval[0] if main.metric.better == "high" else main.interval[1]
    return "" if abs(known) < float("inf") else f"the interval of {main.metric.name} is unknown"


def _beyond(scores: Scores, bound: float) -> bool:
    low, high = scores.interval
    return low > bound if scores.metric.better == "high" else high < bound


def _names(findings: Sequence[Finding]) -> str:
    return "; ".join(dict.fromkeys(_name(found) for found in findings))


def _name(found: Finding) -> str:
    kind = "adaptive" if found.evidence.adaptive else "naive"
    return f"{found.evidence.attack} ({kind} {found.evidence.adversary})"


_SEALED: Final[Mapping[str, Callable[[str], bool]]] = {
    "dealer": lambda whom: whom == "dealer",
    "server with another client's dealer": lambda whom: whom == "server",
    "client with its dealer": lambda whom: whom.startswith("a client and "),
    "server with a client's dealer": lambda whom: whom.startswith("the server and "),
}
"""Adversaries of sealed training, and what the guarantee calls whom they are about."""


def _concerns(adversary: str, whom: str) -> bool:
    """Whether an adversary is one of those that something is hidden from, or leaks to."""
    if adversary in _SEALED:
        return _SEALED[adversary](whom)
    if whom.startswith("clients"):
        return adversary in ("curious client", "colluding clients", "eavesdropper")
    if whom == "server":
        return adversary in ("curious server", "server with colluding clients", "dishonest server", "eavesdropper")
    return True


def _claim_verdict(claim: Claim, findings: tuple[Finding, ...], leaks: Sequence[ClaimVerdict]) -> ClaimVerdict:
    verdict, reason = combine(findings)
    beside = [str(leak.tests) for leak in leaks if leak.verdict == "broken" and leak.whom == claim.whom]
    if verdict == "holds" and beside:
        reason += f". {BESIDE}: ledger lines {', '.join(beside)}"
    return ClaimVerdict(claim.subject, claim.what, claim.whom, OWN, verdict, reason, findings)


def _leak_verdict(leak: Leak, findings: tuple[Finding, ...]) -> ClaimVerdict:
    verdict, reason = combine(findings)
    line = LEDGER[leak.ledger_line]
    claimed_by = f"{line.paper}, not this plan (ledger line {line.number})" if line.paper else f"nobody ({line.number})"
    return ClaimVerdict(leak.ledger_line, leak.what, leak.whom, claimed_by, verdict, reason, findings)
