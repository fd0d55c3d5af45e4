"""The round loop's record: events in order, a directory that one process holds at a time."""

import json

import pytest
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.events import read_events
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import CheckpointError
from bilateral.runs.rounds.in_process import run


def test_events_tell_of_every_round_with_its_contributors(tmp_path):
    chosen = plan()
    run(chosen, output=tmp_path / "run")
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert events[0]["event"] == "run_started"
    assert events[-1]["event"] == "run_ended"
    assert events[-1]["finished"] is True
    rounds = [event for event in events if event["event"] == "round_done"]
    assert [event["round"] for event in rounds] == list(range(1, chosen.training.rounds + 1))
    assert all(len(event["contributors"]) == chosen.federation.clients for event in rounds)
    assert all(event["megabytes_up"] > 0 for event in rounds)


def test_a_resumed_run_counts_a_new_term_and_goes_on_with_the_next_round(tmp_path):
    stops = iter([False, True])
    run(plan(training__rounds=4), output=tmp_path / "run", should_stop=lambda: next(stops))
    run(plan(training__rounds=4), output=tmp_path / "run", resume=True)
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    starts = [(event["term"], event["round"]) for event in events if event["event"] == "run_started"]
    assert starts == [(0, 0), (1, 2)]
    assert [event["round"] for event in events if event["event"] == "round_done"] == [1, 2, 3, 4]
    assert [event["finished"] for event in events if event["event"] == "run_ended"] == [False, True]


def test_failed_rounds_are_told_of(tmp_path):
    run(plan(training__rounds=6, federation__dropout=0.5), output=tmp_path / "run")
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    told = {event["round"] for event in events if event["event"] in ("round_done", "round_failed")}
    assert told == set(range(1, 7))
    assert any(event["event"] == "round_failed" for event in events)


def test_a_directory_is_held_by_one_run_at_a_time(tmp_path):
    stops = iter([True])
    run(plan(training__rounds=4), output=tmp_path / "run", should_stop=lambda: next(stops))
    with RunDirectory(tmp_path / "run").locked(), pytest.raises(CheckpointError, match="in use"):
        run(plan(training__rounds=4), output=tmp_path / "run", resume=True)


def test_privacy_json_says_what_is_guaranteed(tmp_path):
    result = run(plan(), output=tmp_path / "run")
    written = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert written == {"guarantee": json.loads(json.dumps(result.guarantee.as_dict())), "privacy": None}
