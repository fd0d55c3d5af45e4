"""Pictures show what they are given."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bilateral.report.run_page.charts import Bar, Line, _axis, _spans, bars, curves, timeline


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_an_axis_has_few_round_numbers_and_holds_its_ends(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    first, last, step = _axis(low, high)
    slack = 1e-9 * max(1.0, abs(low), abs(high))
    assert first <= low + slack and last >= high - slack
    assert 1 <= round((last - first) / step) <= 8


@given(st.sets(st.integers(1, 60)))
def test_spans_hold_the_same_rounds(numbers: set[int]) -> None:
    spans = _spans(sorted(numbers))
    assert {n for first, last in spans for n in range(first, last + 1)} == numbers
    assert all(after[0] > before[1] + 1 for before, after in pairwise(spans))


def test_a_curve_ends_at_its_last_point_and_higher_is_higher() -> None:
    line = Line("x", [(0.0, 0.0), (5.0, 0.5), (10.0, 1.0)])
    drawn = re.search(r'points="([^"]*)"', curves("t", [line], x_name="rounds", show=str))
    assert drawn
    points = [tuple(map(float, point.split(","))) for point in drawn[1].split()]
    assert points[0][0] < points[1][0] < points[2][0] == pytest.approx(886)
    assert points[0][1] > points[1][1] > points[2][1]


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    line = Line("x", [(float(n), float(n % 7)) for n in range(100_001)])
    drawn = curves("t", [line], x_name="rounds", show=str)
    assert len(drawn) < 20_000
    assert "886.0," in drawn


def test_a_run_of_one_value_and_an_empty_one_are_pictures_too() -> None:
    assert "<circle" in curves("t", [Line("x", [(0.0, 0.5)])], x_name="rounds", show=str)
    assert curves("t", [Line("x", [])], x_name="rounds", show=str) == ""


def test_bars_have_widths_in_proportion() -> None:
    drawn = bars("t", [Bar("a", {"x": 3.0, "y": 1.0}, "4"), Bar("b", {"x": 2.0}, "2")])
    assert re.findall(r"width:([\d.]+)%", drawn) == ["75.00", "25.00", "50.00"]


def test_a_timeline_marks_what_happened_where() -> None:
    drawn = timeline("t", ["a", "b"], 10, {"a": [1, 2, 3, 7]}, [("b", 4, "refused")], [(5, "failed")])
    assert drawn.count('stroke="var(--a)"') == 2 + 1  # two spans, and the key's
    assert "b, round 4: refused" in drawn
    assert "round 5: failed" in drawn
