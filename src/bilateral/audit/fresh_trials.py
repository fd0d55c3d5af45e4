"""A suspicious row is repeated: the same experiment on other seeds, whose figures alone decide.

The rule, fixed before anybody looked: a row that is better than its negative control with a p between the level of
`verdict.py` and its suspicion is tried `Effort.fresh_runs` times more, on seeds that follow from the plan's, with as
many trials each. Their figures are put together and judged as if there were no others; the first ones only asked for
them. A row that is broken at first stays broken, one that is not suspicious is not repeated. So an attack at chance is
called broken in 0.2 % + 1.8 % x 0.2 % of audits, and one that is not at chance has three times the trials to show it.

Rows whose intervals were given, not found from their values, cannot be put together and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from bilateral.audit.evidence import Condition, Evidence, Fresh
from bilateral.audit.scores import Scores
from bilateral.audit.verdict import is_suspicious

SEEDS_APART: Final = 1_000_003
"""Experiments count seeds on from the plan's; these are far from all of them."""
Tried = Callable[[int], Sequence[Evidence]]
"""The experiment on so many-th other seed, counted from 1."""


def with_fresh_trials(first: Sequence[Evidence], again: Tried, fresh_runs: int) -> list[Evidence]:
    """The rows of an experiment, suspicious ones with their repetition."""
    doubtful = [number for number, one in enumerate(first) if is_suspicious(one) and _can_be_pooled(one)]
    if not doubtful or not fresh_runs:
        return list(first)
    runs = [{_name(one): one for one in again(number)} for number in range(1, fresh_runs + 1)]
    found = list(first)
    for number in doubtful:
        name = _name(first[number])
        fresh = [run[name] for run in runs if name in run]
        if len(fresh) == fresh_runs and all(map(_can_be_pooled, fresh)):
            found[number] = replace(first[number], fresh=_pooled(fresh))
    return found


def _name(one: Evidence) -> tuple[object, ...]:
    positive = one.positive.what if one.positive else ""
    return one.tests, one.adversary, one.attack, one.adaptive, one.seen, one.target.what, positive


def _can_be_pooled(one: Evidence) -> bool:
    conditions = [condition for condition in (one.target, one.positive, one.negative) if condition is not None]
    return one.bound is None and all(s.given_interval is None for condition in conditions for s in condition.scores)


def _pooled(runs: Sequence[Evidence]) -> Fresh:
    positives = [one.positive for one in runs if one.positive is not None]
    negatives = [one.negative for one in runs if one.negative is not None]
    return Fresh(
        len(runs),
        _together([one.target for one in runs]),
        _together(positives) if len(positives) == len(runs) else None,
        _together(negatives) if len(negatives) == len(runs) else None,
    )


def _together(conditions: Sequence[Condition]) -> Condition:
    scores = tuple(
        Scores(one.metric, tuple(v for condition in conditions for v in _of(condition, one).values))
        for one in conditions[0].scores
        if all(condition.of(one.metric) is not None for condition in conditions)
    )
    return Condition(conditions[0].what, scores)


def _of(condition: Condition, one: Scores) -> Scores:
    found = condition.of(one.metric)
    assert found is not None
    return found
