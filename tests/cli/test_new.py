"""A new project runs at once and passes its own test.

It runs what docs/tutorial.md prints of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bilateral.cli.new import write_project
from bilateral.errors import PlanError


def test_a_new_project_passes_its_own_test(tmp_path: Path) -> None:
    write_project(tmp_path / "tumour-study")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path / "tumour-study", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_commands_of_its_readme_work(bilateral, tmp_path, monkeypatch) -> None:
    outcome = bilateral("new", "mine", "--json")
    assert outcome.json["files"] == [
        "README.md",
        "mine_data.py",
        "mine_model.py",
        "plan.toml",
        "run.py",
        "test_project.py",
    ]
    monkeypatch.chdir(tmp_path / "mine")
    lines = [line.split() for line in Path("README.md").read_text().splitlines() if line.startswith("    bilateral")]
    commands = {words[1]: words[1:] for words in lines}
    assert set(commands) == {"explain", "run", "audit"}
    assert "no, it sees random numbers" in bilateral(*commands["explain"]).out
    short = ["--set", "training.rounds=1", "--quiet", "--json"]
    assert bilateral(*commands["run"], *short).json["finished"]
    assert Path("out/report.html").exists()


def test_nothing_is_written_over_anothers_work(tmp_path: Path) -> None:
    write_project(tmp_path / "mine")
    with pytest.raises(PlanError, match="not empty"):
        write_project(tmp_path / "mine")


def test_a_project_can_be_made_where_one_is(bilateral, tmp_path, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "here_model.py" in bilateral("new", ".", "--json").json["files"]
    assert "not empty" in bilateral("new", ".").err


@pytest.mark.parametrize("name", ["class", "1st", "a b", "ä!"])
def test_names_that_are_no_modules_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match="name of Python modules"):
        write_project(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
