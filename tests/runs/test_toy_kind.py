"""A kind of run from outside the package: one object and one call of the registry, and everything works on it.

An audit too: an experiment says which plans it is for, and a kind says by itself what its plans claim.
"""

import json
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest
from tests.cli.conftest import bilateral  # noqa: F401 (a fixture)

from bilateral.audit.audit_directory import AuditDirectory
from bilateral.audit.auditor import audit, stored_plan
from bilateral.audit.evidence import Gate, with_controls
from bilateral.audit.experiment import Experiment
from bilateral.audit.scores import Metric
from bilateral.audit.topics import registry as experiments
from bilateral.audit.verdict import OWN
from bilateral.engine import kind as kinds
from bilateral.engine.checkpoint import Checkpoint
from bilateral.engine.events import Evaluated
from bilateral.engine.here import run_here
from bilateral.engine.kind import Outline, Vocabulary, kind_named, kind_names, register, unregister
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.run_status import read_run
from bilateral.errors import CheckpointError, PlanError
from bilateral.protocols.guarantee import Claim, Guarantee
from bilateral.runs.hetero.plan import HeteroPlan


@dataclass(frozen=True)
class CountingPlan:
    """Count to `target`."""

    target: int = 4

    def digest(self):
        return f"counting to {self.target}"

    def model_dump_json(self):
        return json.dumps({"target": self.target})


@dataclass(frozen=True)
class CountingProgress:
    num_done: int
    num_steps: int
    metrics: dict = field(default_factory=dict)


@dataclass(frozen=True)
class CountingResult:
    count: int
    finished: bool
    output: object

    def as_dict(self):
        return {"count": self.count, "finished": self.finished, "output": str(self.output)}


class Counting:
    """The server's side: a step adds one."""

    members = ("one", "two")

    def __init__(self, plan, around):
        self.plan, self.around = plan, around
        self.term = self.count = 0

    def load(self, state):
        self.count, self.term = state.next_round, int(state.counters["term"]) + 1

    def enrol(self): ...

    def begin(self): ...

    def steps(self):
        while self.count < self.plan.target:
            yield self.count

    def do(self, step):
        self.count = step + 1
        self.around.tell(Evaluated(self.count, {"count": float(self.count)}))

    def progress(self):
        return CountingProgress(self.count, self.plan.target)

    def state(self):
        return Checkpoint(self.plan.digest(), self.count, {}, [], {"term": self.term})

    def result(self, output):
        return CountingResult(self.count, self.count == self.plan.target, output)

    def close(self): ...


class CountingKind:
    name, plan, command = "counting", CountingPlan, "run"
    vocabulary = Vocabulary((), ())
    deployable = useful_when_stopped = False

    def parse(self, values, source):
        return CountingPlan(**values)

    def dump(self, plan):
        return f'kind = "{self.name}"\ntarget = {plan.target}\n'

    def outline(self, plan):
        return Outline("numbers", "abacus", plan.target, "count", "counting")

    def members(self, plan, data_dir=None):
        return Counting.members

    def guarantee(self, plan, data_dir=None):
        claim = Claim("single uploads", "how far it is counted", "server", "it is not told")
        return Guarantee("counting", (claim,), ())

    def checkpoint_every(self, plan):
        return 1

    def server(self, plan, around):
        return Counting(plan, around)

    def site(self, name, plan, around):
        raise PlanError("Everybody counts here.")


@dataclass(frozen=True)
class TabledPlan(CountingPlan):
    """Of a kind in the table, where this module stands for its folder."""


class TabledKind(CountingKind):
    name, plan = "tabled", TabledPlan

    def parse(self, values, source):
        return TabledPlan(**values)


KIND = TabledKind()


@pytest.fixture(autouse=True)
def counting():
    kind = CountingKind()
    register(kind)
    yield kind
    unregister(kind.name)


def test_a_run_of_a_registered_kind_writes_the_directory_that_every_run_has(tmp_path, counting):
    result = run_here(counting, CountingPlan(), output=tmp_path / "out")
    assert result.finished
    written = {path.name for path in (tmp_path / "out").iterdir()} - {".lock"}
    assert written == {"plan.toml", "events.jsonl", "checkpoint.safetensors", "result.json"}
    assert json.loads((tmp_path / "out" / "result.json").read_text())["count"] == 4


def test_a_stopped_run_goes_on_where_it_was(tmp_path, counting):
    seen = []
    stopped = run_here(
        counting, CountingPlan(), output=tmp_path / "out", on_progress=seen.append, should_stop=lambda: len(seen) >= 1
    )
    assert (stopped.count, stopped.finished) == (2, False)
    assert not (tmp_path / "out" / "result.json").exists()
    assert read_run(tmp_path / "out").state.value == "stopped"
    assert run_here(counting, CountingPlan(), output=tmp_path / "out", resume=True).count == 4
    status = read_run(tmp_path / "out")
    assert (status.kind, status.unit, status.state.value, status.round, status.term) == (
        "counting", "count", "finished", 4, 1,
    )  # fmt: skip


def test_a_file_in_the_directory_stops_the_run(tmp_path, counting):
    directory = RunDirectory(tmp_path / "out")
    stopped = run_here(
        counting, CountingPlan(), output=tmp_path / "out", on_progress=lambda _: directory.request_stop()
    )
    assert (stopped.count, stopped.finished) == (2, False)


def test_a_kind_of_the_package_needs_its_line_in_the_table_and_no_command(bilateral, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(kinds, "_TABLE", MappingProxyType({**kinds._TABLE, "tabled": __name__}))
    (tmp_path / "plan.toml").write_text('kind = "tabled"\ntarget = 3\n')
    first = bilateral("run", "plan.toml", "--output", "out", "--json", "--quiet", free=True)
    assert (first.code, first.json) == (0, {"count": 3, "finished": True, "output": "out"})
    assert bilateral("run", "--resume", "out", "--json", "--quiet", free=True).json == first.json
    watched = bilateral("watch", "out", "--json").json
    assert (watched["kind"], watched["state"], watched["round"]) == ("tabled", "finished", 3)
    audited = bilateral("audit", "plan.toml", "--effort", "smoke", "--workers", 1, "--json", "--quiet", "--output", "a")
    assert audited.code == 0
    assert {row["verdict"] for row in audited.json["verdicts"] if row["claimed_by"] == OWN} == {"not tested"}


def test_a_checkpoint_of_another_plan_is_refused(tmp_path, counting):
    run_here(counting, CountingPlan(), output=tmp_path / "out")
    with pytest.raises(CheckpointError, match="another plan"):
        run_here(counting, CountingPlan(5), output=tmp_path / "out", resume=True)


def test_the_command_line_runs_resumes_and_watches_it(bilateral, tmp_path):  # noqa: F811
    (tmp_path / "plan.toml").write_text('kind = "counting"\ntarget = 3\n')
    first = bilateral("run", "plan.toml", "--output", "out", "--json", "--quiet", free=True)
    assert (first.code, first.json) == (0, {"count": 3, "finished": True, "output": "out"})
    assert bilateral("run", "--resume", "out", "--json", "--quiet", free=True).json == first.json
    watched = bilateral("watch", "out", "--json").json
    assert (watched["kind"], watched["state"], watched["round"]) == ("counting", "finished", 3)
    assert watched["metrics"] == {"count": 3.0}
    assert "3/3 counts" in bilateral("watch", "out", "--once").out
    assert "count  3" in bilateral("run", "plan.toml", "--output", "again", "--quiet").out


def test_settings_of_rounds_are_refused_for_another_kind(bilateral, tmp_path):  # noqa: F811
    (tmp_path / "plan.toml").write_text('kind = "counting"\n')
    outcome = bilateral("run", "plan.toml", "--rounds", 3)
    assert outcome.code == 2
    assert "run as they are" in outcome.err


def test_a_name_is_registered_once_and_never_one_of_the_table(counting):
    for taken in ("counting", "rounds", "hetero"):
        other = CountingKind()
        other.name = taken
        with pytest.raises(PlanError, match="already"):
            register(other)
    assert kind_names() == ("rounds", "hetero", "serving", "counting")


@pytest.mark.parametrize("name", ["os:system", "bilateral.runs.rounds.kind", "", None, 3, ["rounds"]])
def test_a_plan_names_a_kind_of_the_table_and_never_code(name):
    with pytest.raises(PlanError, match="no such kind"):
        kind_named(name)
    with pytest.raises(PlanError, match="no such kind"):
        kinds.kind_of({"kind": name})


READ = Metric("numbers read", "high", is_rate=True)


def never_skipped(plan, guarantee):
    return ""


def read_numbers(context):
    """Runs the plan, and reads off its end how far it counted: the claim that this is hidden is wrong."""
    runs = [run_here(context.kind, context.plan) for _ in range(20)]
    return [
        with_controls(
            "single uploads",
            "curious server",
            "reading numbers",
            "the result",
            Gate(READ, 0.9),
            target=("this plan", [float(run.count == context.plan.target) for run in runs]),
            positive=("the plan itself", [1.0 for _ in runs]),
            negative=("a number that is never reached", [float(run.count == -1) for run in runs]),
        )
    ]


READING, ALSO = (
    Experiment(name, "Numbers", ("single uploads",), never_skipped, read_numbers, kinds=(CountingPlan,))
    for name in ("reading-numbers", "reading-again")
)


@pytest.fixture
def reading():
    for one in (READING, ALSO):
        experiments.register(one)
    yield
    for one in (READING, ALSO):
        experiments.unregister(one.name)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_its_plans_are_audited_by_experiments_that_are_for_them(reading, tmp_path, num_workers):
    plan = CountingPlan(40)
    result = audit(plan, effort="smoke", num_workers=num_workers, output=tmp_path / "a")
    assert not result.failed
    assert [one.attack for one in result.evidence] == ["reading numbers"] * 2
    assert [(one.tests, one.verdict, one.claimed_by) for one in result.verdicts] == [("single uploads", "broken", OWN)]
    assert stored_plan(AuditDirectory.open(tmp_path / "a").task()) == plan
    assert audit(plan, effort="smoke", output=tmp_path / "a", resume=True).as_dict() == result.as_dict()


def test_experiments_on_other_kinds_do_not_see_its_plans(reading):
    assert experiments.experiments_for(CountingPlan()) == (READING, ALSO)
    assert not {READING, ALSO} & {*experiments.experiments_for(RunPlan()), *experiments.experiments_for(HeteroPlan())}


def test_what_it_claims_is_not_tested_where_there_is_no_experiment():
    (verdict,) = (one for one in audit(CountingPlan(), save=False).verdicts if one.claimed_by == OWN)
    assert verdict.verdict == "not tested"


def test_the_command_line_audits_it(reading, bilateral, tmp_path):  # noqa: F811
    (tmp_path / "plan.toml").write_text('kind = "counting"\ntarget = 40\n')
    words = ("audit", "plan.toml", "--effort", "smoke", "--workers", 1)
    first = bilateral(*words, "--output", "a", "--json", "--quiet")
    assert first.code == 0
    assert {row["verdict"] for row in first.json["verdicts"]} == {"broken"}
    assert bilateral("audit", "--resume", "a", "--json", "--quiet").json == first.json
    assert [one["name"] for one in bilateral(*words, "--list", "--json").json["experiments"]] == [
        READING.name,
        ALSO.name,
    ]
    refused = bilateral(*words, "--rounds", 3)
    assert refused.code == 2
    assert "audited as they are" in refused.err
