"""A federation over the remote engine, without FLARE: the same model as in one process, and faults at every stage."""

import json
import threading
from collections import Counter
from functools import partial

import pytest
import torch
from tests.runs.rounds.harness import (
    VERSION,
    Call,
    Killed,
    LocalSites,
    conduct,
    silent_at,
    undisturbed,
    weights_in,
)
from tests.runs.rounds.test_in_process import plan

import bilateral.runs.rounds.conductor as conductor_module
from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.events import read_events
from bilateral.engine.remote.edge import REFUSED, REPLY, SiteSilentError
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import CheckpointError, SitesMissingError
from bilateral.learning.training import relative_difference
from bilateral.runs.rounds.attendance import Attendance
from bilateral.runs.rounds.in_process import run
from bilateral.runs.rounds.remote_exchange import RemoteExchange

HANG = 900.0
"""Seconds after which a test that waits has stopped for good."""
STAGES = (
    "key agreement",
    "sharing mask seeds",
    "training",
    "training after the softmax answer",
    "signing the survivors",
    "unmasking",
)
SOUND = {
    "protection": "perturbation",
    "training__loss": "mse",
    "perturbation__noise": "offset",
    "noise__mechanism": "sound",
    "noise__noise_multiplier": 1.0,
}


def small(**settings):
    """Four sites, of which three make a sum. The published exchange has every stage that there is."""
    published = {"perturbation__softmax": "blinded"}
    return plan(
        **{**published, "federation__clients": 4, "training__rounds": 5, "aggregation__threshold": 0.6, **settings}
    )


def events(path, kind):
    return [event for event in read_events(path / "events.jsonl") if event["event"] == kind]


def contributors(path):
    """By round; the last word counts."""
    return {event["round"]: event["contributors"] for event in events(path, "round_done")}


def weights(result):
    return torch.cat([p.detach().double().reshape(-1) for p in result.model.parameters()])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"training__loss": "mse"},
        {"protection": "fedavg"},
        {
            "protection": "masks",
            "training__local_epochs": 1,
            "training__evaluate_every": 2,
            "evaluation__site_holdout": 0.2,
            "evaluation__site_metrics": "share",
        },
        {"aggregation__masks": "float"},
        SOUND,
        {**SOUND, "noise__unit": "client", "noise__adaptive_clip": True},
    ],
    ids=["ce", "mse", "fedavg", "local-steps-and-metrics", "float-masks", "sound", "sound-adaptive"],
)
def test_a_remote_run_gives_the_model_of_the_run_in_one_process_bit_for_bit(tmp_path, settings):
    chosen = small(**settings)
    here = run(chosen, save=False, reference=False)
    there = conduct(chosen, tmp_path / "run")
    assert torch.equal(weights(here), weights(there))
    assert there.metrics == here.metrics
    assert there.told_by_sites == here.told_by_sites
    assert bool(here.told_by_sites) is chosen.evaluation.shares_site_metrics
    assert (there.transcript.bytes_up, there.transcript.bytes_down) == (
        here.transcript.bytes_up,
        here.transcript.bytes_down,
    )


def test_fedavg_beside_a_remote_run_is_the_yardstick_that_it_is_in_one_process(tmp_path):
    chosen = small()
    here, there = run(chosen, save=False), conduct(chosen, tmp_path / "run", reference=True)
    assert there.difference_to_fedavg == here.difference_to_fedavg


@pytest.mark.parametrize("stage", STAGES)
def test_a_site_that_dies_at_any_stage_is_out_and_the_rest_go_on(tmp_path, stage):
    chosen = small()
    rounds = {-1} if stage == "key agreement" else {2}
    conduct(chosen, tmp_path / "run", LocalSites(chosen, silent_at("client-2", stage, rounds)))
    missed = events(tmp_path / "run", "site_missed")
    assert [(event["site"], event["stage"]) for event in missed] == [("client-2", stage)]
    found = contributors(tmp_path / "run")
    assert set(found) == {1, 2, 3, 4, 5}
    # After its masked upload a site is in the sum, whether or not it helps to unmask it.
    uploaded = stage in ("signing the survivors", "unmasking")
    if stage != "key agreement":
        assert ("client-2" in found[3]) == uploaded
    expected = undisturbed(chosen, found)
    checkpoint = RunDirectory(tmp_path / "run").checkpoint
    assert relative_difference(weights_in(checkpoint, chosen), expected) < 1e-6


def test_a_site_that_comes_back_is_in_the_rounds_again(tmp_path):
    chosen = small(training__rounds=8)
    conduct(chosen, tmp_path / "run", LocalSites(chosen, silent_at("client-2", "training", {2})))
    found = contributors(tmp_path / "run")
    assert "client-2" not in found[3]
    assert "client-2" in found[8]
    assert [event["site"] for event in events(tmp_path / "run", "site_returned")] == ["client-2"]


@pytest.mark.parametrize("number", [0, 3, 9, 17, 26, 40, 57])
def test_a_server_killed_at_any_moment_resumes_with_no_round_lost_or_applied_twice(tmp_path, number):
    chosen = small()
    whole = conduct(chosen, tmp_path / "whole")

    def kill(call: Call) -> None:
        if call.number == number:
            raise Killed

    with pytest.raises(Killed):
        conduct(chosen, tmp_path / "run", LocalSites(chosen, kill))
    resumed = conduct(chosen, tmp_path / "run")
    assert relative_difference(weights(resumed), weights(whole)) < 1e-6  # a new term draws its own last bits
    assert [row["round"] for row in resumed.rows] == [row["round"] for row in whole.rows]
    done = Counter(event["round"] for event in events(tmp_path / "run", "round_done"))
    assert set(done) == {1, 2, 3, 4, 5}


def test_a_killed_server_and_a_dead_site_together_end_in_the_model_over_the_surviving_updates(tmp_path):
    chosen = small(training__rounds=6)
    killed = []

    def fault(call: Call) -> None:
        if call.site == "client-3" and call.stage == "training after the softmax answer" and call.round_index == 1:
            raise SiteSilentError("gone")
        if call.round_index == 3 and call.stage == "unmasking" and not killed:
            killed.append(call)
            raise Killed

    with pytest.raises(Killed):
        conduct(chosen, tmp_path / "run", LocalSites(chosen, fault))
    resumed = conduct(chosen, tmp_path / "run", LocalSites(chosen, fault, here=("client-1", "client-2", "client-4")))
    found = contributors(tmp_path / "run")
    assert "client-3" not in found[2]
    assert found[6] == ["client-1", "client-2", "client-4"]
    assert relative_difference(weights(resumed), undisturbed(chosen, found)) < 1e-6


def test_a_slow_site_is_missed_and_sits_out_longer_each_time(tmp_path, monkeypatch):
    chosen = small(training__rounds=8, federation__timeout=30.0)
    # The site takes longer than the time-out in every round that it is asked to train in.
    sites = LocalSites(chosen, lambda call: 31.0 if (call.site, call.stage) == ("client-4", "training") else None)
    pings = threading.Semaphore(0)
    answer = sites.ping

    def ping(site):
        if site == "client-4":
            pings.release()
        return answer(site)

    def wait_until_it_was_asked(report):
        """A round is shorter than the way of a ping: the next one begins when the answer to a ping is known."""
        if any(event["round"] == report.round_index for event in events(tmp_path / "run", "site_missed")):
            while pings.acquire(blocking=False):
                pass
            assert all(pings.acquire(timeout=HANG) for _ in range(3))  # the second one is of this absence for sure

    sites.ping = ping
    monkeypatch.setattr(conductor_module, "Attendance", partial(Attendance, ping_every=0.01))
    conduct(chosen, tmp_path / "run", sites, on_round=wait_until_it_was_asked)
    found = contributors(tmp_path / "run")
    assert all("client-4" not in names for names in found.values())
    missed = events(tmp_path / "run", "site_missed")
    assert [event["round"] for event in missed] == [1, 2, 4, 8]
    assert "30 seconds" in missed[0]["reason"]


def test_a_dead_site_is_not_waited_for_as_long_as_a_slow_one(tmp_path, monkeypatch):
    chosen = small(training__rounds=3, federation__timeout=60.0)
    dead = threading.Event()

    def fault(call: Call) -> None:
        if call.site == "client-4" and call.stage == "training":
            dead.wait(HANG)  # a call into the void
            raise SiteSilentError("timed out")

    sites = LocalSites(chosen, fault)
    sites.ping = lambda site: None if site == "client-4" else True
    monkeypatch.setattr(conductor_module, "RemoteExchange", partial(RemoteExchange, ping_after=0.2))
    try:
        conduct(
            chosen,
            tmp_path / "run",
            sites,
            on_round=lambda report: dead.set() if report.round_index == 3 else None,
        )
    finally:
        dead.set()
    (missed,) = events(tmp_path / "run", "site_missed")
    assert "no sign of life" in missed["reason"]  # it was given up while the call was under way


def test_too_few_sites_are_waited_for_and_then_the_run_stops_with_its_checkpoint(tmp_path):
    chosen = small(federation__patience=0.5)

    def fault(call: Call) -> None:
        if call.round_index == 2 and call.site != "client-1":
            raise SiteSilentError("gone")

    sites = LocalSites(chosen, fault)
    sites.ping = lambda site: None
    with pytest.raises(SitesMissingError, match="needs 3 sites, 1 are there: client-1"):
        conduct(chosen, tmp_path / "run", sites)
    assert events(tmp_path / "run", "waiting")[-1]["needed"] == 3
    assert events(tmp_path / "run", "run_ended")[-1]["finished"] is False
    assert load_checkpoint(tmp_path / "run" / "checkpoint.safetensors").next_round == 3
    assert conduct(chosen, tmp_path / "run").finished


def test_no_reply_of_a_site_stops_a_run_by_itself(tmp_path):
    chosen = small()
    garbage = iter(
        [{REPLY: b"BLT1"}, {REPLY: "text"}, {}, {REFUSED: 7}, [1], {REFUSED: "no"}, {REPLY: b"", "more": 1}, None]
    )

    def tamper(call, answer):
        return next(garbage, answer) if call.site == "client-1" else answer

    result = conduct(chosen, tmp_path / "run", LocalSites(chosen, tamper=tamper))
    assert result.finished
    refused = events(tmp_path / "run", "message_refused")
    assert refused
    assert {event["site"] for event in refused} == {"client-1"}


def test_a_site_with_another_plan_or_version_is_left_out_and_named(tmp_path):
    chosen = small()
    sites = LocalSites(chosen)
    sites.desks["client-1"] = sites.desk("client-1", small(training__learning_rate=0.5))
    sites.desks["client-2"]._version = VERSION + "1"
    with pytest.raises(SitesMissingError):
        conduct(small(federation__patience=0.1), tmp_path / "run", sites)
    told = {event["site"]: event["reason"] for event in events(tmp_path / "run", "message_refused")}
    assert "another plan" in told["client-1"]
    assert "test1" in told["client-2"]


def test_a_site_that_is_not_in_the_plan_is_named_and_not_asked(tmp_path):
    chosen = small()
    sites = LocalSites(chosen)
    sites.desks["stranger"] = sites.desk("client-1")
    conduct(chosen, tmp_path / "run", sites)
    assert [event["site"] for event in events(tmp_path / "run", "message_refused")] == ["stranger"]


def test_a_directory_of_another_plan_is_refused(tmp_path):
    conduct(small(), tmp_path / "run")
    with pytest.raises(CheckpointError, match="another plan"):
        conduct(small(seed=5), tmp_path / "run")


def test_sample_counts_are_told_only_where_the_accounting_needs_them(tmp_path):
    conduct(small(training__rounds=1), tmp_path / "plain")
    assert not (tmp_path / "plain" / "members.json").exists()
    sound = small(**SOUND, training__rounds=1)
    conduct(sound, tmp_path / "sound")
    counts = json.loads((tmp_path / "sound" / "members.json").read_text())
    assert set(counts) == {f"client-{k}" for k in range(1, 5)}
    assert all(count > 0 for count in counts.values())


def test_a_run_that_needs_all_counts_does_not_begin_without_a_site(tmp_path):
    sound = small(**SOUND)
    with pytest.raises(SitesMissingError, match="client-4"):
        conduct(sound, tmp_path / "run", LocalSites(sound, here=("client-1", "client-2", "client-3")))


def test_a_stop_request_is_heard_after_the_round(tmp_path):
    chosen = small()
    directory = RunDirectory(tmp_path / "run")
    result = conduct(chosen, directory.path, on_round=lambda report: directory.request_stop())
    assert (result.rounds, result.finished) == (2, False)
    assert conduct(chosen, directory.path).finished
