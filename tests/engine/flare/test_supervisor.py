"""Terms of a run against a stand-in that behaves as FLARE was seen to behave, on a clock that costs no time."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.engine.flare import supervisor as supervisor_module
from bilateral.engine.flare.admin import JobState, JobStatus, ServerAwayError
from bilateral.engine.flare.coordinator import STATUS, STOP
from bilateral.engine.flare.supervisor import MAX_BARREN_TERMS, Outcome, Progress, Supervisor
from bilateral.errors import DeploymentError

SITES = ("a", "b", "c")
START_SECONDS = 12  # from a job's begin to its first answer


@dataclass
class Job:
    job_id: str
    token: str
    submitted_at: float
    text: str = "SUBMITTED"
    running_since: float = 0.0
    members: set = field(default_factory=set)
    stop: bool = False
    outcome: dict | None = None

    @property
    def live(self):
        return self.text in ("SUBMITTED", "RUNNING")


class Flare:
    """The server, its sites and the run directory. A round a second; `at` schedules what happens to them."""

    def __init__(self, rounds=20, min_sites=2, connected=SITES):
        self.now = 0.0
        self.rounds = rounds
        self.min_sites = min_sites
        self.done = 0
        self.connected = set(connected)
        self.never_in_a_job = set()
        self.silent = set()
        self.up = True
        self.jobs = []
        self.plan = []
        self.most_live = 0
        self.loses_answers = 0
        self.refuses = 0
        self.error = None
        self.calls = []

    def at(self, when, what):
        self.plan.append((when, what))
        self.plan.sort(key=lambda each: each[0])

    # the clock
    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.5, end)
            while self.plan and self.plan[0][0] <= self.now:
                self.plan.pop(0)[1]()
            self._live()

    def _live(self):
        live = [job for job in self.jobs if job.live]
        self.most_live = max(self.most_live, len(live))
        if not self.up or not live:
            return
        job = live[0]
        if job.text == "SUBMITTED":
            willing = self.connected - self.never_in_a_job
            if len(willing) >= self.min_sites and self.now - job.submitted_at > 2:
                job.text, job.running_since, job.members = "RUNNING", self.now, willing
            return
        job.members &= self.connected  # a site whose process died never rejoins a job
        if self.now - job.running_since < START_SECONDS:
            return
        if self.error is not None:
            job.text, job.outcome = "FINISHED:EXECUTION_EXCEPTION", dict(self.error)
        elif job.stop or self.done >= self.rounds:
            finished = self.done >= self.rounds
            job.text, job.outcome = "FINISHED:COMPLETED", {"finished": finished, "rounds": self.done}
        elif len(job.members) >= self.min_sites and self.now == int(self.now):
            self.done += 1

    # what happens
    def kill_server(self):
        self.up = False
        for job in self.jobs:
            if job.text == "RUNNING":
                job.text = "LOST"

    def start_server(self):
        self.up = True

    def kill(self, site):
        self.connected.discard(site)

    def start(self, site):
        self.connected.add(site)

    def crash_job(self):
        for job in self.jobs:
            if job.text == "RUNNING":
                job.text = "FINISHED:EXECUTION_EXCEPTION"

    # the administrator's side
    def _answer(self):
        if not self.up:
            raise ServerAwayError("no connection")

    def _job(self, job_id):
        return next(job for job in self.jobs if job.job_id == job_id)

    def submit(self, job, token=None):
        self._answer()
        if self.refuses:
            self.refuses -= 1
            raise DeploymentError("not ready yet")
        known = [job for job in self.jobs if job.token == token]
        if not known:
            self.jobs.append(Job(f"job-{len(self.jobs)}", token, self.now))
            known = [self.jobs[-1]]
        if self.loses_answers:
            self.loses_answers -= 1
            raise ServerAwayError("died while it took the job")
        return known[0].job_id

    def status(self, job_id):
        self._answer()
        text = self._job(job_id).text
        return JobStatus(JobState.FAILED, text) if text == "LOST" else JobStatus.of(text)

    def connected_sites(self):
        self._answer()
        return tuple(sorted(self.connected))

    def sites_running(self, job_id):
        self._answer()
        members = self._job(job_id).members
        return {site: site in members for site in self.connected - self.silent}

    def command(self, job_id, topic, data):
        self._answer()
        self.calls.append(topic)
        job = self._job(job_id)
        if job.text != "RUNNING" or self.now - job.running_since < START_SECONDS:
            raise DeploymentError("no answer")
        if topic == STOP:
            job.stop = True
            return {"stopping": True}
        assert topic == STATUS
        return {"round": self.done, "num_rounds": self.rounds, "metrics": {"test_accuracy": 0.5}}

    def abort(self, job_id):
        self._answer()
        if self._job(job_id).live:
            self._job(job_id).text = "FINISHED:ABORTED"

    def outcome(self, job_id):
        self._answer()
        values = self._job(job_id).outcome
        return None if values is None else Outcome(values)


@pytest.fixture
def supervise(monkeypatch):
    """Supervise a run on a `Flare`; what was noted is in `flare.notes`."""

    def start(flare, **options):
        monkeypatch.setattr(supervisor_module, "time", flare)
        flare.notes, flare.progress = [], []
        made = Supervisor(
            flare,
            Path("job"),
            SITES,
            flare.min_sites,
            flare.outcome,
            options.pop("patience", 60.0),
            on_note=flare.notes.append,
            on_progress=flare.progress.append,
            **options,
        )
        return made.supervise()

    return start


def test_an_undisturbed_run_is_one_job(supervise):
    flare = Flare()
    outcome = supervise(flare)
    assert outcome.finished
    assert outcome.rounds == flare.done == 20
    assert len(flare.jobs) == 1
    assert flare.notes == []
    assert flare.progress[-1] == Progress(20, 20, {"test_accuracy": 0.5})


def test_it_waits_for_sites_that_come_late_and_then_a_little_for_the_last(supervise):
    flare = Flare(connected=())
    for when, site in ((5, "a"), (20, "b"), (22, "c")):
        flare.at(when, lambda site=site: flare.start(site))
    assert supervise(flare).finished
    assert flare.jobs[0].submitted_at >= 22
    assert flare.jobs[0].members == set(SITES)
    assert len(flare.jobs) == 1


def test_it_begins_with_enough_sites(supervise):
    flare = Flare(connected=("a", "b"))
    assert supervise(flare).finished
    assert 5 <= flare.jobs[0].submitted_at <= 10


def test_the_first_term_waits_for_all_if_it_must_and_later_ones_do_not(supervise):
    flare = Flare(connected=("a", "b"), rounds=40)
    flare.at(30, lambda: flare.start("c"))
    flare.at(60, lambda: flare.kill("c"))
    flare.at(61, flare.crash_job)
    assert supervise(flare, all_at_first=True).finished
    assert flare.jobs[0].submitted_at >= 30
    assert flare.jobs[1].members == {"a", "b"}


def test_too_few_sites_end_the_wait_and_the_absent_are_named(supervise):
    flare = Flare(connected=("a",))
    with pytest.raises(DeploymentError, match=r"1 of 3 sites are connected, 2 are needed.*kits of b, c"):
        supervise(flare)
    assert 60 <= flare.now < 70
    assert flare.jobs == []


def test_a_site_that_died_and_came_back_gets_a_new_term(supervise):
    flare = Flare(rounds=60)
    flare.at(20, lambda: flare.kill("b"))
    flare.at(30, lambda: flare.start("b"))
    assert supervise(flare).finished
    assert [job.members for job in flare.jobs] == [{"a", "c"}, set(SITES)]
    assert flare.done == 60
    assert any("b came back" in note for note in flare.notes)


@pytest.mark.parametrize("when", range(30, 37))
def test_a_site_that_shows_up_only_briefly_costs_no_term(supervise, when):
    flare = Flare(rounds=60)
    flare.at(20, lambda: flare.kill("b"))
    flare.at(when, lambda: flare.start("b"))
    flare.at(when + 5.5, lambda: flare.kill("b"))  # seen at one look at the most
    assert supervise(flare).finished
    assert len(flare.jobs) == 1


def test_a_site_that_is_cut_off_for_a_while_and_keeps_its_process_costs_no_term(supervise):
    flare = Flare(rounds=60)
    flare.at(20, lambda: flare.silent.add("b"))  # the server takes it for connected, until its time is up
    flare.at(50, flare.silent.clear)
    assert supervise(flare).finished
    assert len(flare.jobs) == 1


def test_a_site_that_connects_but_never_comes_into_a_job_costs_one_term(supervise):
    flare = Flare(rounds=200)
    flare.never_in_a_job = {"c"}
    assert supervise(flare).finished
    assert len(flare.jobs) == 2


def test_a_site_that_was_given_up_is_taken_in_when_it_comes_back(supervise):
    flare = Flare(rounds=200)
    flare.never_in_a_job = {"c"}
    flare.at(80, lambda: flare.kill("c"))
    flare.at(90, flare.never_in_a_job.clear)
    flare.at(90, lambda: flare.start("c"))
    assert supervise(flare).finished
    assert [job.members for job in flare.jobs] == [{"a", "b"}, {"a", "b"}, set(SITES)]


def test_a_server_that_is_down_for_a_while_costs_a_term_and_no_round(supervise):
    flare = Flare(rounds=40)
    flare.at(25, flare.kill_server)
    flare.at(60, flare.start_server)
    assert supervise(flare).finished
    assert len(flare.jobs) == 2
    assert flare.jobs[0].text == "LOST"
    assert flare.done == 40
    assert flare.notes.count("no connection") == 1  # not a line a second


def test_a_server_that_stays_away_is_waited_for_as_long_as_patience_lasts(supervise):
    flare = Flare(rounds=40)
    flare.at(25, flare.kill_server)
    with pytest.raises(DeploymentError, match="no connection"):
        supervise(flare)
    assert 85 <= flare.now < 95


def test_a_job_that_the_server_took_before_it_died_is_not_submitted_twice(supervise):
    flare = Flare()
    flare.loses_answers = 3
    assert supervise(flare).finished
    assert len(flare.jobs) == 1


def test_a_server_that_is_not_ready_is_asked_again_for_a_moment(supervise):
    flare = Flare()
    flare.refuses = 5
    assert supervise(flare).finished
    stubborn = Flare()
    stubborn.refuses = 1000
    with pytest.raises(DeploymentError, match="not ready"):
        supervise(stubborn)
    assert stubborn.now < 15  # and not for all its patience


def test_terms_without_a_round_are_counted_and_end_the_run(supervise):
    flare = Flare()
    flare.error = {"error": "Round 1 needs 2 sites, 0 are there.", "kind": "SitesMissingError"}
    with pytest.raises(DeploymentError, match=r"3 terms in a row ended without a round.*0 are there"):
        supervise(flare)
    assert len(flare.jobs) == MAX_BARREN_TERMS


def test_terms_that_die_after_some_rounds_are_not_counted(supervise):
    flare = Flare(rounds=60)
    for when in range(20, 200, 20):
        flare.at(when, flare.crash_job)
    assert supervise(flare).finished
    assert len(flare.jobs) > MAX_BARREN_TERMS


@pytest.mark.parametrize("kind", ["PlanError", "DataError", "CheckpointError", "ModelError"])
def test_an_error_that_another_term_would_meet_again_ends_the_run(supervise, kind):
    flare = Flare()
    flare.error = {"error": "it cannot be", "kind": kind}
    outcome = supervise(flare)
    assert outcome.values["error"] == "it cannot be"
    assert len(flare.jobs) == 1


def test_asked_to_stop_it_lets_the_round_end_and_begins_no_new_term(supervise):
    flare = Flare(rounds=1000)
    outcome = supervise(flare, should_stop=lambda: flare.now > 30)
    assert not outcome.finished
    assert 0 < outcome.rounds == flare.done < 40
    assert len(flare.jobs) == 1
    assert flare.calls.count(STOP) == 1


def test_asked_to_stop_before_sites_are_there_it_submits_nothing(supervise):
    flare = Flare(connected=("a",))
    outcome = supervise(flare, should_stop=lambda: flare.now > 10)
    assert outcome.values["kind"] == "Stopped"
    assert flare.jobs == []
    assert flare.now < 15


def test_asked_to_stop_before_the_job_has_begun_it_takes_the_job_back(supervise):
    flare = Flare()
    flare.at(0.5, flare.connected.clear)
    outcome = supervise(flare, should_stop=lambda: flare.now > 20)
    assert not outcome.finished
    assert [job.text for job in flare.jobs] == ["FINISHED:ABORTED"]


def test_a_job_that_never_begins_is_taken_back_after_a_while(supervise):
    flare = Flare()
    flare.at(0.5, flare.connected.clear)
    with pytest.raises(DeploymentError, match="0 of 3 sites"):
        supervise(flare)
    assert [job.text for job in flare.jobs] == ["FINISHED:ABORTED"]


def test_a_run_that_is_under_way_is_followed_and_not_begun_again(supervise):
    flare = Flare()
    running = flare.submit(Path("job"), "of an earlier supervisor")
    assert supervise(flare, job_id=running).finished
    assert len(flare.jobs) == 1


def test_a_job_that_starts_is_not_asked_all_the_time(supervise):
    flare = Flare(rounds=1)
    supervise(flare)
    assert flare.calls.count(STATUS) <= START_SECONDS // 4 + 4


faults = st.lists(
    st.tuples(
        st.integers(1, 120),
        st.sampled_from(["server", "server while submitting", "site", "site", "job"]),
        st.sampled_from(SITES),
        st.integers(1, 25),
    ),
    max_size=6,
)


@given(faults=faults, rounds=st.integers(1, 60), late=st.sets(st.sampled_from(SITES)))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_whatever_dies_and_comes_back_the_run_ends_with_one_job_at_a_time(faults, rounds, late):
    flare = Flare(rounds=rounds, connected=set(SITES) - late)
    for site in late:
        flare.at(10, lambda site=site: flare.start(site))
    for when, what, site, away in faults:
        if what == "job":
            flare.at(when, flare.crash_job)
        elif what == "site":
            flare.at(when, lambda site=site: flare.kill(site))
            flare.at(when + away, lambda site=site: flare.start(site))
        else:
            flare.loses_answers += what != "server"
            flare.at(when, flare.kill_server)
            flare.at(when + away, flare.start_server)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(supervisor_module, "time", flare)
        outcome = Supervisor(flare, Path("job"), SITES, flare.min_sites, flare.outcome).supervise()
    assert outcome.finished
    assert flare.done == rounds
    assert flare.most_live <= 1
