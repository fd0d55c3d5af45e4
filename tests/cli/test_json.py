"""What every command prints with `--json` is what its published schema says, and nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError
from tests.cli.conftest import SCHEMAS, validator
from tests.cli.test_deploy import PLAN
from tests.reproduce.toy import toy_table

import bilateral as package
from bilateral.bench import recovery
from bilateral.cli import serve
from bilateral.cli.lazy_commands import imported
from bilateral.cli.main import app
from bilateral.cli.printed import PRINTED
from bilateral.engine.flare import admin, submission
from bilateral.reproduce import registry
from bilateral.serving.sockets import Reception

ROOT = Path(__file__).parents[2]
SMALL = {
    "data.name": "breast-cancer", "model.name": "mlp-3", "model.options": {"width": 4}, "federation.clients": 2,
    "training.rounds": 2, "protection": "masks", "training.loss": "ce",
}  # fmt: skip
QUICK = ("--data", "breast-cancer", "--model", "mlp-3", "--clients", 2, "--rounds", 1)
STORED = ROOT / "docs" / "audits" / "fedsgd"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run: its directory, and what it printed."""
    folder = tmp_path_factory.mktemp("trained") / "out"
    return folder, package.run(package.RunPlan().with_settings(SMALL), output=folder).as_dict()


def _served(bilateral, monkeypatch, trained):
    monkeypatch.setattr(Reception, "serve", lambda *_: None)
    return bilateral("serve", trained[0], "--questions", 5, "--client", "a", "--dealer", "b", "--json")


def _deal(bilateral, monkeypatch, trained):
    kits = _served(bilateral, monkeypatch, trained).json["kits"]
    monkeypatch.setattr(serve, "deal_for", lambda kit, randomness, tell: tell(3))
    return bilateral("deal", kits["b"], "--json")


def _submit(bilateral, monkeypatch, trained):
    Path("plan.toml").write_text(PLAN)
    monkeypatch.setattr(submission, "submit_run", lambda *_, **__: submission.Submitted("r", "j", trained[1]))
    done = bilateral("submit", "kit", "plan.toml", "--json", "--quiet")
    monkeypatch.setattr(submission, "submit_run", lambda *_, **__: submission.Submitted("r", "j", None))
    assert bilateral("submit", "kit", "plan.toml", "--json", "--quiet", "--detach").json == {"run": "r", "job": "j"}
    return done


class _Connected:
    """In place of a connection to a server of FLARE."""

    def __init__(self, kit):
        self.kit = kit

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def connected_sites(self):
        return ["hospital-a", "hospital-b"]


def _sites(bilateral, monkeypatch, trained):
    monkeypatch.setattr(admin, "Admin", _Connected)
    return bilateral("sites", "kit", "--json")


def _deploy(bilateral, monkeypatch, trained):
    Path("plan.toml").write_text(PLAN)
    return bilateral("deploy", "plan.toml", "--server", "localhost", "--json")


def _bench(bilateral, monkeypatch, trained):
    monkeypatch.setattr(recovery, "NETWORKS", [("mlp-7", {})])
    monkeypatch.setattr(recovery, "PARTITIONS", (1,))
    return bilateral("bench", "recovery", "--quick", "--json", "--quiet")


def _reproduce(bilateral, monkeypatch, trained):
    registry.register(toy_table("log"))
    try:
        return bilateral("reproduce", "toy-1", "--output", "tables", "--json", "--quiet")
    finally:
        registry.unregister("toy-1")


def _predict(bilateral, monkeypatch, trained):
    bilateral("export", trained[0])
    return bilateral("predict", "model.safetensors", "--json")


def _said(*words):
    """A call with words in which OUT stands for the run's directory."""
    return lambda bilateral, monkeypatch, trained: bilateral(*(trained[0] if w == "OUT" else w for w in words))


CALLS = {
    "run": _said("run", *QUICK, "--protection", "perturbation", "--json", "--quiet"),
    "hetero": _said("hetero", "--write-plan", "hetero.toml", "--json"),
    "audit": _said("audit", "--show", STORED, "--json"),
    "leakage-page": _said("leakage-page", STORED, "--json"),
    "report": _said("report", "OUT", "--output", "page.html", "--json"),
    "watch": _said("watch", "OUT", "--json"),
    "deploy": _deploy,
    "submit": _submit,
    "sites": _sites,
    "ladder": _said("ladder", "--json"),
    "new": _said("new", "mine", "--json"),
    "explain": _said("explain", *QUICK, "--protection", "masks", "--epsilon", 8, "--json"),
    "doctor": _said("doctor", "--json"),
    "compare": _said("compare", *QUICK, "--protection", "masks", "--json", "--quiet"),
    "inspect": _said("inspect", "lenet", "--input-shape", "1,8,8", "--json"),
    "privacy": _said("privacy", *QUICK, "--loss", "mse", "--epsilon", 8, "--json"),
    "export": _said("export", "OUT", "--json"),
    "predict": _predict,
    "serve": _served,
    "ask": _said("ask", "OUT", "--data", "breast-cancer", "--first", 2, "--json", "--quiet"),
    "deal": _deal,
    "reproduce": _reproduce,
    "bench": _bench,
}


@pytest.mark.parametrize("command", CALLS)
def test_a_command_prints_what_its_schema_says(command, bilateral, monkeypatch, trained):
    outcome = CALLS[command](bilateral, monkeypatch, trained)
    assert outcome.code == 0, outcome.err
    validator(command).validate(outcome.json)
    for name in list(outcome.json):
        less = {key: value for key, value in outcome.json.items() if key != name}
        if name in _required(command):
            with pytest.raises(ValidationError):
                validator(command).validate(less)
    with pytest.raises(ValidationError):
        validator(command).validate({**outcome.json, "something else": 1})


def _required(command):
    """What no object of this command leaves out."""
    schema = validator(command).schema
    parts = [schema["$defs"][one["$ref"].rpartition("/")[2]] for one in schema.get("anyOf", ())] or [schema]
    return set.intersection(*(set(part["required"]) for part in parts))


def test_other_answers_of_a_command_are_in_its_schema_too(bilateral, tmp_path):
    assert bilateral("run", *QUICK, "--write-plan", "plan.toml", "--json").json == {"plan": "plan.toml"}
    assert bilateral("audit", *QUICK, "--list", "--json").json["experiments"]
    assert bilateral("reproduce", "--list", "--json").json["tables"]
    for stored in ROOT.glob("docs/reproductions/*.json"):
        told = json.loads(stored.read_text(encoding="utf-8"))
        told.pop("pictures")  # files beside the stored one
        validator("reproduce").validate({"tables": [told]})
    assert bilateral("privacy", *QUICK, "--json").json["status"] == "none"
    assert bilateral("leakage-page", STORED, "--output", "page.md", "--json").json["page"] is None
    (tmp_path / "nets_for_json.py").write_text(
        "from torch import nn\n\n"
        "def build(num_outputs):\n    return nn.Sequential(nn.Linear(4, num_outputs), nn.Tanh())\n"
    )
    refused = bilateral("inspect", "nets_for_json:build", "--input-shape", 4, "--json").json
    assert list(refused) == ["protections"]


def test_every_command_with_json_has_a_schema_and_is_tried_here():
    commands = imported(app)
    with_json = {name for name, one in commands.items() if any("--json" in p.opts for p in one.params)}
    assert with_json == set(PRINTED) == set(CALLS)
    assert set(commands) - with_json == {"schema"}  # which prints JSON and nothing else
    assert {path.stem for path in SCHEMAS.glob("*.json")} == set(PRINTED)


@pytest.mark.parametrize("command", PRINTED)
def test_a_schema_is_one_and_closed(command):
    schema = copy.deepcopy(validator(command).schema)
    Draft202012Validator.check_schema(schema)
    for part in [schema, *schema.get("$defs", {}).values()]:
        if part.get("type") == "object" and "properties" in part and part.get("title") != "WatchedEvent":
            assert part["additionalProperties"] is False


def test_schema_prints_one_or_all_and_names_what_there_is(bilateral):
    assert json.loads(bilateral("schema", "run").out) == validator("run").schema
    assert set(json.loads(bilateral("schema").out)) == set(PRINTED)
    wrong = bilateral("schema", "jump")
    assert wrong.code == 2
    assert "Choose among ask, audit" in wrong.err
