"""The script that measures products modulo 2^64: kernels take turns, and must agree."""

from __future__ import annotations

import pytest

import ring_kernels
from bilateral.protocols.share.ring import arithmetic as ring


def test_every_path_takes_its_turn_and_has_a_line():
    shape = ring_kernels.Shape("small", (2, 8, 4, 4), (9, 8, 3, 3))
    assert shape.products == 2 * 16 * 9 * 72
    lines = list(ring_kernels.lines_of(shape, 23, ("vector", "torch"), 3))
    assert [line.split()[3] for line in lines] == ["vector", "torch"]
    calls = []
    taken = ring_kernels.in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b", "a", "b"]
    assert all(len(seconds) == 2 for seconds in taken.values())


def test_paths_that_differ_end_the_measurement(monkeypatch):
    def off_by_one(weight, **settings):
        return lambda x: x @ weight.T + (settings["path"] == "torch")

    monkeypatch.setattr(ring, "prepare_linear", off_by_one)
    with pytest.raises(SystemExit, match="torch differs from vector"):
        ring_kernels.maps_of(ring_kernels.Shape("small", (2, 8), (9, 8)), 64, ("vector", "torch"))


def test_ratios_are_taken_repetition_by_repetition():
    assert ring_kernels.ratios([2.0, 4.0, 6.0], [1.0, 1.0, 1.0]) == (4.0, 2.0, 6.0)
