"""The table of `benchmarks/sealed_accuracy.py`: which seeds are beside which, and what is inside of what."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sealed_accuracy


def row(accuracy):
    return {"metrics": {"test_accuracy": accuracy}, "seconds": 3.0, "rounds": 2}


@pytest.mark.parametrize(("sealed", "inside"), [(0.9, "yes"), (0.92, "yes"), (0.95, "yes"), (0.951, "no"), (0.8, "no")])
def test_a_run_is_inside_the_spread_of_all_seeds_or_it_is_not(sealed, inside):
    found = {"digits": {"fedsgd": {"0": row(0.9), "1": row(0.95)}, "sealed": {"0": row(sealed)}}}
    (line,) = sealed_accuracy.as_table(found).splitlines()[2:]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    expected = [f"{sealed:.4f}", "0.9000", "0.9250 (0.9000 to 0.9500)", inside, "3"]
    assert cells == ["digits", "test_accuracy", *expected]


def test_seeds_that_are_not_there_on_both_sides_are_not_compared():
    found = {"digits": {"fedsgd": {"0": row(0.9)}, "sealed": {"7": row(0.9)}}, "mnist": {}}
    assert len(sealed_accuracy.as_table(found).splitlines()) == 2


def test_every_case_is_sealed_and_plain_with_the_same_options():
    assert set(sealed_accuracy.CASES) == {
        "digits",
        "breast-cancer",
        "bank-marketing",
        "mnist",
        "mnist-faster",
        "cifar10",
    }
    for case in sealed_accuracy.CASES.values():
        assert not {"--protection", "--seed"} & set(case.options)
