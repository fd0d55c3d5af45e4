"""Rounds whose parties are processes of their own, as their host sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bilateral.engine.checkpoint import matching_checkpoint
from bilateral.engine.federation import member_names, needs_sample_counts
from bilateral.engine.plan import RunPlan, fingerprint_of
from bilateral.engine.remote.hosting import Quorum
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.run_status import RunReader, RunStatus
from bilateral.engine.setup import REFERENCE
from bilateral.errors import DeploymentError, PlanError
from bilateral.runs.rounds.conductor import sites_needed

REFERENCE_OPTION = "reference"
"""The option that trains FedSGD beside the run."""


@dataclass(frozen=True)
class HostedResult:
    """A finished (or stopped) run; the model is in the run directory's checkpoint."""

    plan: RunPlan
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
class LocalRounds:
    """Rounds on this machine. `reference`: FedSGD is trained beside them."""

    plan: RunPlan
    directory: RunDirectory
    sites: tuple[str, ...]
    reference: bool

    @property
    def facts(self) -> dict[str, Any]:
        return {REFERENCE_OPTION: self.reference}

    def look(self) -> RunStatus:
        return self._reader.read()

    def result(self) -> HostedResult:
        try:
            text = self.directory.result.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise DeploymentError(
                f"The run ended without a result: {self.look().reason or 'no reason was given'}"
            ) from error
        return HostedResult(self.plan, self.directory.path, json.loads(text))

    @cached_property
    def _reader(self) -> RunReader:
        return RunReader(self.directory.path)


class HostedRounds:
    """What a host asks of rounds; `KIND` is this and more."""

    def fingerprint_of(self, values: Mapping[str, Any]) -> str:
        return fingerprint_of(values)

    def quorum(self, plan: RunPlan, num_members: int) -> Quorum:
        num_helpers = len(plan.parties(()))  # without whom there is no round
        needed = sites_needed(plan, num_members - num_helpers) + num_helpers
        return Quorum(needed, needs_sample_counts(plan), plan.federation.patience)

    def answer_seconds(self, plan: RunPlan) -> float:
        return max(60.0, plan.federation.timeout)

    def prepare(
        self, plan: RunPlan, *, output: Path | None, data_dir: Path | None, resume: bool, options: Mapping[str, Any]
    ) -> LocalRounds:
        if plan.federation.dropout:
            raise PlanError(
                "Simulated dropouts (federation.dropout) belong to the in-process engine.",
                remedy="Use `--engine in-process`; on FLARE, kill a site's processes instead.",
            )
        directory = _directory(plan, output, resume)
        reference = options.get(REFERENCE_OPTION)
        if resume:
            checkpoint = matching_checkpoint(plan.digest(), directory.checkpoint)
            reference = any(name.startswith(f"{REFERENCE}/") for name in checkpoint.tensors)
        elif reference is None:
            reference = not plan.traits.spends_budget
        return LocalRounds(plan, directory, plan.parties(member_names(plan, data_dir)), bool(reference))


def _directory(plan: RunPlan, output: Path | None, resume: bool) -> RunDirectory:
    if not resume:
        return RunDirectory(RunDirectory.create(output, plan).path.resolve())
    if output is None:
        raise PlanError("Resuming needs the directory of the run.", remedy="Give it as `output`.")
    return RunDirectory(output.resolve())
