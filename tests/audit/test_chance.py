"""The rule that keeps chance out of tests of verdicts: what leaks fails it, what is refused now and then does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.audit.chance import SEEDS, each_holds, none_is_broken, one_seed_of_some


@dataclass
class Row:
    verdict: str
    reason: str = "because"


def rows(**words):
    """By name the verdicts on one seed after the other."""
    seeds = list(one_seed_of_some())
    asked = []

    def of(seed):
        asked.append(seed)
        return {name: Row(given[seeds.index(seed)]) for name, given in words.items()}

    return of, asked


def test_one_seed_is_enough_where_all_holds():
    of, asked = rows(a=["holds"], b=["holds"])
    each_holds(of)
    assert len(asked) == 1


def test_rows_may_hold_on_different_seeds():
    of, asked = rows(a=["broken", "holds"], b=["holds", "proves nothing"])
    each_holds(of)
    assert len(asked) == 2


def test_what_is_broken_on_every_seed_is_told_with_its_reasons():
    of, asked = rows(a=["broken"] * SEEDS, b=["holds"] * SEEDS)
    for rule in (each_holds, none_is_broken):
        with pytest.raises(AssertionError, match=r"a: seed \d+: broken, because"):
            rule(of)
    assert len(asked) == 2 * SEEDS


def test_rows_that_prove_nothing_do_not_hold_and_are_not_broken():
    of, _ = rows(a=["proves nothing"] * SEEDS)
    none_is_broken(of)
    with pytest.raises(AssertionError):
        each_holds(of)


def test_no_rows_and_other_rows_are_no_success():
    with pytest.raises(AssertionError, match="no rows"):
        each_holds(lambda seed: {})
    with pytest.raises(AssertionError, match="other rows"):
        each_holds(lambda seed: {seed: Row("broken")})
