"""The directory of a heterogeneous run: `plan.toml`, a checkpoint after every stage, and `result.json` at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bilateral.engine.run_directory import DEFAULT_PARENT, RunDirectory, dated_path
from bilateral.errors import CheckpointError, PlanError
from bilateral.runs.hetero.plan import HeteroPlan, dump_hetero_plan, load_hetero_plan

_PLAN = "plan.toml"


class HeteroDirectory:
    """Files of one run, locked and written as `RunDirectory` does it. Never overwrites another run's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = RunDirectory(path)

    @property
    def checkpoint(self) -> Path:
        return self._files.checkpoint

    @staticmethod
    def create(path: Path | None, plan: HeteroPlan) -> HeteroDirectory:
        """A new directory with the plan in it; `path` None picks a dated name."""
        path = path or dated_path(DEFAULT_PARENT, f"hetero-{plan.data.name}")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise PlanError(
                f"{path} already exists and is not empty.",
                remedy="Choose another --output, or go on with a stopped run by --resume.",
            )
        path.mkdir(parents=True, exist_ok=True)
        partial = path / "plan.partial"
        partial.write_text(dump_hetero_plan(plan), encoding="utf-8")
        partial.replace(path / _PLAN)
        return HeteroDirectory(path)

    @staticmethod
    def open(path: Path) -> tuple[HeteroDirectory, HeteroPlan]:
        """An existing run."""
        if not (path / _PLAN).exists():
            raise CheckpointError(f"{path} is not a run directory (no {_PLAN}).", remedy="Name a run's --output.")
        return HeteroDirectory(path), load_hetero_plan(path / _PLAN)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory: a second process that would write to it is refused."""
        with self._files.locked():
            yield

    def write_result(self, result: dict[str, Any]) -> None:
        self._files.write_result(result)
