"""What processes of other parties leave behind on this machine: a run's directory, read again and again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.run_status import RunReader, RunStatus
from bilateral.errors import DeploymentError


@dataclass(frozen=True)
class LeftResult:
    """Of a run that has ended, or was stopped: its `result.json`, as the server wrote it."""

    output: Path
    values: dict[str, Any]

    @property
    def finished(self) -> bool:
        return bool(self.values["finished"])

    @property
    def rounds(self) -> int:
        return int(self.values["rounds"])

    def as_dict(self) -> dict[str, Any]:
        return self.values


@dataclass
class LeftDirectory:
    """A run on this machine whose steps others take."""

    directory: RunDirectory

    def look(self) -> RunStatus:
        return self._reader.read()

    def result(self) -> LeftResult:
        try:
            text = self.directory.result.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise DeploymentError(
                f"{self.directory.path} has no result: {self.look().reason or 'no reason was given'}",
                remedy="Logs of the processes are below it; go on with --resume.",
            ) from error
        return LeftResult(self.directory.path, json.loads(text))

    @cached_property
    def _reader(self) -> RunReader:
        return RunReader(self.directory.path)
