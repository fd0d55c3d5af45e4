"""`bench round-trip`: its arithmetic on rounds made up here, and one small job on FLARE's simulator."""

import json

import pytest
import torch

from bilateral.bench.round_trip import WARMUP_ROUNDS, Case, RoundTrip, case_rows
from bilateral.bench.round_trip_clock import (
    TIMING_CLASSES,
    CallTiming,
    ExchangeTiming,
    RoundTiming,
    Watch,
    Work,
    read_rounds,
)
from bilateral.bench.round_trip_run import TimedRun, run_timed
from bilateral.engine.flare.kit_builder import JOB_CLASSES
from bilateral.errors import PlanError
from bilateral.runs.rounds.in_process import run

FIRST_KEYS = [
    "engine", "sites", "model", "protection", "seconds_per_round", "ratio_to_fedavg", "megabytes_per_round",
]  # fmt: skip
SITES = ("client-0", "client-1")
CHOSEN = RoundTrip(sites=(2,), models=("mlp-5",), losses=("ce",), rounds=2, batch_size=8)


def made_up_round(lane, index, step, others, alone, tickets):
    """A round of known lengths: training asks every site twice, the other stages once."""

    def exchange(stage, seconds, num_calls):
        calls = [
            CallTiming(s, lane, next(tickets), seconds, 1_000_000, 500_000) for _ in range(num_calls) for s in SITES
        ]
        return ExchangeTiming(stage, seconds, calls)

    exchanges = [exchange("training", step, 2), *[exchange(stage, seconds, 1) for stage, seconds in others.items()]]
    return RoundTiming(lane, index, 0.0, step + sum(others.values()) + alone, exchanges)


@pytest.fixture
def made_up():
    tickets = iter(range(1000))
    rounds = []
    for index in range(WARMUP_ROUNDS + 2):
        slow = 100.0 if index < WARMUP_ROUNDS else 1.0  # the first rounds must not count
        masks = {"signing the survivors": 0.1 * slow, "unmasking": 0.2 * slow}
        rounds.append(made_up_round(0, index, 2.0 * slow, masks, 0.1 * slow, tickets))
        rounds.append(made_up_round(1, index, 1.0 * slow, {}, 0.2 * slow, tickets))
    work = {(c.site, c.ticket): Work(0.4, 0.3) for r in rounds for e in r.exchanges for c in e.calls}
    return TimedRun(rounds, work)


def test_rows_say_what_a_round_costs_over_fedavg_and_over_the_client_step(made_up):
    ours, fedavg = case_rows(CHOSEN, Case(2, "mlp-5", "ce"), made_up)
    assert list(ours)[: len(FIRST_KEYS)] == FIRST_KEYS
    assert ours["seconds_per_round"] == pytest.approx(2.4)
    assert ours["ratio_to_fedavg"] == pytest.approx(2.4 / 1.2)
    assert ours["client_step_seconds"] == pytest.approx(2.0)
    assert ours["overhead_on_client_step"] == pytest.approx(0.2)
    assert ours["overhead_of_fedavg"] == fedavg["overhead_on_client_step"] == pytest.approx(0.2)
    assert ours["client_work_seconds"] == pytest.approx(0.8)  # two calls of 0.4 to each site
    assert ours["client_cpu_seconds"] == pytest.approx(0.6)
    assert ours["unmasking_seconds"] == pytest.approx(0.2)
    assert ours["server_alone_seconds"] == pytest.approx(0.1)
    assert ours["megabytes_per_round"] == pytest.approx(1.5 * 2 * (2 + 1 + 1))
    assert fedavg["ratio_to_fedavg"] == 1.0
    assert fedavg["megabytes_per_round"] == pytest.approx(1.5 * 2 * 2)


def test_a_round_that_only_one_side_finished_does_not_count(made_up):
    last = max(timing.round_index for timing in made_up.rounds)
    rounds = [timing for timing in made_up.rounds if (timing.lane, timing.round_index) != (1, last)]
    ours, _ = case_rows(CHOSEN, Case(2, "mlp-5", "ce"), TimedRun(rounds, made_up.work))
    assert ours["rounds"] == 1


def test_a_run_without_a_measured_round_is_an_error(made_up):
    with pytest.raises(PlanError, match="No round"):
        case_rows(CHOSEN, Case(2, "mlp-5", "ce"), TimedRun(made_up.rounds[:2], made_up.work))


@pytest.mark.parametrize(
    "wrong", [{"engine": "in-process"}, {"sites": (1,)}, {"losses": ("l1",)}, {"rounds": 0}, {"models": ()}]
)
def test_what_cannot_be_measured_is_refused(wrong):
    with pytest.raises(PlanError, match="Expected"):
        RoundTrip(**wrong)


def test_timings_survive_the_file(made_up, tmp_path):
    Watch(made_up.rounds).write(tmp_path / "timings.json")
    assert read_rounds(tmp_path / "timings.json") == made_up.rounds


def test_a_deployment_does_not_build_the_timed_ends():
    assert not any(f"{timed}TimedSite".startswith(allowed) for timed in TIMING_CLASSES for allowed in JOB_CLASSES)


def test_the_clock_does_not_change_what_is_learned_and_counts_the_bytes_of_the_protocol(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (case,) = CHOSEN.cases
    plan = CHOSEN.plan(case)
    timed = run_timed(plan, "flare-sim", tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = run(plan, save=False, reference=True).as_dict()
    finally:
        torch.set_num_threads(threads)
    there = json.loads((tmp_path / "run" / "result.json").read_text())
    assert there["metrics"] == here["metrics"]
    assert there["difference_to_fedavg"] == here["difference_to_fedavg"]
    ours, fedavg = case_rows(CHOSEN, case, timed)
    assert ours["rounds"] == CHOSEN.rounds
    assert ours["seconds_per_round"] > ours["client_step_seconds"] > 0
    assert ours["client_step_seconds"] > ours["client_work_seconds"] >= 0.9 * ours["client_cpu_seconds"] > 0
    per_round = (here["megabytes_up"] + here["megabytes_down"]) / plan.training.rounds
    assert per_round < ours["megabytes_per_round"] < 1.01 * per_round + 0.02  # headers, and keys in the first round
    assert ours["megabytes_per_round"] > fedavg["megabytes_per_round"]
    assert {"sharing_mask_seeds_seconds", "signing_the_survivors_seconds", "unmasking_seconds"} <= set(ours)
