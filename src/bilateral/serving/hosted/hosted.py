"""A service whose parties are processes of their own, as its host sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bilateral.engine.plan import load_plan
from bilateral.engine.remote.hosting import Quorum
from bilateral.engine.remote.left import LeftDirectory
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import PlanError
from bilateral.randomness import SecureRandomness
from bilateral.serving.folder import ServingFolder
from bilateral.serving.hosted.handbook import serving_handbook
from bilateral.serving.hosted.plan import ServingPlan, fingerprint_of

RUN, MODEL, DATA = "run", "model", "data"
"""Options of a service on one machine: the run's directory, and functions of a user's own that it names."""
_ANSWER_SECONDS: Final = 600.0
_AT_LEAST: Final = 2
"""The dealer and a client. Who comes later is in the next term."""


@dataclass
class LocalService(LeftDirectory):
    """A service on this machine."""

    sites: tuple[str, ...]
    facts: Mapping[str, Any]


class HostedServing:
    """What a host asks of a service; `KIND` is this and more."""

    def fingerprint_of(self, values: Mapping[str, Any]) -> str:
        return fingerprint_of(values)

    def quorum(self, plan: ServingPlan, num_members: int) -> Quorum:
        return Quorum(min(_AT_LEAST, num_members), all_at_first=False, patience=plan.patience)

    def answer_seconds(self, plan: ServingPlan) -> float:  # noqa: ARG002
        return _ANSWER_SECONDS

    def prepare(
        self,
        plan: ServingPlan,
        *,
        output: Path | None,
        data_dir: Path | None,  # noqa: ARG002 (the server opens it)
        resume: bool,
        options: Mapping[str, Any],
    ) -> LocalService:
        """Options: `run`, the directory of the run that is served; `model` and `data`, functions that it names."""
        run = Path(options[RUN]).resolve()
        RunDirectory.open(run, load_plan)  # refused before anything is made
        ServingFolder(run, plan.dealer, plan.clients, SecureRandomness())  # counts, made once, with the clients
        if not resume:
            directory = RunDirectory(RunDirectory.create(output, plan).path.resolve())
        elif output is None:
            raise PlanError("Resuming needs the directory of the service.", remedy="Give it as `output`.")
        else:
            directory = RunDirectory(output.resolve())
        facts = {RUN: str(run), **{name: options[name] for name in (MODEL, DATA) if options.get(name)}}
        return LocalService(directory, plan.parties, facts)

    def questions(self, plan: ServingPlan) -> tuple[str, ...]:
        return tuple(f"{plan.run}/{client}" for client in plan.clients)

    def handbook(self, plan: ServingPlan, places: Mapping[str, str]) -> str:
        return serving_handbook(plan, places)

    def warnings(self, plan: ServingPlan) -> tuple[str, ...]:
        return (
            "Answers can be copied, and a client that does not follow the protocol reads the whole model within some "
            f"parameters / outputs questions (line 14): each of {len(plan.clients)} clients has {plan.questions} ever.",
            f"{plan.dealer} deals: with the server it has a client's inputs and answers, with a client the model "
            "(line 17). It must belong to neither.",
            "Whoever made these kits has everybody's identity keys until the copies are deleted (line 17).",
            "The server learns who asks how many questions when; the administrator, how many there were (line 13).",
        )
