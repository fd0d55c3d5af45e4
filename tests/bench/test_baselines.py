"""`bench baselines`: its rows, and that what is extrapolated says from how many values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bilateral.bench import baselines
from bilateral.bench.baselines import SumOfLarge, Workload, measure_baselines, one_sum, sums_of_baselines
from bilateral.protections.registry import baseline_names


@pytest.mark.parametrize("name", ["ckks", "hybrid-alpha"])
def test_seconds_are_multiplied_up_and_say_from_how_many_values(name):
    (one,) = [one for one in sums_of_baselines(5) if one.protection == name]
    small = replace(one, sample=8)
    row = one_sum(small, Workload("a network", 80, 1.0, 40, 5), 1)
    assert row["extrapolated"]
    assert (row["values"], row["measured_values"]) == (80 * one.num_terms, 8)
    assert row["round_ratio"] == pytest.approx(1 + row["client_seconds"] + row["server_seconds"])
    assert 1 < row["epoch_ratio"] < row["round_ratio"]
    assert row["upload_bytes"] > 4 * 80


def test_a_sum_that_is_wrong_measures_nothing(monkeypatch):
    class Wrong:
        def __getattr__(self, name):
            return getattr(baselines.ExactCkks(), name)

        def opener(self, public):
            right = baselines.ExactCkks().opener(public)

            class Opener:
                check, request = right.check, right.request

                def open(self, *given):
                    return right.open(*given) + 1

            return Opener()

    with pytest.raises(AssertionError, match="measures nothing"):
        one_sum(SumOfLarge("ckks", Wrong(), 40, 1, 8), Workload("a network", 80, 1.0, 40, 5), 1)


def test_cryptosystems_are_measured_at_the_key_sizes_that_protections_have():
    sizes = {one.protection: getattr(one.system, "key_bits", None) for one in sums_of_baselines(5)}
    assert sizes == {"ckks": None, "tp-smc": 2048, "pile": 2048, "hybrid-alpha": None}


@pytest.mark.long
def test_the_quick_bench_has_a_row_for_every_baseline():
    rows = measure_baselines(True, lambda *_: None)
    whole = [row["protection"] for row in rows if row["part"] == "whole run"]
    assert whole == ["fedavg", "perturbation+masks", *baseline_names()]
    assert [row["protection"] for row in rows if row["part"] == "one sum"] == [
        one.protection for one in sums_of_baselines(5)
    ]
