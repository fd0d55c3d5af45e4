"""Three sites as processes on a real FLARE deployment: one is stopped for a while, one killed, and the server killed.

The command is the user's (`bilateral run --engine flare-poc`); the test sends signals (SIGSTOP, SIGCONT, SIGKILL) in
the middle of rounds, and reads the run's log. The plan has more rounds than any machine does: the run goes on until the
log has everything that the test waits for, and then the test ends it as its user would, with Ctrl-C. So no verdict
depends on how fast rounds are; `HANG` only keeps a run in which nothing moves any more from holding up the others.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass

import psutil
import pytest
from tests.runs.rounds.harness import undisturbed, weights_in
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.event_tail import EventTail
from bilateral.engine.events import RoundDone, RoundFailed, RunStarted, SiteMissed, SiteReturned
from bilateral.engine.plan import dump_plan
from bilateral.learning.training import relative_difference
from bilateral.protections.spoken_messages import stages

SITES = ("client-1", "client-2", "client-3")
UNBOUNDED = 10**6
HANG = 900.0
MARK = "BILATERAL_PARTY"
STOPPED_BY_THE_USER = 130


def processes_of(party, marks):
    """All living processes of a party of these deployments, orphans included."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK, "")
            if mark.endswith(f":{party}") and mark.split(":")[0] in marks and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def run_marks(pid):
    """The marks of the deployment that a command started."""
    marks = set()
    for child in psutil.Process(pid).children(recursive=True):
        try:
            marks.add(child.environ().get(MARK, ":").split(":")[0])
        except psutil.Error:
            continue
    return marks - {""}


class Run:
    """The command, the processes that it started, and its log as it grows."""

    def __init__(self, path, command):
        self.command = command
        self._tail = EventTail(path / "events.jsonl")
        self._log = []
        self._marks = set()
        self._give_up = time.monotonic() + HANG

    @property
    def log(self):
        """Every event so far, oldest first."""
        batch = self._tail.read_new()
        assert not batch.restarted
        self._log += [told.event for told in batch.told]
        return self._log

    @property
    def marks(self):
        self._marks = self._marks or run_marks(self.command.pid)
        return self._marks

    def until(self, what, condition):
        """What `condition` finds in the log, as soon as it does."""
        while not (found := condition(self.log)):
            assert self.command.poll() is None, f"the command ended while the test waited until {what}"
            assert time.monotonic() < self._give_up, f"nothing moves; the test waits until {what}"
            time.sleep(0.01)
        return found

    def signal(self, processes, number):
        assert processes, "there is nobody to send a signal to"
        for process in processes:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def kill_the_server(self):
        """What it had written when it died: it is stopped before, so that nothing comes in between."""
        frozen = processes_of("server", self.marks)
        self.signal(frozen, signal.SIGSTOP)
        self.until("the server stands still", lambda _: all(is_still(process) for process in frozen))
        written = len(self.log)
        self.signal(frozen, signal.SIGKILL)
        return written


def is_still(process):
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def first(kind, log, start=0, **values):
    """The index after the first event of a kind with these values, from `start` on; None if there is none (yet)."""
    for index, event in enumerate(log[start:], start):
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in values.items()):
            return index + 1
    return None


def round_of(names, log, start):
    """The index after the first round from `start` on to which just these sites contributed."""
    return first(RoundDone, log, start, contributors=tuple(names))


def stop_for_a_while(run, site):
    """Cut off, missed, connected again, and back."""
    start, processes = len(run.log), processes_of(site, run.marks)
    run.signal(processes, signal.SIGSTOP)
    missed = run.until("the stopped site is missed", lambda log: first(SiteMissed, log, start, site=site))
    run.signal(processes, signal.SIGCONT)
    back = run.until("it returns", lambda log: first(SiteReturned, log, missed, site=site))
    return missed, run.until("it is in a round again", lambda log: round_of(SITES, log, back))


def kill(run, site):
    """Dead, missed, and out of a round; started again by the command, and back in a later term.

    It dies when a round has just begun. Should it have sent its upload all the same, then that round has it, and there
    may be none without it before the new term: then it is killed again.
    """
    others = [name for name in SITES if name != site]
    while True:
        victims, start = processes_of(site, run.marks), len(run.log)
        run.until("a round begins", lambda log, at=start: first(RoundDone, log, at))
        run.signal(victims, signal.SIGKILL)
        missed = run.until("the killed site is missed", lambda log, at=start: first(SiteMissed, log, at, site=site))
        term = run.until("a new term begins", lambda log, at=missed: first(RunStarted, log, at))
        back = run.until("the site is in a round again", lambda log, at=term: round_of(SITES, log, at))
        if round_of(others, run.log[:term], start):
            return missed, back


@dataclass(frozen=True)
class Disturbed:
    """A run in which client-3 was stopped, client-2 killed and then the server, with places in its log."""

    plan: object
    path: object
    log: list
    result: dict
    exit_code: int
    marks: set
    stopped: tuple[int, int]
    """Where client-3 was missed and where it was in a round again."""
    killed: tuple[int, int]
    server_killed: int

    def contributors(self):
        """By round; the last word about a round counts."""
        found = {}
        for event in self.log:
            if isinstance(event, RoundDone):
                found[event.round] = event.contributors
            elif isinstance(event, RoundFailed):
                found.pop(event.round, None)
        return found


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    chosen = plan(
        federation__clients=3,
        training__rounds=UNBOUNDED,
        training__evaluate_every=100,
        training__learning_rate=0.01,
        training__dtype="float64",  # rounding does not add up to anything, however many rounds there are
        aggregation__threshold=0.6,
        perturbation__softmax="blinded",
        federation__timeout=10.0,  # FLARE ends no job before its last call is over, be it to a dead site
        federation__patience=300.0,
    )
    (folder / "plan.toml").write_text(dump_plan(chosen))
    out, words = folder / "run", ["--engine", "flare-poc", "--no-reference", "--json", "--output"]
    with (folder / "stderr.txt").open("w") as errors:
        command = subprocess.Popen(
            [sys.executable, "-m", "bilateral", "run", str(folder / "plan.toml"), *words, str(out)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    run = Run(out, command)
    try:
        run.until("all sites are in a round", lambda log: round_of(SITES, log, 0))
        stopped = stop_for_a_while(run, "client-3")
        killed = kill(run, "client-2")
        server_killed = run.kill_the_server()
        run.until("all sites are in a round of a new server", lambda log: round_of(SITES, log, server_killed))
        command.send_signal(signal.SIGINT)
        output, _ = command.communicate(timeout=HANG)
    except BaseException:
        print((folder / "stderr.txt").read_text())  # noqa: T201 (shown with the failure)
        raise
    finally:
        if command.poll() is None:
            command.terminate()
            command.communicate()
    assert output, (folder / "stderr.txt").read_text()
    result = json.loads(output)
    return Disturbed(chosen, out, run.log, result, command.returncode, run.marks, stopped, killed, server_killed)


def test_a_run_that_its_user_ends_tells_how_far_it_came_and_can_be_resumed(disturbed):
    assert disturbed.exit_code == STOPPED_BY_THE_USER
    assert disturbed.result["finished"] is False
    assert disturbed.result["rounds"] == max(disturbed.contributors())


def test_training_ends_with_the_model_of_an_undisturbed_run_over_the_surviving_updates(disturbed):
    ours = weights_in(disturbed.path / "checkpoint.safetensors", disturbed.plan)
    assert relative_difference(ours, undisturbed(disturbed.plan, disturbed.contributors())) < 1e-6


def test_no_round_is_lost(disturbed):
    failed = {failed["round_index"] + 1 for failed in disturbed.result["rounds_failed"]}
    assert set(disturbed.contributors()) | failed == set(range(1, disturbed.result["rounds"] + 1))


def test_a_round_is_told_of_twice_only_if_the_server_died_before_it_was_durable(disturbed):
    told = Counter(event.round for event in disturbed.log if isinstance(event, RoundDone))
    last_of_the_dead = max(e.round for e in disturbed.log[: disturbed.server_killed] if isinstance(e, RoundDone))
    assert {number for number, count in told.items() if count > 1} <= {last_of_the_dead}


def test_the_operator_is_told_which_site_was_missed_and_at_which_stage(disturbed):
    for (missed, _), site in ((disturbed.stopped, "client-3"), (disturbed.killed, "client-2")):
        event = disturbed.log[missed - 1]
        assert event.site == site
        assert event.stage in stages().values()
        assert event.reason


def test_a_site_that_was_cut_off_is_back_in_the_same_term(disturbed):
    missed, back = disturbed.stopped
    assert not any(isinstance(event, RunStarted) for event in disturbed.log[missed:back])


def test_a_site_that_was_killed_is_back_in_a_later_term(disturbed):
    missed, back = disturbed.killed
    assert any(isinstance(event, RunStarted) for event in disturbed.log[missed:back])


def test_every_term_goes_on_after_the_last_round_that_was_durable(disturbed):
    starts = [(index, event) for index, event in enumerate(disturbed.log) if isinstance(event, RunStarted)]
    assert [event.term for _, event in starts] == list(range(len(starts)))
    assert len(starts) >= 3  # the first, one with the site back, one after the server was killed
    assert starts[-1][0] >= disturbed.server_killed
    for index, event in starts[1:]:
        done = max(e.round for e in disturbed.log[:index] if isinstance(e, RoundDone | RoundFailed))
        assert done - 1 <= event.round <= done  # a round is told of before it is in the checkpoint


def test_no_process_is_left(disturbed):
    assert [p for party in ("server", *SITES) for p in processes_of(party, disturbed.marks)] == []
