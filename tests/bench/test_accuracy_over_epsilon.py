"""The table holds the lanes that it promises, says how each epsilon is counted, and adds up; here on a small set."""

import math
from dataclasses import replace

import pytest

import bilateral.bench.accuracy_over_epsilon as bench
from bilateral.bench import BENCHMARKS
from bilateral.errors import MissingDataError, NumericalRangeError
from bilateral.protocols.noise.accounting import spent
from bilateral.protocols.noise.published_accounting import theta_of
from bilateral.runs.rounds.in_process import run

ROUNDS = 2
SMALL = bench.Workload(
    settings={
        "data.name": "breast-cancer",
        "model.name": "mlp-3",
        "model.options": {"width": 4},
        "federation.clients": 3,
        "training.rounds": ROUNDS,
        "training.batch_size": 0,  # all samples: nothing is sampled, which makes the accounting quick
        "training.loss": "mse",
    },
    epsilons=(2.0,),
    seeds=(3, 8),
    sound_perturbed={"noise.clip": 2.0},
    sound_plain={"noise.clip": 3.0},
)
PERTURBED = ("published", "mp-cdp", "mp-dp-naive", "sound")
LANES = [("fedavg", False), *[(name, True) for name in PERTURBED], ("sound", False)]


@pytest.fixture(scope="module")
def measured():
    notes = []
    rows = bench.measure([SMALL], lambda done, total, note: notes.append((done, total, note)))
    return rows, notes


@pytest.mark.parametrize("workload", [bench.BANK, bench.CIFAR], ids=lambda workload: workload.dataset)
def test_the_lanes_are_the_promised_ones_at_every_epsilon(workload):
    expected = [(*lane, e) for lane in LANES for e in ((None,) if lane[0] == "fedavg" else workload.epsilons)]
    cases = bench.cases_of(workload)
    assert [(lane.mechanism, lane.perturbed, epsilon) for lane, epsilon in cases] == expected
    for lane, epsilon in cases:
        plan = lane.plan(workload, epsilon, 7)
        assert (plan.seed, plan.noise.epsilon, plan.protection == "perturbation") == (7, epsilon, lane.perturbed)
        assert plan.noise.mechanism == ("none" if lane.mechanism == "fedavg" else lane.mechanism)


def test_the_table_has_a_row_for_each_case_with_the_documented_keys(measured):
    rows, _ = measured
    cases = [(lane.mechanism, lane.perturbed, epsilon) for lane, epsilon in bench.cases_of(SMALL)]
    assert [(row["mechanism"], row["perturbed"], row["epsilon"]) for row in rows] == cases
    keys = {
        "dataset", "mechanism", "perturbed", "claim", "epsilon", "epsilon_meaning", "epsilon_total", "delta", "seeds",
        "diverged", "accuracy", "accuracy_spread", "balanced_accuracy", "balanced_accuracy_spread",
        "difference_to_fedavg_points", "difference_to_mp_cdp_points",
    }  # fmt: skip
    assert all(set(row) == keys for row in rows)


def test_every_row_says_how_epsilon_is_counted(measured):
    rows, _ = measured
    for row in rows:
        match row["mechanism"]:
            case "fedavg":
                assert (row["claim"], row["epsilon_meaning"], row["epsilon_total"]) == ("none", "no claim", None)
            case "sound":
                assert (row["claim"], row["epsilon_meaning"]) == ("sound", "whole run")
                assert 0.9 * row["epsilon"] < row["epsilon_total"] <= row["epsilon"]
            case _:
                assert (row["claim"], row["epsilon_meaning"]) == ("published, conditional", "one round, as P2 claims")
                gaussian = spent(theta_of(row["epsilon"], 1e-5) ** -0.5, 1.0, ROUNDS, 1e-5)
                assert math.isclose(row["epsilon_total"], gaussian.epsilon, rel_tol=1e-6)


def test_a_row_is_the_mean_and_the_spread_of_runs_with_its_plan(measured):
    rows, _ = measured
    row = next(row for row in rows if row["mechanism"] == "mp-cdp" and row["epsilon"] == 2.0)
    lane = next(lane for lane in bench.lanes_of(SMALL) if lane.mechanism == "mp-cdp")
    by_hand = [
        run(lane.plan(SMALL, 2.0, seed), save=False, reference=False).metrics["test_accuracy"] for seed in (3, 8)
    ]
    assert (row["seeds"], row["diverged"]) == (2, 0)
    assert row["accuracy"] == pytest.approx(sum(by_hand) / 2)
    assert row["accuracy_spread"] == pytest.approx(abs(by_hand[0] - by_hand[1]))


def test_differences_are_points_against_the_same_data_set_and_epsilon(measured):
    rows, _ = measured
    accuracy = {(row["mechanism"], row["perturbed"], row["epsilon"]): row["accuracy"] for row in rows}
    for row in rows:
        points = 100 * (row["accuracy"] - accuracy["fedavg", False, None])
        assert row["difference_to_fedavg_points"] == pytest.approx(points)
        if row["mechanism"] == "published":
            points = 100 * (row["accuracy"] - accuracy["mp-cdp", True, row["epsilon"]])
            assert row["difference_to_mp_cdp_points"] == pytest.approx(points)
        else:
            assert row["difference_to_mp_cdp_points"] is None


def test_progress_counts_every_run(measured):
    rows, notes = measured
    total = len(SMALL.seeds) * len(rows)
    assert [done for done, _, _ in notes] == list(range(total + 1))
    assert {counted for _, counted, _ in notes} == {total}


def test_a_run_that_diverges_is_counted_and_its_row_has_no_accuracy():
    exploding = replace(SMALL, settings={**SMALL.settings, "training.learning_rate": 1e30}, epsilons=(), seeds=(0,))
    (row,) = bench.measure([exploding], lambda *_: None)
    assert (row["mechanism"], row["seeds"], row["diverged"]) == ("fedavg", 1, 1)
    assert row["accuracy"] is row["accuracy_spread"] is row["difference_to_fedavg_points"] is None


def test_a_plan_that_is_out_of_range_by_itself_is_no_divergence():
    absurd = replace(SMALL, sound_plain={"noise.clip": 1e300, "noise.noise_multiplier": 1.0})
    plan = bench.lanes_of(absurd)[-1].plan(absurd, None, 0)
    with pytest.raises(NumericalRangeError, match="no grid"):
        bench._train(plan)


@pytest.mark.parametrize("workload", [bench.BANK, bench.CIFAR], ids=lambda workload: workload.dataset)
def test_only_the_sound_lanes_have_settings_of_their_own(workload):
    untuned = {"noise.mechanism", "protection", "aggregation.masks"}
    for lane in bench.lanes_of(workload):
        assert lane.mechanism == "sound" or set(lane.settings) <= untuned
        assert not set(lane.settings) & {"training.rounds", "training.batch_size", "data.options"}


def test_without_the_data_files_the_benchmark_says_where_to_get_them(monkeypatch):
    monkeypatch.delenv("BILATERAL_DATA", raising=False)
    with pytest.raises(MissingDataError, match="bank-marketing"):
        BENCHMARKS["accuracy-over-epsilon"](True, lambda *_: None)
