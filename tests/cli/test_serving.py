"""`serve`, `deal` and `ask`, as a user would from a shell.

It runs what docs/how-to/serve-a-model.md and deployment.md prints of it.
"""

import csv
import json
import subprocess
import sys
import threading
import tomllib

import numpy as np
import pytest

from bilateral.cli.serve import DEFAULT_QUESTIONS
from bilateral.serving.asking import AskingSession
from bilateral.serving.folder import Kit
from bilateral.serving.hosted.kind import KIND
from bilateral.serving.sockets import Reception

QUICK = (
    "--data", "breast-cancer", "--model", "mlp-3", "--clients", 3, "--rounds", 4, "--set", "model.options={width = 8}",
)  # fmt: skip


@pytest.fixture
def run(bilateral):
    assert bilateral("run", *QUICK, "--protection", "fedavg", "--output", "out", "--quiet").code == 0
    return "out"


@pytest.mark.parametrize("protection", ["fedavg", "perturbation", "sealed"])
def test_the_model_of_a_run_of_any_protection_answers_as_its_export_does(bilateral, protection):
    bilateral("run", *QUICK, "--protection", protection, "--output", "out", "--quiet")
    bilateral("export", "out", "--output", "model.safetensors")
    wanted = bilateral("predict", "model.safetensors", "--json").json["metrics"]["test_accuracy"]
    asked = bilateral("ask", "out", "--data", "breast-cancer", "--json", "--quiet")
    assert asked.code == 0 and asked.json["simulation"]
    assert abs(asked.json["metrics"]["test_accuracy"] - wanted) < 0.01
    classes = bilateral("ask", "out", "--data", "breast-cancer", "--reveal", "class", "--json", "--quiet").json
    assert classes["outputs"] is None and classes["predicted"] == asked.json["predicted"]


def test_a_simulation_says_that_it_is_one(bilateral, run):
    outcome = bilateral("ask", run, "--data", "breast-cancer", "--first", 12)
    assert outcome.code == 0
    for words in ("test_accuracy", "This was a simulation", "... and 2 more"):
        assert words in outcome.out
    assert "12/12" in outcome.err


def test_answers_are_written_as_they_come_and_gone_on_with(bilateral, run, tmp_path, monkeypatch):
    whole = bilateral("ask", run, "--data", "breast-cancer", "--first", 100, "-o", "whole.csv", "--quiet")
    assert whole.code == 0
    ask, asked = AskingSession.ask, []

    def dies_at_the_second(self, inputs, reveal):
        asked.append(len(inputs))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return ask(self, inputs, reveal)

    monkeypatch.setattr(AskingSession, "ask", dies_at_the_second)
    options = "--data", "breast-cancer", "--first", 100, "-o", "part.csv", "--quiet"
    died = bilateral("ask", run, *options)
    assert died.code == 130 and "64 answers are in part.csv" in died.out
    monkeypatch.setattr(AskingSession, "ask", ask)
    with (tmp_path / "part.csv").open("a") as file:
        file.write("64,mali")  # a line that was cut off
    assert bilateral("ask", run, *options).code == 2, "what is there is not overwritten"
    assert bilateral("ask", run, *options, "--resume").code == 0
    rows = [list(csv.reader((tmp_path / name).open())) for name in ("whole.csv", "part.csv")]
    assert len(rows[1]) == 101 and [row[:2] for row in rows[0]] == [row[:2] for row in rows[1]]


def test_an_error_in_the_middle_loses_no_answer_that_is_there(bilateral, run, tmp_path):
    inputs = np.zeros((70, 30))
    inputs[69] = 3000
    np.save(tmp_path / "mine.npy", inputs)
    outcome = bilateral("ask", run, "--inputs", "mine.npy", "--json", "--quiet")
    assert outcome.code == 2 and "An input is 3e+03" in outcome.err
    assert outcome.json["samples"] == len(outcome.json["outputs"]) == 64


def test_a_users_own_inputs_are_asked_about(bilateral, run, tmp_path):
    np.save(tmp_path / "mine.npy", np.zeros((3, 30)))
    found = bilateral("ask", run, "--inputs", "mine.npy", "--json", "--quiet").json
    assert len(found["outputs"]) == 3 and found["metrics"] == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--inputs FILE or --data NAME"),
        (("--data", "digits", "--inputs", "x.npy"), "--inputs FILE or --data NAME"),
        (("--data", "digits"), "Ask about data of the kind"),
        (("--inputs", "x.npy"), "There is no file"),
        (("--data", "breast-cancer", "--reveal", "weights"), "logits or class"),
        (("--data", "breast-cancer", "--resume"), "Name the file that was begun"),
        (("--data", "breast-cancer", "--output", "none/x.csv"), "Make it first"),
    ],
)
def test_what_cannot_be_asked_is_one_message_with_a_remedy(bilateral, run, words, said):
    outcome = bilateral("ask", run, *words)
    assert outcome.code == 2 and said in outcome.err and "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ask", "nowhere", "--data", "digits"), "There is no"),
        (("deal", "nowhere"), "There is no"),
        (("serve", "nowhere"), "not a run directory"),
        (("serve", "out", "--reveal", "all"), "logits or class"),
        (("serve", "out", "--client", "a", "--dealer", "a"), "cannot both deal and ask"),
        (("serve", "out", "--client", "../a"), "cannot be the name of a party"),
    ],
)
def test_what_cannot_be_served_is_one_message_with_a_remedy(bilateral, run, words, said):
    outcome = bilateral(*words)
    assert outcome.code == 2 and said in outcome.err and "Traceback" not in outcome.err


def test_a_model_that_does_not_go_on_shares_is_refused_by_name(bilateral, tmp_path):
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\ndef build(input_shape, num_outputs):\n"
        "    return nn.Sequential(nn.Linear(30, 4), nn.Sigmoid(), nn.Linear(4, num_outputs))\n"
    )
    own = "--data", "breast-cancer", "--model", "nets:build", "--clients", 2, "--rounds", 1, "--protection", "fedavg"
    assert bilateral("run", *own, "--output", "out", "--quiet").code == 0
    outcome = bilateral("serve", "out", "--model", "nets:build")
    assert outcome.code == 2 and "Sigmoid" in outcome.err and "cannot be served on shares" in outcome.err


def test_three_processes_answer_count_and_refuse(bilateral, run, tmp_path):
    """`serve` starts its dealer; `ask` finds both by its kit."""
    command = [sys.executable, "-m", "bilateral", "serve", run, "--questions", "30", "--reveal", "class", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    killer = threading.Timer(120, server.kill)
    killer.start()
    try:
        for line in server.stderr:
            if "is there, to deal" in line:
                break
        kit = tmp_path / "out" / "serving" / "kits" / "client"
        asked = bilateral(
            "ask", kit, "--data", "breast-cancer", "--reveal", "class", "--first", 20, "--json", "-q"
        ).json
        assert asked["questions"] == {"used": 20, "limit": 30} and not asked["simulation"]
        assert {claim["whom"] for claim in asked["guarantee"]["claims"]} == {"asking clients", "server", "dealer"}
        more = bilateral("ask", kit, "--data", "breast-cancer", "--reveal", "class", "--first", 11)
        assert more.code == 2 and "10 of 30 are left. Nothing was asked. Ask with --first 10." in more.err
        logits = bilateral("ask", kit, "--data", "breast-cancer", "--first", 1)
        assert logits.code == 2 and "reveals classes only" in logits.err
        wrong = bilateral("deal", kit)
        assert wrong.code == 2 and "bilateral ask" in wrong.err
        server.send_signal(2)
        told, said = server.communicate(timeout=900)
        assert server.returncode == 0, said
        assert json.loads(told)["questions"] == 30 and "client: 20 questions (class), 20 of 30 so far" in said
    finally:
        killer.cancel()
        server.kill()
        server.wait()
    assert json.loads((tmp_path / "out" / "serving" / "questions" / "client.json").read_text()) == {"questions": 20}
    assert Kit.read(kit).port > 0
    gone = bilateral("ask", kit, "--data", "breast-cancer")
    assert gone.code == 2 and "Start `bilateral serve` there first" in gone.err


def test_a_limit_that_gives_the_model_away_is_warned_of(bilateral, run, monkeypatch):
    monkeypatch.setattr(Reception, "serve", lambda *_: None)
    many = bilateral("serve", run, "--questions", 300, "--json")
    assert many.code == 0 and "read the whole model" in many.err
    assert any("enough for that" in leak["what"] for leak in many.json["guarantee"]["leaks"])
    few = bilateral("serve", run, "--questions", 20, "--json")
    assert few.code == 0 and "read the whole model" not in few.err
    shared = bilateral("serve", run, "--questions", 100, "--json", *(("--client", "a", "--client", "b")))
    assert "300 questions of all clients" in " ".join(shared.err.split())


def test_whoever_names_a_third_party_is_told_to_keep_no_copy_of_its_kit(bilateral, run, monkeypatch):
    monkeypatch.setattr(Reception, "serve", lambda *_: None)
    outcome = bilateral("serve", run, "--questions", 20, "--dealer", "auditor")
    said = " ".join(outcome.out.split())
    assert (
        outcome.code == 0 and "only if no copy stays" in said and "with auditor's kit whoever has it can deal" in said
    )


@pytest.mark.parametrize("port", [70000, -1])
def test_a_port_that_is_none_is_refused_before_anything_is_written(bilateral, run, tmp_path, port):
    outcome = bilateral("serve", run, "--port", port)
    assert outcome.code == 2 and "Traceback" not in outcome.err and not (tmp_path / "out" / "serving").exists()


def test_the_default_limit_does_not_give_the_model_of_a_default_run_away():
    assert DEFAULT_QUESTIONS * 10 < 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10  # digits, mlp-3


class TestOverFlare:
    """What is written and refused before anything of FLARE runs; with it: tests/engine/flare/test_serving.py."""

    def plan(self, bilateral, *more):
        words = "--client", "ward-3", "--client", "ward-7", "--dealer", "auditor", "--reveal", "class", *more
        return bilateral("serve", "first", *words, "--write-plan", "serving.toml")

    def test_a_plan_is_written_deployed_and_said_whose_it_is(self, bilateral, tmp_path):
        assert self.plan(bilateral, "--questions", 30).code == 0
        values = tomllib.loads((tmp_path / "serving.toml").read_text())
        assert values.pop("kind") == "serving"
        found = KIND.parse(values, "of a test")
        assert (found.run, found.clients, found.dealer) == ("first", ("ward-3", "ward-7"), "auditor")
        assert (found.questions, found.reveal) == (30, "class")
        deployed = bilateral("deploy", "serving.toml", "--server", "localhost", "--output", "fed")
        assert deployed.code == 0 and found.fingerprint() in deployed.out
        assert "line 14" in deployed.out and "fed/README.md" in deployed.out
        kits = tmp_path / "fed" / "federation" / "prod_00"
        assert (kits / "localhost" / "spent" / "questions" / "first" / "ward-7.json").exists()
        asked = bilateral("ask", kits / "ward-3", "--data", "digits")
        assert asked.code == 2 and "No service has come to the site" in asked.err

    def test_a_plan_of_serving_is_no_run_for_one_process(self, bilateral):
        self.plan(bilateral)
        outcome = bilateral("run", "serving.toml")
        assert outcome.code == 2 and "bilateral serve RUN" in outcome.err and "Traceback" not in outcome.err

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("out", "--engine", "flare"), "flare-poc"),
            (("out", "--output", "service"), "--engine flare-poc"),
            (("out", "--resume"), "--engine flare-poc"),
            (("out", "--engine", "flare-sim", "--client", "a", "--dealer", "A"), "need different names"),
            (("out", "--engine", "flare-sim", "--client", "a/b"), "clients.0"),
            (("nowhere", "--engine", "flare-sim"), "not a run directory"),
        ],
    )
    def test_what_cannot_be_served_over_flare_is_one_message_with_a_remedy(self, bilateral, run, tmp_path, words, said):
        outcome = bilateral("serve", *words)
        assert outcome.code == 2 and said in outcome.err and "Traceback" not in outcome.err
        assert not (tmp_path / "service").exists() and not (tmp_path / "out-service").exists()

    def test_what_is_for_simulations_is_not_deployed(self, bilateral):
        bilateral("hetero", "--write-plan", "hetero.toml")
        outcome = bilateral("deploy", "hetero.toml", "--server", "localhost")
        assert outcome.code == 2 and "Traceback" not in outcome.err
