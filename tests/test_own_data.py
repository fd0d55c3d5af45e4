"""The snippets of docs/how-to/own-data.md are run as they are printed."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bilateral.cli.main import app

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "own-data.md").read_text(encoding="utf-8")
PYTHON, OF_FILE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PLAN, TABLE = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def names():
    found = {"__name__": "own_data_page"}
    exec(PYTHON, found)
    return found


def test_datasets_for_each_site_train_a_module(names):
    assert names["result"].rounds == 40


def test_a_function_of_ones_own_is_run_from_a_plan(tmp_path, monkeypatch, names):
    (tmp_path / "wards.py").write_text(PYTHON.split("plan = ")[0] + "\n\n" + OF_FILE)
    (tmp_path / "plan.toml").write_text(PLAN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wards", raising=False)
    arguments = ["run", str(tmp_path / "plan.toml"), "--data", "wards:load", "--quiet", "--no-reference"]
    ran = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert "test_auroc" in ran.output
    assert "best on validation data" in ran.output


def test_tables_are_run_from_a_plan(tmp_path):
    (tmp_path / "table.toml").write_text(TABLE)
    for number, name in enumerate(("north", "south", "server")):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["sex", "age", "ill"])
            rows.writerows(["fm"[i % 2], 40 + (7 * i + number) % 30, ("no", "yes")[i % 3 == 0]] for i in range(40))
    arguments = ["run", str(tmp_path / "table.toml"), "--data-dir", str(tmp_path), "--quiet", "--no-reference"]
    ran = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert "test_balanced_accuracy" in ran.output
