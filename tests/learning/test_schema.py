"""What differs between a site's data and the server's is said in words, whatever names a briefing brings."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bilateral.learning.problem import Schema

MINE = Schema("classification", (3,), "float32", 2, ("no", "yes"), ("age", "sex", "bmi"))
NAMES = st.lists(st.sampled_from(["age", "sex", "bmi", "height"]), max_size=5).map(tuple)


@given(NAMES, NAMES)
def test_columns_differ_exactly_where_something_is_said(here: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    said = list(replace(MINE, columns=here).differences(replace(MINE, columns=wanted)))
    assert bool(said) == (here != wanted and bool(here) and bool(wanted))


def test_a_name_that_stands_twice_is_a_difference() -> None:
    (said,) = MINE.differences(replace(MINE, columns=("age", "sex", "bmi", "age")))
    assert said == "3 columns, not 4: a name stands there more than once"
