"""Both kinds of run by one shell: the same directory, the same `watch`, the same `--resume`, the same `--json`."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.conftest import bilateral  # noqa: F401 (a fixture)

from bilateral.engine.run_status import read_run
from bilateral.learning.hetero.client import HeteroClient
from bilateral.learning.training import Training

ROUNDS = ("run", "--data", "wine", "--model", "mlp-3", "--clients", 3, "--rounds", 4)
HETERO = (
    "hetero", "--answers", "plain", "--clients", 3, "--models", "mlp-3,lenet", "--samples", 20, "--queries", 24,
    "--set", "training.epochs=2", "--set", "retraining.epochs=2",
)  # fmt: skip
KINDS = pytest.mark.parametrize(
    ("kind", "words", "num_steps", "unit"), [("rounds", ROUNDS, 4, "round"), ("hetero", HETERO, 9, "stage")]
)


def interrupted_in_its_second_step(monkeypatch):
    """A Ctrl-C while the second round is under way, or the second client trains."""
    seen = Counter()
    for owner, name in ((HeteroClient, "local_train"), (Training, "advance")):
        original = getattr(owner, name)

        def step(self, *arguments, original=original, name=name):
            seen[name] += 1
            if seen[name] == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return original(self, *arguments)

        monkeypatch.setattr(owner, name, step)


@KINDS
def test_a_run_is_watched_when_it_is_stopped_and_when_it_is_finished(
    bilateral,  # noqa: F811
    monkeypatch,
    kind,
    words,
    num_steps,
    unit,
):
    with monkeypatch.context() as patch:
        interrupted_in_its_second_step(patch)
        alone = ["--no-reference"] if kind == "rounds" else []  # FedSGD beside it would count as rounds
        stopped = bilateral(*words, *alone, "--output", "out", "--json", "--quiet")
    assert (stopped.code, stopped.json["finished"]) == (130, False)
    found = bilateral("watch", "out", "--json").json
    assert (found["kind"], found["state"], found["reason"]) == (kind, "stopped", "asked to stop")
    assert (found["round"], found["num_rounds"], found["term"]) == (2, num_steps, 0)
    again = bilateral("run", "--resume", "out", "--json", "--quiet")
    assert (again.code, again.json["finished"]) == (0, True)
    found = bilateral("watch", "out", "--json").json
    assert (found["state"], found["round"], found["term"]) == ("finished", num_steps, 1)
    assert found["reason"] == f"the plan's {unit}s are done"
    assert [site["site"] for site in found["sites"]] == ["client-1", "client-2", "client-3"]
    assert all(value >= 0.0 for value in found["metrics"].values())
    assert len(found["history"]) >= 2
    picture = bilateral("watch", "out", "--once").out
    assert f"{num_steps}/{num_steps} {unit}s" in picture
    assert json.loads(Path("out/result.json").read_text()) == again.json


@KINDS
def test_a_finished_run_that_is_resumed_says_the_same_again(bilateral, kind, words, num_steps, unit):  # noqa: F811
    first = bilateral(*words, "--output", "out", "--json", "--quiet").json
    again = bilateral("run", "--resume", "out", "--json", "--quiet").json
    assert again.keys() == first.keys()
    of_the_term = {"seconds": 0, "recovery_error": 0}  # recovery is tried anew, on the model as it is
    assert {**again, **of_the_term} == {**first, **of_the_term}


def test_a_heterogeneous_directory_from_before_there_were_kinds_is_known_by_its_sections(bilateral, tmp_path):  # noqa: F811
    first = bilateral(*HETERO, "--output", "out", "--json", "--quiet").json
    plan = tmp_path / "out" / "plan.toml"
    plan.write_text(plan.read_text().replace('kind = "hetero"\n', ""))
    (tmp_path / "out" / "events.jsonl").unlink()
    status = read_run(tmp_path / "out")
    assert (status.kind, status.state.value, status.round) == ("hetero", "finished", 9)
    assert bilateral("run", "--resume", "out", "--json", "--quiet").json["rows"] == first["rows"]


def test_a_plan_of_rounds_is_written_without_a_kind_and_may_say_it(bilateral, tmp_path):  # noqa: F811
    bilateral(*ROUNDS, "--write-plan", "plan.toml")
    text = (tmp_path / "plan.toml").read_text()
    assert "kind" not in text
    (tmp_path / "said.toml").write_text(f'kind = "rounds"\n{text}')
    first = bilateral("run", "plan.toml", "--output", "one", "--json", "--quiet")
    second = bilateral("run", "said.toml", "--output", "two", "--json", "--quiet")
    assert first.json["metrics"] == second.json["metrics"]
    assert (tmp_path / "one" / "plan.toml").read_text() == (tmp_path / "two" / "plan.toml").read_text()
