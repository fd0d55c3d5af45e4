"""Rounds whose parties are processes of their own, as their host sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilateral.engine.checkpoint import matching_checkpoint
from bilateral.engine.federation import member_names, needs_sample_counts
from bilateral.engine.plan import RunPlan, fingerprint_of
from bilateral.engine.remote.hosting import Quorum
from bilateral.engine.remote.left import LeftDirectory
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.setup import REFERENCE
from bilateral.errors import PlanError
from bilateral.runs.rounds.conductor import sites_needed

REFERENCE_OPTION = "reference"
"""The option that trains FedSGD beside the run."""


@dataclass
class LocalRounds(LeftDirectory):
    """Rounds on this machine; the model is in the checkpoint. `reference`: FedSGD is trained beside them."""

    sites: tuple[str, ...]
    reference: bool

    @property
    def facts(self) -> dict[str, Any]:
        return {REFERENCE_OPTION: self.reference}


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
        return LocalRounds(directory, plan.parties(member_names(plan, data_dir)), bool(reference))


def _directory(plan: RunPlan, output: Path | None, resume: bool) -> RunDirectory:
    if not resume:
        return RunDirectory(RunDirectory.create(output, plan).path.resolve())
    if output is None:
        raise PlanError("Resuming needs the directory of the run.", remedy="Give it as `output`.")
    return RunDirectory(output.resolve())
