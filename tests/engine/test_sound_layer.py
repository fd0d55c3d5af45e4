"""How much noise a plan's clients add, and against whom it is enough."""

from __future__ import annotations

import math

import pytest
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.privacy import privacy_of
from bilateral.errors import PlanError

CLIENTS, FEWEST = 12, 9  # more than two thirds
SOUND = {
    "protection": "fedavg",
    "federation__clients": CLIENTS,
    "training__loss": "mse",
    "training__batch_size": 64,
    "noise__mechanism": "sound",
    "noise__noise_multiplier": 1.0,
}


def noise_left(colluders, known):
    """Deviation of the noise in the smallest sum, without that of `known` clients, over z times the sensitivity."""
    stated = privacy_of(plan(**SOUND, noise__colluders=colluders))
    of_one_client = stated.deviations["term 0, in the mean"] * math.sqrt(CLIENTS)
    return of_one_client * math.sqrt(FEWEST - known) / (stated.deviations["clip"] / 64)


@pytest.mark.parametrize("colluders", [0, 1, 3, FEWEST - 2])
def test_a_client_and_those_that_collude_with_it_know_so_many_noises_and_the_rest_is_enough(colluders):
    assert noise_left(colluders, known=colluders + 1) == pytest.approx(1.0)


def test_a_sum_must_have_one_client_more_than_an_observer_and_its_colluders():
    with pytest.raises(PlanError, match=r"a client and 8 colluders.*9 clients"):
        privacy_of(plan(**SOUND, noise__colluders=FEWEST - 1))


def test_more_noise_is_drawn_for_the_same_epsilon_where_more_collude():
    budget = {**SOUND, "noise__noise_multiplier": None, "noise__epsilon": 5.0}
    stated = [privacy_of(plan(**budget, noise__colluders=count)) for count in (0, 1, 2)]
    deviations = [one.deviations["term 0, in the mean"] for one in stated]
    assert deviations == sorted(set(deviations))
    assert all(4.9 < one.rows[0].epsilon <= 5.0 for one in stated)
    assert "besides the observer and those that collude with it (2 at most)" in stated[2].rows[0].assumption
