"""`bilateral hetero` and `bilateral bench heterogeneous`, as a user calls them."""

import json
import os
import signal

import pytest

from bilateral.learning.hetero.client import HeteroClient
from bilateral.runs.hetero.plan import load_hetero_plan

QUICK = (
    "--answers", "plain", "--clients", 3, "--models", "mlp-3,lenet", "--samples", 20, "--queries", 24,
    "--set", "training.epochs=2", "--set", "retraining.epochs=2",
)  # fmt: skip


def test_hetero_prints_the_documented_object(bilateral):
    outcome = bilateral("hetero", *QUICK, "--json", "--quiet")
    assert outcome.code == 0
    assert outcome.err == ""
    keys = {
        "dataset", "clients", "architecture", "method", "queries", "fraction", "accuracy_before", "accuracy_after",
        "seed", "alpha", "selection",
    }  # fmt: skip
    assert [row["architecture"] for row in outcome.json["rows"]] == ["mlp-3", "lenet", "average"]
    assert all(keys <= set(row) for row in outcome.json["rows"])
    assert outcome.json["finished"]
    assert outcome.json["guarantee"]["claims"] == []


def test_hetero_tells_a_person_the_gain_and_that_plain_answers_hide_nothing(bilateral, tmp_path):
    outcome = bilateral("hetero", *QUICK, "--output", "out", "--pool", "private", "--alpha", 5)
    for words in ("architecture", "average", "gain", "private queries", "nothing is hidden", "Results: out"):
        assert words in outcome.out
    assert "100/100" in outcome.err  # progress without a terminal is lines on standard error
    assert json.loads((tmp_path / "out" / "result.json").read_text())["finished"]


def test_who_compares_is_an_option_and_is_kept_in_the_plan(bilateral, tmp_path):
    assert bilateral("hetero", "--style", "hardened", "--write-plan", "plan.toml").code == 0
    assert load_hetero_plan(tmp_path / "plan.toml").style == "hardened"
    wrong = bilateral("hetero", "--style", "open")
    assert wrong.code == 2
    assert "style" in wrong.err
    assert "sealed" in wrong.err


def test_a_written_plan_can_be_run_and_resumed(bilateral):
    assert bilateral("hetero", *QUICK, "--write-plan", "plan.toml").code == 0
    first = bilateral("hetero", "plan.toml", "--output", "out", "--json", "--quiet").json
    again = bilateral("hetero", "--resume", "out", "--json", "--quiet").json
    assert again["rows"] == first["rows"]


def test_an_interrupted_run_says_how_to_go_on_and_loses_no_finished_stage(bilateral, monkeypatch):
    train = HeteroClient.local_train

    def interrupt_while_training(client):
        if client.name == "client-2":
            os.kill(os.getpid(), signal.SIGINT)
        train(client)

    monkeypatch.setattr(HeteroClient, "local_train", interrupt_while_training)
    stopped = bilateral("hetero", *QUICK, "--output", "out", "--json", "--quiet")
    assert stopped.code == 130
    assert "bilateral hetero --resume out" in stopped.err
    assert stopped.json["stages_done"] == 2  # the stage that was running is finished and kept
    resumed = bilateral("hetero", "--resume", "out", "--json", "--quiet")
    assert resumed.code == 0
    assert resumed.json["stages_done"] == resumed.json["stages"] == 9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hetero", "--pool", "mixdown"), "queries.pool"),
        (("hetero", "--models", ","), "mlp-3,lenet"),
        (("hetero", "--models", "lenett", "--answers", "plain"), "lenet"),
        (("hetero", "--clients", 2), "sum of one answer"),
        (("hetero", "--resume", "nowhere"), "not a run directory"),
        (("hetero", "--resume", "x", "--seed", 1), "goes on with the plan"),
        (("bench", "heterogeneous", "--table", "nope"), "queries, fraction"),
        (("bench", "heterogeneous", "--data", "mnist"), "cifar10, svhn"),
        (("bench", "recovery", "--table", "queries"), "belongs to heterogeneous"),
    ],
)
def test_bad_input_is_one_message_and_code_2(bilateral, words, said):
    outcome = bilateral(*words)
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err


def test_the_help_has_examples(bilateral):
    outcome = bilateral("hetero", "--help")
    assert outcome.code == 0
    assert "bilateral hetero --resume out" in outcome.out
