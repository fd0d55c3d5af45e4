"""What an audit's effort means, in one table."""

from __future__ import annotations

from typing import get_args

import pytest

from bilateral.audit.effort import EFFORTS, EffortName
from bilateral.protocols.perturb.settings import Loss


def test_every_effort_that_can_be_asked_for_is_in_the_table_under_its_name():
    assert tuple(EFFORTS) == get_args(EffortName)
    assert all(effort.name == name for name, effort in EFFORTS.items())
    assert all(set(effort.memorising) == set(get_args(Loss)) for effort in EFFORTS.values())


@pytest.mark.parametrize(
    ("name", "planned", "expected"),
    [
        ("smoke", 30, 30),
        ("smoke", 300, 40),
        ("standard", 30, 30),
        ("standard", 100, 50),
        ("standard", 301, 101),
        ("thorough", 30, 30),
        ("thorough", 300, 300),
    ],
)
def test_model_inversion_trains_no_longer_than_the_plan_and_no_shorter_than_it_takes(name, planned, expected):
    assert EFFORTS[name].inverting.rounds_of(planned) == expected
