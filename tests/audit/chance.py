"""Verdicts of chance, without verdicts by chance.

Where an attacker has nothing but coins, an audit doubts one row in fifty (`audit/verdict.py`), and calls one in five
hundred broken. Which ones is repeatable on one machine; another processor rounds a gradient otherwise, and other coins
fall. So tests ask for what must hold of *each row on one of five seeds*. A row that is refused on one seed in twenty,
which is more than the judge's level, is refused on all five with a chance of 3e-7; what leaks is found on every seed.
As a rule the first seed is the only one that is tried.

`BILATERAL_FIRST_SEED=100 pytest tests/audit` takes other seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

SEEDS = 5
FIRST_SEED = int(os.environ.get("BILATERAL_FIRST_SEED", "0"))


def each_holds(rows_of: Callable[[int], Mapping[Any, Any]]) -> None:
    """`rows_of(seed)`: findings or verdicts of claims by name, the same names for each seed."""
    _each(rows_of, lambda row: row.verdict == "holds")


def none_is_broken(rows_of: Callable[[int], Mapping[Any, Any]]) -> None:
    """The same where a row may prove nothing."""
    _each(rows_of, lambda row: row.verdict != "broken")


def one_seed_of_some() -> Iterator[int]:
    """The seeds that are tried."""
    yield from range(FIRST_SEED, FIRST_SEED + SEEDS)


def _each(rows_of: Callable[[int], Mapping[Any, Any]], passes: Callable[[Any], bool]) -> None:
    names: set[Hashable] = set()
    refused: dict[Hashable, list[str]] = {}
    for seed in one_seed_of_some():
        rows = rows_of(seed)
        assert rows, "no rows: nothing was tested"
        assert not names or names == set(rows), "other rows than with another seed"
        if not names:
            names, refused = set(rows), {name: [] for name in rows}
        for name in [*refused]:
            if passes(rows[name]):
                del refused[name]
            else:
                refused[name].append(f"seed {seed}: {rows[name].verdict}, {rows[name].reason}")
        if not refused:
            return
    raise AssertionError("\n".join(f"{name}: {'; '.join(why)}" for name, why in refused.items()))
