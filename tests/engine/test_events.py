"""The log of a run: what is written is read, whole lines only."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bilateral.engine import events
from bilateral.engine.event_tail import EventTail, parse_line
from bilateral.engine.events import (
    Evaluated,
    Event,
    MessageRefused,
    RecoveryChecked,
    RoundDone,
    RoundFailed,
    RunEnded,
    RunStarted,
    SiteMissed,
    SiteReturned,
    SiteTold,
    StageDone,
    Waiting,
    read_events,
    write_event,
)

NOON = datetime(2025, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC)


class Stopped(datetime):
    """A clock that nobody sets back while a test runs."""

    @classmethod
    def now(cls, tz=None):
        return NOON.astimezone(tz)


ONE_OF_EACH = (
    RunStarted("flare-poc", 1, 4, 9, ("a", "b"), "0123"),
    RecoveryChecked(3e-15, "head.weight", "float64", 0.5),
    RoundDone(5, 0.25, ("a",), 1.5, 2.5),
    StageDone(2, 0.5, ("a", "b")),
    SiteTold("a", 2, {"accuracy": 0.5}),
    RoundFailed(6, "1 of 2 sites left"),
    Evaluated(5, {"test_accuracy": 0.5}, 1e-7),
    Evaluated(6, {"test_mse": 2.0}),
    SiteMissed("b", 6, "upload", "no answer in 30 s"),
    SiteReturned("b", 7),
    MessageRefused("a", 7, "two\nlines and a \x1b[31m colour"),
    Waiting(7, ("a",), 2),
    RunEnded(9, True, ""),
)


def test_one_of_each_is_every_kind_of_event():
    assert {type(event) for event in ONE_OF_EACH} == set(Event.__subclasses__())


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.event)
def test_what_is_written_is_read(tmp_path, monkeypatch, event):
    monkeypatch.setattr(events, "datetime", Stopped)
    write_event(tmp_path / "events.jsonl", event)
    (line,) = read_events(tmp_path / "events.jsonl")
    assert line == json.loads(json.dumps({"time": line["time"], "event": event.event, **asdict(event)}))
    (told,) = EventTail(tmp_path / "events.jsonl").read_new().told
    assert told.event == event
    assert told.time == NOON


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.event)
def test_a_line_without_one_of_its_fields_is_no_event(tmp_path, event):
    write_event(tmp_path / "events.jsonl", event)
    (line,) = read_events(tmp_path / "events.jsonl")
    optional = {"difference_to_fedavg", "gradient_digest", "megabytes"}
    for name in {"time", "event", *(field.name for field in fields(event))} - optional:
        raw = json.dumps({key: value for key, value in line.items() if key != name}).encode()
        assert list(parse_line(raw)) == [None], name


def test_a_line_cut_short_by_a_kill_costs_no_other_line(tmp_path):
    path = tmp_path / "events.jsonl"
    write_event(path, SiteReturned("a", 1))
    with path.open("ab") as file:
        file.write(b'{"time": "2025-01-01T00:00:00+00:00", "ev')
    write_event(path, SiteReturned("b", 2))
    assert [line["site"] for line in read_events(path)] == ["a", "b"]


def test_there_is_nothing_to_read_where_there_is_no_file(tmp_path):
    assert list(read_events(tmp_path / "events.jsonl")) == []
    assert EventTail(tmp_path / "events.jsonl").read_new().told == ()


def test_a_number_that_is_no_json_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_event(tmp_path / "events.jsonl", Evaluated(1, {"test_loss": float("nan")}))
    assert not (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize(
    "raw",
    [
        b'{"time": "2025-01-01T00:00:00+00:00", "event": "evaluated", "round": 1, "metrics": {"a": NaN}}',
        b'{"time": "2025-01-01T00:00:00+00:00", "event": "evaluated", "round": 1, "metrics": {"a": 1e999}}',
        b'{"time": "2025-01-01T00:00:00+00:00", "event": "evaluated", "round": -1, "metrics": {}}',
        b'{"time": "2025-01-01T00:00:00+00:00", "event": "site_returned", "round": 1e400, "site": "a"}',
        b'{"time": "noon", "event": "site_returned", "round": 1, "site": "a"}',
        b'{"time": "2025-01-01T00:00:00+00:00", "event": "of a later version", "round": 1}',
        b'{"time": "2025-01-01T00:00:00+00:00", "event": ["site_returned"]}',
        b'["time", "event"]',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_line_that_makes_no_sense_is_counted_and_skipped(raw):
    assert list(parse_line(raw)) == [None]


@given(st.binary(max_size=80))
def test_no_bytes_are_an_error(raw):
    assert all(told is None for told in parse_line(raw))


def test_lines_of_several_writers_are_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: write_event(path, SiteMissed(f"site-{n}", n, "upload", "x" * n)), range(200)))
    assert sorted(line["round"] for line in read_events(path)) == list(range(200))


@pytest.mark.parametrize("num_lost", range(1, 60, 7))
def test_a_line_cut_short_costs_one_event_and_not_the_next(tmp_path, num_lost):
    """The writer of the next term goes on right behind the torn piece."""
    path = tmp_path / "events.jsonl"
    write_event(path, SiteReturned("a", 1))
    write_event(path, SiteMissed("b", 2, "upload", 'said {"time": "x"} and more'))
    path.write_bytes(path.read_bytes()[:-num_lost])
    write_event(path, RunStarted("flare-poc", 1, 2, 9, ("a", "b"), "0123"))
    batch = EventTail(path).read_new()
    whole = num_lost == 1  # only the newline
    expected = ["site_returned", "site_missed", "run_started"] if whole else ["site_returned", "run_started"]
    assert [told.event.event for told in batch.told] == expected
    assert batch.num_unreadable == (0 if whole else 1)


def test_every_line_is_read_once(tmp_path):
    path, tail = tmp_path / "events.jsonl", EventTail(tmp_path / "events.jsonl")
    for number in range(1, 6):
        write_event(path, SiteReturned("a", number))
        assert [told.event for told in tail.read_new().told] == [SiteReturned("a", number)]
    assert tail.read_new().told == ()
