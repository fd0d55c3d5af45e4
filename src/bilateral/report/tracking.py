"""Runs in the tools that people watch experiments with: TensorBoard, MLflow and Weights & Biases, offline.

    bilateral.run(plan, output="out", callbacks=[TensorBoard()])     # tensorboard --logdir out/tensorboard
    bilateral run --track tensorboard --output out

Each writes below the run's directory and calls nobody. What they are told is what `metrics.csv` has anyway: metrics of
the server's test data, by round, the plan, and of the guarantee its name. Nothing of a site is among it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bilateral.arguments import require
from bilateral.engine.plan import RunPlan
from bilateral.errors import PlanError
from bilateral.report.frame import flat
from bilateral.runs.rounds.callbacks import Callback
from bilateral.runs.rounds.result import RoundReport, RunResult


class _Tracker(Callback):
    """Common to all: a folder below the run's, and plain numbers."""

    folder: str
    package: str

    def __init__(self, folder: str | Path | None = None) -> None:
        """`folder`: where to write, if not below the run's directory."""
        require(folder, str | Path | None, f"{type(self).__name__}: expected `folder` to be")
        self._folder = None if folder is None else Path(folder)

    def _place(self, output: Path | None) -> Path:
        if self._folder is None and output is None:
            raise PlanError(
                f"{type(self).__name__} has nowhere to write: this run keeps no directory.",
                remedy="Name a folder, or keep the run's directory.",
            )
        place = self._folder if self._folder is not None else Path(output or "") / self.folder
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _import(self, module: str) -> Any:
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise PlanError(
                f"{type(self).__name__} needs the package {self.package}, which is not installed.",
                remedy=f"Run: pip install {self.package}, or 'bilateral[tracking]' for all of them.",
            ) from error


class TensorBoard(_Tracker):
    """Event files in `tensorboard/`."""

    folder = "tensorboard"
    package = "tensorboard"

    def on_start(self, plan: RunPlan, output: Path | None) -> None:
        self._writer = self._import("torch.utils.tensorboard").SummaryWriter(str(self._place(output)))
        self._writer.add_text("plan", "\n".join(f"    {name} = {value}" for name, value in _settings(plan).items()))

    def on_round(self, report: RoundReport) -> None:
        for name, value in _figures(report).items():
            self._writer.add_scalar(name, value, report.round_index)

    def on_end(self, result: RunResult) -> None:
        self._writer.add_text("guarantee", result.guarantee.protection)
        self._writer.close()


class MLflow(_Tracker):
    """A database in `mlflow/`: `mlflow ui --backend-store-uri sqlite:///out/mlflow/runs.db`."""

    folder = "mlflow"
    package = "mlflow"

    def on_start(self, plan: RunPlan, output: Path | None) -> None:
        mlflow = self._import("mlflow")
        self._client = mlflow.MlflowClient(f"sqlite:///{self._place(output).resolve()}/runs.db")
        found = self._client.get_experiment_by_name("bilateral")
        place = self._place(output).resolve().as_uri()
        number = found.experiment_id if found else self._client.create_experiment("bilateral", f"{place}/artifacts")
        self._run = self._client.create_run(number, run_name=f"{plan.data.name}-{plan.model.name}").info.run_id
        for name, value in _settings(plan).items():
            self._client.log_param(self._run, name, value[:500])

    def on_round(self, report: RoundReport) -> None:
        for name, value in _figures(report).items():
            self._client.log_metric(self._run, name, value, step=report.round_index)

    def on_end(self, result: RunResult) -> None:
        self._client.set_tag(self._run, "guarantee", result.guarantee.protection)
        self._client.set_terminated(self._run, "FINISHED" if result.finished else "KILLED")


class WandB(_Tracker):
    """An offline run in `wandb/`; `wandb sync` sends it if that is wanted."""

    folder = "wandb"
    package = "wandb"

    def on_start(self, plan: RunPlan, output: Path | None) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        wandb = self._import("wandb")
        place = str(self._place(output))
        self._run = wandb.init(mode="offline", project="bilateral", dir=place, config=_settings(plan))

    def on_round(self, report: RoundReport) -> None:
        figures = _figures(report)
        if figures:
            self._run.log(figures, step=report.round_index)

    def on_end(self, result: RunResult) -> None:
        self._run.summary["guarantee"] = result.guarantee.protection
        self._run.finish()


TRACKERS: Final[Mapping[str, Callable[[], Callback]]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
"""By the names of `--track`."""


def trackers(names: Sequence[str]) -> list[Callback]:
    """Those of the names that `--track` takes."""
    unknown = [name for name in names if name not in TRACKERS]
    if unknown:
        raise PlanError(f"There is no tracker {unknown[0]!r}.", remedy=f"Choose {', '.join(TRACKERS)}.")
    return [TRACKERS[name]() for name in dict.fromkeys(names)]


def _settings(plan: RunPlan) -> dict[str, str]:
    return {name: str(value) for name, value in flat(plan.model_dump(mode="json"))}


def _figures(report: RoundReport) -> dict[str, float]:
    """What was measured after this round; nothing is told twice."""
    figures = dict(report.metrics)
    if figures and report.difference_to_fedavg is not None:
        figures["difference_to_fedsgd"] = report.difference_to_fedavg
    return figures
