"""Secure predictions as rows of the papers' tables."""

from __future__ import annotations

from bilateral.reproduce.tables import Around
from bilateral.reproduce.tasks.predictions import Predictions


def test_a_row_has_the_cost_of_one_prediction(tmp_path):
    row = Predictions("lenet", (1,), repeats=1, input_shape=(1, 28, 28))
    values = row.run(Around(None, tmp_path, lambda _: None)).values
    assert set(values) == {"lenet/1/seconds", "lenet/1/MB", "lenet/1/error"}
    assert all(len(found) == 1 for found in values.values())
    assert values["lenet/1/seconds"][0] > 0 and values["lenet/1/MB"][0] > 0.01
    assert values["lenet/1/error"][0] < 2**-12
