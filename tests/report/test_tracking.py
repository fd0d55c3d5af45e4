"""Callbacks are told once of everything, and the tools that people use get the figures of metrics.csv."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.report.run_pages import SMALL

import bilateral
from bilateral.errors import PlanError
from bilateral.report import tracking
from bilateral.report.tracking import MLflow, TensorBoard, WandB, trackers

PLAN = {**SMALL, "protection": "masks"}


@dataclass
class Diary(bilateral.Callback):
    lines: list[Any] = field(default_factory=list)

    def on_start(self, plan: Any, output: Any) -> None:
        self.lines.append(("start", plan.data.name, output))

    def on_round(self, report: Any) -> None:
        self.lines.append((report.round_index, bool(report.metrics)))

    def on_end(self, result: Any) -> None:
        self.lines.append(("end", result.rounds, result.finished))


def plan() -> bilateral.RunPlan:
    return bilateral.RunPlan().with_settings(PLAN)


def figures(folder: Path) -> dict[int, dict[str, float]]:
    """The oracle: what the run wrote itself, after each evaluation but the first."""
    with (folder / "metrics.csv").open() as file:
        rows = {int(row["round"]): row for row in csv.DictReader(file)}
    names = ("test_accuracy", "test_loss") if "test_accuracy" in rows[0] else ("test_loss",)
    return {number: {name: float(row[name]) for name in names} for number, row in rows.items() if number}


def test_a_callback_is_told_of_the_start_of_every_round_and_of_the_end(tmp_path: Path) -> None:
    diary = Diary()
    bilateral.run(plan(), output=tmp_path / "out", callbacks=[diary])
    assert diary.lines[0] == ("start", "breast-cancer", tmp_path / "out")
    assert [line[0] for line in diary.lines[1:-1]] == [1, 2, 3, 4]
    assert diary.lines[-1] == ("end", 4, True)


def test_the_page_on_callbacks_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "callbacks.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(code, {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "4 rounds of wine, kept in followed"
    assert said[-2].startswith("4 of 4: {'test_accuracy'")
    assert said[-1].startswith("done: ")
    assert (tmp_path / "followed" / "metrics.csv").exists()


def test_metrics_are_told_of_rounds_after_which_something_was_measured() -> None:
    diary = Diary()
    bilateral.run(plan(), save=False, callbacks=[diary])
    assert diary.lines[1:-1] == [(1, False), (2, True), (3, False), (4, True)]


def test_tensorboard_has_the_figures_of_the_run(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    bilateral.run(plan(), output=tmp_path / "out", callbacks=[TensorBoard()])
    events = loading.EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    for number, row in figures(tmp_path / "out").items():
        for name, value in row.items():
            told = {event.step: event.value for event in events.Scalars(name)}
            assert told[number] == pytest.approx(value)
            assert sorted(told) == [2, 4]


def test_mlflow_has_the_figures_of_the_run(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    bilateral.run(plan(), output=tmp_path / "out", callbacks=[MLflow()])
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/out/mlflow/runs.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "bilateral"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["protection"] == "masks"
    assert found.info.status == "FINISHED"
    for number, row in figures(tmp_path / "out").items():
        for name, value in row.items():
            told = {one.step: one.value for one in client.get_metric_history(found.info.run_id, name)}
            assert told[number] == pytest.approx(value)


def test_wandb_writes_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    bilateral.run(plan(), output=tmp_path / "out", callbacks=[WandB()])
    assert list((tmp_path / "out" / "wandb").rglob("*.wandb"))


def test_a_tracker_without_a_place_says_so() -> None:
    with pytest.raises(PlanError, match="nowhere to write"):
        bilateral.run(plan(), save=False, callbacks=[MLflow()])


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(tracking.importlib, "import_module", missing)
    with pytest.raises(PlanError, match="wandb, which is not installed"):
        WandB(tmp_path).on_start(plan(), None)


def test_trackers_go_by_name() -> None:
    assert [type(one) for one in trackers(["wandb", "tensorboard", "wandb"])] == [WandB, TensorBoard]
    with pytest.raises(PlanError, match="no tracker 'excel'"):
        trackers(["excel"])
