"""How a run stands, from its files."""

import json
import shutil
import statistics
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.engine.events import (
    Evaluated,
    MessageRefused,
    RoundDone,
    RoundFailed,
    RunEnded,
    RunStarted,
    SiteMissed,
    SiteReturned,
    Waiting,
)
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.run_status import RunReader, read_run
from bilateral.engine.run_story import RunState, SiteState
from bilateral.errors import CheckpointError

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
STARTED = RunStarted("flare-poc", 0, 0, 20, ("a", "b", "c"), "0123")

names = st.sampled_from(["a", "b", "c", "d"])
groups = st.lists(names, unique=True).map(tuple)
rounds = st.integers(0, 8)
floats = st.floats(0, 1e3)
events = st.one_of(
    st.builds(RunStarted, st.just("flare-sim"), st.integers(0, 3), rounds, st.just(9), groups, st.just("0123")),
    st.builds(RoundDone, rounds, floats, groups, floats, floats),
    st.builds(RoundFailed, rounds, st.text(max_size=5)),
    st.builds(Evaluated, rounds, st.fixed_dictionaries({"test_accuracy": floats}), st.none() | floats),
    st.builds(SiteMissed, names, rounds, st.just("upload"), st.text(max_size=5)),
    st.builds(SiteReturned, names, rounds),
    st.builds(MessageRefused, names, rounds, st.text(max_size=5)),
    st.builds(Waiting, rounds, groups, st.integers(1, 4)),
    st.builds(RunEnded, rounds, st.booleans(), st.text(max_size=5)),
)


def line_of(event, seconds: float = 0.0) -> bytes:
    """As `write_event` writes it, at a time of our choice."""
    time = (BEGIN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
    return (json.dumps({"time": time, "event": event.event, **asdict(event)}) + "\n").encode()


def log_of(told) -> bytes:
    return b"".join(line_of(event, seconds) for seconds, event in enumerate(told))


@pytest.fixture
def directory(tmp_path) -> Path:
    return RunDirectory.create(tmp_path / "out", RunPlan()).path


@pytest.fixture
def status_of(directory):
    """The status after these events, one second apart, `later` seconds after the last."""

    def read(*told, later: float = 1.0):
        (directory / "events.jsonl").write_bytes(log_of(told))
        return read_run(directory, BEGIN + timedelta(seconds=len(told) - 1 + later))

    return read


def sites_of(status) -> dict:
    return {site.name: site for site in status.sites}


# Reading while it grows


@settings(deadline=None)
@given(
    st.lists(events, max_size=12),
    st.lists(st.integers(0, 3000), max_size=6),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 40)), max_size=2),
)
def test_incremental_reading_equals_reading_anew_for_any_split(told, cuts, holes):
    log = log_of(told)
    for at, length in holes:  # torn lines
        log = log[:at] + log[at + length :]
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "out", RunPlan()).path
        reader, now = RunReader(directory), BEGIN + timedelta(seconds=100)
        for cut in sorted({min(cut, len(log)) for cut in cuts} | {len(log)}):
            with (directory / "events.jsonl").open("ab") as file:
                file.write(log[file.tell() : cut])
            assert reader.read(now) == read_run(directory, now)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "rewrite", "replace", "delete"]), st.lists(events, max_size=4)),
        max_size=6,
    )
)
def test_a_replaced_log_is_read_from_its_beginning(steps):
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "out", RunPlan()).path
        log, clock = directory / "events.jsonl", 0
        reader, now = RunReader(directory), BEGIN + timedelta(seconds=100)
        for how, told in steps:
            lines = b"".join(line_of(event, clock + number) for number, event in enumerate(told))
            clock += len(told)  # no two lines are the same
            if how == "append":
                with log.open("ab") as file:
                    file.write(lines)
            elif how == "rewrite":
                log.write_bytes(lines)
            elif how == "replace":
                (directory / "new").write_bytes(lines)
                (directory / "new").replace(log)
            else:
                log.unlink(missing_ok=True)
            assert reader.read(now) == read_run(directory, now)


def test_a_log_replaced_by_one_that_ends_alike_is_read_from_its_beginning(directory):
    same = log_of([done(number) for number in range(1, 9)])
    reader = RunReader(directory)
    (directory / "events.jsonl").write_bytes(line_of(STARTED) + same)
    assert [site.name for site in reader.read(BEGIN).sites] == ["a", "b", "c"]
    (directory / "new").write_bytes(line_of(RunStarted("flare-poc", 0, 0, 20, ("x", "y", "z"), "0123")) + same)
    (directory / "new").replace(directory / "events.jsonl")
    assert [site.name for site in reader.read(BEGIN).sites][:3] == ["x", "y", "z"]


def test_a_line_is_not_heard_before_it_is_whole(directory):
    line, reader = line_of(STARTED), RunReader(directory)
    (directory / "events.jsonl").write_bytes(line[:-1])
    assert reader.read(BEGIN).sites == ()
    (directory / "events.jsonl").write_bytes(line)
    assert len(reader.read(BEGIN).sites) == 3


# What is in the model


def rounds_in_the_model(told) -> list[RoundDone | RoundFailed]:
    """The obvious way: of every round the last word, and none after the checkpoint of a restart."""
    kept = []
    for event in told:
        if isinstance(event, RunStarted):
            kept = [other for other in kept if other.round <= event.round]
        if isinstance(event, RoundDone | RoundFailed):
            kept = [other for other in kept if other.round != event.round] + [event]
    return kept


@settings(deadline=None)
@given(st.lists(events, max_size=25))
def test_rounds_are_counted_as_they_are_in_the_model(told):
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "out", RunPlan()).path
        (directory / "events.jsonl").write_bytes(log_of(told))
        status = read_run(directory, BEGIN)
    kept = rounds_in_the_model(told)
    assert status.num_failed == sum(isinstance(event, RoundFailed) for event in kept)
    for site in status.sites:
        done = [event for event in kept if isinstance(event, RoundDone)]
        assert site.num_rounds == sum(site.name in event.contributors for event in done)
        assert site.num_misses == sum(isinstance(e, SiteMissed) and e.site == site.name for e in told)
        assert site.num_refused == sum(isinstance(e, MessageRefused) and e.site == site.name for e in told)
    assert [number for number, _ in status.history] == sorted({number for number, _ in status.history})
    json.dumps(status.as_dict(), allow_nan=False)


def test_metrics_of_rounds_that_are_done_again_are_void(status_of):
    first = [STARTED, RoundDone(1, 1, ("a",), 0, 0), Evaluated(1, {"test_mse": 3.0}, 1e-7)]
    lost = [RoundDone(2, 1, ("a",), 0, 0), Evaluated(2, {"test_mse": 2.0}, 2e-7)]
    assert status_of(*first, *lost).metrics == {"test_mse": 2.0}
    status = status_of(*first, *lost, RunStarted("flare-poc", 1, 1, 20, ("a", "b", "c"), "0123"))
    assert (status.metrics, status.difference_to_fedavg, status.round, status.term) == ({"test_mse": 3.0}, 1e-7, 1, 1)


def test_the_pace_is_the_median_of_the_last_twenty_rounds(status_of):
    seconds = [100.0] * 5 + [float(n % 7) for n in range(20)]
    told = [RoundDone(n + 1, pace, ("a",), 0, 0) for n, pace in enumerate(seconds)]
    status = status_of(RunStarted("flare-poc", 0, 0, 125, ("a",), "0123"), *told)
    assert status.seconds_per_round == statistics.median(seconds[5:])
    assert status.seconds_left == 100 * status.seconds_per_round


# States of the run


def done(number: int, seconds: float = 1.0, who: tuple[str, ...] = ("a", "b", "c")) -> RoundDone:
    return RoundDone(number, seconds, who, 0.0, 0.0)


def test_a_run_goes_through_its_states(status_of):
    told = [STARTED]
    assert status_of(*told).state is RunState.STARTING
    told += [done(1)]
    assert status_of(*told).state is RunState.RUNNING
    told += [Waiting(2, ("a",), 2)]
    waiting = status_of(*told)
    assert waiting.state is RunState.WAITING
    assert "2 sites needed, present: a" in waiting.reason
    told += [SiteReturned("b", 2), done(2)]
    assert status_of(*told).state is RunState.RUNNING
    told += [RunEnded(2, False, "asked to stop")]
    stopped = status_of(*told, later=1e6)
    assert (stopped.state, stopped.reason, stopped.seconds_left) == (RunState.STOPPED, "asked to stop", None)
    told += [RunStarted("flare-poc", 1, 2, 3, ("a", "b", "c"), "0123")]
    assert status_of(*told).state is RunState.STARTING
    told += [RoundFailed(3, "1 left, 2 needed")]
    assert status_of(*told).state is RunState.RUNNING
    told += [RunEnded(3, True, "")]
    assert status_of(*told, later=1e6).state is RunState.FINISHED


@pytest.mark.parametrize(
    ("engine", "told", "limit"),
    [
        ("in-process", (done(1, 0.1),), 60),  # a short pause means nothing, however quick the rounds
        ("in-process", (done(1, 30), done(2, 1)), 300),  # ten times the slowest of late
        ("in-process", (), 300),  # starting takes its time
        ("flare-poc", (done(1, 0.1),), 240),  # a site has 120 seconds for an answer
        ("flare-poc", (done(1, 0.1), Waiting(2, (), 2)), 840),  # and a round waits 600 seconds for sites
    ],
)
def test_a_run_is_silent_after_much_longer_than_a_round(status_of, engine, told, limit):
    started = RunStarted(engine, 0, 0, 20, ("a",), "0123")
    assert status_of(started, *told, later=limit - 1).state is not RunState.SILENT
    gone = status_of(started, *told, later=limit + 1)
    assert gone.state is RunState.SILENT
    assert gone.seconds_left is None
    assert gone.seconds_since_event == limit + 1


def test_a_clock_that_is_behind_is_no_silence(status_of):
    assert status_of(STARTED, later=-1e4).seconds_since_event == 0


def test_a_run_that_has_told_nothing_is_starting_and_then_silent(directory):
    made = datetime.fromtimestamp((directory / "plan.toml").stat().st_mtime, UTC)
    assert read_run(directory, made + timedelta(seconds=1)).state is RunState.STARTING
    assert read_run(directory, made + timedelta(hours=1)).state is RunState.SILENT
    assert read_run(directory).num_rounds == RunPlan().training.rounds


def test_a_run_without_a_log_is_known_by_its_result(directory):
    result = {"rounds": 60, "finished": True, "metrics": {"test_accuracy": 0.9}, "final_difference_to_fedavg": 1e-7}
    (directory / "result.json").write_text(json.dumps(result))
    status = read_run(directory)
    assert (status.state, status.round, status.metrics) == (RunState.FINISHED, 60, {"test_accuracy": 0.9})
    (directory / "result.json").write_text(json.dumps({**result, "finished": False}))
    assert read_run(directory).state is RunState.STOPPED


# Sites


def test_a_site_goes_through_its_states(status_of):
    told = [STARTED]
    assert sites_of(status_of(*told))["b"].state is SiteState.EXPECTED
    told += [done(1)]
    assert sites_of(status_of(*told))["b"].state is SiteState.IN_LAST_ROUND
    told += [done(2, who=("a", "c"))]  # not invited
    assert sites_of(status_of(*told))["b"].state is SiteState.NOT_IN_LAST_ROUND
    told += [SiteMissed("b", 3, "upload", "no answer in 30 s"), done(3, who=("a", "c"))]
    missed = sites_of(status_of(*told))["b"]
    assert (missed.state, missed.num_misses, missed.num_rounds) == (SiteState.MISSED, 1, 1)
    assert (missed.trouble.round, missed.trouble.stage) == (3, "upload")
    assert missed.trouble.reason == "no answer in 30 s"
    told += [SiteReturned("b", 4)]
    assert sites_of(status_of(*told))["b"].state is SiteState.RETURNED
    told += [done(4), MessageRefused("b", 5, "no message"), done(5, who=("a", "c"))]
    refused = sites_of(status_of(*told))["b"]
    assert (refused.state, refused.num_refused, refused.trouble.stage) == (SiteState.REFUSED, 1, "")


def test_a_site_lost_after_its_upload_is_in_the_sum_and_missed(status_of):
    told = [STARTED, SiteMissed("b", 1, "unmask", "connection lost"), done(1)]
    site = sites_of(status_of(*told))["b"]
    assert (site.state, site.num_rounds) == (SiteState.MISSED, 1)
    assert sites_of(status_of(*told, done(2)))["b"].state is SiteState.IN_LAST_ROUND


def test_a_new_term_says_who_is_back_and_who_is_absent(status_of):
    told = [STARTED, SiteMissed("b", 1, "upload", "dead"), SiteMissed("c", 1, "upload", "dead"), RoundFailed(1, "1")]
    told += [RunStarted("flare-poc", 1, 1, 20, ("a", "b"), "0123")]
    found = {name: site.state for name, site in sites_of(status_of(*told)).items()}
    assert found == {"a": SiteState.EXPECTED, "b": SiteState.RETURNED, "c": SiteState.ABSENT}


def test_notable_events_are_kept_in_order_and_rounds_are_not_among_them(status_of):
    told = [STARTED, *(done(n) for n in range(1, 9)), SiteMissed("b", 9, "upload", "dead"), RunEnded(9, True, "")]
    status = status_of(*told)
    assert [said.event for said in status.recent] == [told[0], told[-2], told[-1]]
    assert status.num_notable == 3


# Other files


def test_privacy_is_shown_if_it_is_there(directory):
    assert read_run(directory).spending == ()
    row = {"observer": "everybody", "epsilon_per_round": 0.1, "epsilon": 7.9, "delta": 1e-5, "assumption": "none"}
    report = {"status": "sound", "unit": "sample", "deviations": {}, "rows": [row]}
    RunDirectory(directory).write_privacy({}, report)
    (found,) = read_run(directory).spending
    assert (found.epsilon, found.delta, found.observer, found.status) == (7.9, 1e-5, "everybody", "sound")
    RunDirectory(directory).write_privacy({}, None)
    assert read_run(directory).spending == ()


@pytest.mark.parametrize("text", ["", "[]", '{"privacy": 3}', '{"privacy": {"rows": [{}]}}', '{"privacy": NaN}'])
def test_a_privacy_file_that_makes_no_sense_is_passed_over(directory, text):
    (directory / "privacy.json").write_text(text)
    assert read_run(directory).spending == ()


def test_a_directory_that_is_no_run_is_refused_with_a_remedy(tmp_path, directory):
    with pytest.raises(CheckpointError, match=r"no plan\.toml.*Name a run's"):
        read_run(tmp_path)
    with pytest.raises(CheckpointError, match="not a run directory"):
        read_run(tmp_path / "nowhere")
    reader = RunReader(directory)
    shutil.rmtree(directory)
    with pytest.raises(CheckpointError, match="moved or deleted"):
        reader.read()
