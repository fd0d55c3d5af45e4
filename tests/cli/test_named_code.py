"""Run and audit directories, plan files and exports do not decide what code runs: the user names it, in every call."""

import json
import sys

import pytest

from bilateral import load_plan
from bilateral.errors import CheckpointError, ModelError
from bilateral.models.zoo.user_function import import_builder
from bilateral.runs.rounds.export import export_run

MODULE = """
from pathlib import Path
import torch
from torch import nn
from bilateral.data import Dataset, Split

Path("imported").touch()

def load():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return Dataset("own", "classification", Split(x, y), Split(x, y), 2)

def build(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 6), nn.ReLU(), nn.Linear(6, num_outputs))
"""
NAMED = ("--model", "my_own:build", "--data", "my_own:load")
PLAN = '[data]\nname = "my_own:load"\n[model]\nname = "my_own:build"\n[training]\nrounds = 4\n'


@pytest.fixture
def own(bilateral, tmp_path):
    """A run of code of the user's own that stopped early, and whose module is not imported any more."""
    (tmp_path / "my_own.py").write_text(MODULE)
    done = bilateral("run", *NAMED, "--clients", 3, "--rounds", 4, "--output", "out", "--quiet", "--json")
    assert done.code == 0, done.err
    forget(tmp_path)
    yield bilateral
    sys.modules.pop("my_own", None)


def forget(tmp_path):
    sys.modules.pop("my_own", None)
    (tmp_path / "imported").unlink(missing_ok=True)


def refused(outcome, tmp_path, *words):
    assert outcome.code == 2
    for word in ("a file must not decide what code runs", "`my_own:load`", *words):
        assert word in outcome.err
    assert "my_own" not in sys.modules
    assert not (tmp_path / "imported").exists()


class TestRunDirectories:
    def test_an_export_says_the_exact_command_and_that_command_works(self, own, tmp_path):
        command = "bilateral export out --output m.safetensors --data my_own:load --model my_own:build"
        refused(own("export", "out", "--output", "m.safetensors"), tmp_path, command)
        done = own(*command.split()[1:], "--json")
        assert done.code == 0, done.err
        forget(tmp_path)
        refused_data = own("predict", "m.safetensors", "--model", "my_own:build")
        assert refused_data.code == 2
        assert own("predict", "m.safetensors", *NAMED, "--json").code == 0

    def test_to_go_on_says_the_exact_command_and_that_command_works(self, own, tmp_path):
        command = "bilateral run --resume out --data my_own:load --model my_own:build"
        refused(own("run", "--resume", "out", "--quiet"), tmp_path, command)
        refused(own("run", "--resume", "out", "--model", "my_own:build", "--quiet"), tmp_path, command)
        done = own(*command.split()[1:], "--quiet", "--json")
        assert done.code == 0, done.err

    @pytest.mark.parametrize("other", ["my_own:other", "mlp-3", "os:system"])
    def test_another_name_is_no_name_for_it(self, own, tmp_path, other):
        outcome = own("run", "--resume", "out", "--data", "my_own:load", "--model", other, "--quiet")
        assert outcome.code == 2
        assert "--resume goes on with the plan of out" in outcome.err
        assert not (tmp_path / "imported").exists()
        refused_export = own("export", "out", "--output", "m.safetensors", "--data", "my_own:load", "--model", other)
        assert refused_export.code == 2
        assert not (tmp_path / "imported").exists()

    def test_watching_runs_nothing(self, own, tmp_path):
        assert own("watch", "out", "--once").code == 0
        assert not (tmp_path / "imported").exists()

    def test_the_function_of_the_library_asks_for_names_too(self, own, tmp_path):
        with pytest.raises(CheckpointError, match="must not decide what code runs"):
            export_run("out", "m.safetensors")
        assert not (tmp_path / "imported").exists()
        assert export_run("out", "m.safetensors", model="my_own:build", data="my_own:load").model == "my_own:build"


def planted(path, name):
    """A directory that somebody handed over, whose plan names a function of the standard library."""
    text = path.read_text()
    path.write_text(text.replace('"digits"', json.dumps(name)))


@pytest.mark.parametrize("name", ["os:system", "my_own:load", "antigravity:x"])
def test_a_directory_from_somebody_else_runs_nothing(bilateral, tmp_path, name):
    (tmp_path / "my_own.py").write_text(MODULE)
    words = ("--model", "mlp-3", "--clients", 3, "--rounds", 2, "--quiet", "--json")
    assert bilateral("run", *words, "--output", "out").code == 0
    planted(tmp_path / "out" / "plan.toml", name)
    for command in (("export", "out", "--output", "m.safetensors"), ("run", "--resume", "out", "--quiet")):
        outcome = bilateral(*command)
        assert outcome.code == 2
        assert f"`{name}`" in outcome.err
    assert not (tmp_path / "imported").exists()


class TestAudits:
    @pytest.fixture
    def stored(self, bilateral, tmp_path):
        (tmp_path / "my_own.py").write_text(MODULE)
        words = ("--model", "mlp-3", "--clients", 3, "--rounds", 2, "--effort", "smoke", "--workers", 1)
        done = bilateral("audit", *words, "--only", "presence", "--output", "out", "--quiet", "--json")
        assert done.code == 0, done.err
        planted(tmp_path / "out" / "plan.json", "my_own:load")
        return bilateral

    def test_to_go_on_with_an_audit_runs_nothing_that_only_its_directory_names(self, stored, tmp_path):
        command = "bilateral audit --resume out --data my_own:load"
        refused(stored("audit", "--resume", "out", "--quiet"), tmp_path, command)
        assert stored("audit", "--resume", "out", "--data", "os:system", "--quiet").code == 2
        assert not (tmp_path / "imported").exists()

    def test_showing_an_audit_runs_nothing(self, stored, tmp_path):
        assert stored("audit", "--show", "out").code == 0
        assert not (tmp_path / "imported").exists()


class TestPlanFiles:
    @pytest.fixture
    def plan(self, bilateral, tmp_path):
        (tmp_path / "my_own.py").write_text(MODULE)
        (tmp_path / "plan.toml").write_text(PLAN)
        yield bilateral
        sys.modules.pop("my_own", None)

    @pytest.mark.parametrize("command", ["run", "audit", "compare", "privacy"])
    def test_a_plan_file_runs_nothing_that_the_user_does_not_name(self, plan, tmp_path, command):
        refused(plan(command, "plan.toml"), tmp_path, "--data my_own:load --model my_own:build")

    def test_a_plan_file_runs_what_the_user_names(self, plan):
        done = plan("run", "plan.toml", *NAMED, "--clients", 3, "--output", "out", "--quiet", "--json")
        assert done.code == 0, done.err

    def test_in_python_too_a_plan_file_names_nothing_that_the_user_does_not(self, plan, tmp_path):
        with pytest.raises(CheckpointError, match=r"load_plan\(.*code=\['my_own:load', 'my_own:build'\]"):
            load_plan(tmp_path / "plan.toml")
        loaded = load_plan(tmp_path / "plan.toml", code=["my_own:load", "my_own:build"])
        assert loaded.data.name == "my_own:load"
        assert "my_own" not in sys.modules

    def test_a_setting_on_the_command_line_is_a_name_of_the_users(self, plan):
        words = ("--set", "data.name=my_own:load", "--set", "model.name=my_own:build", "--clients", 3)
        assert plan("run", "plan.toml", *words, "--output", "out", "--quiet", "--json").code == 0

    def test_a_heterogeneous_plan_runs_nothing_either(self, plan, tmp_path):
        (tmp_path / "hetero.toml").write_text('[data]\nname = "my_own:load"\n[[clients.architectures]]\nname = "a:b"\n')
        refused(plan("hetero", "hetero.toml"), tmp_path, "--data my_own:load --models a:b")
        refused(plan("audit", "--hetero", "hetero.toml"), tmp_path)


@pytest.mark.parametrize("path", ["a b:c", ":c", "a:", "a..b:c", ".a:b", "a:b.c", "a/b:c", "a:b()", "a:b:c", "1a:b"])
def test_a_model_that_is_no_name_of_a_function_is_refused_before_anything_is_imported(path):
    with pytest.raises(ModelError, match="Expected a model as"):
        import_builder(path)
