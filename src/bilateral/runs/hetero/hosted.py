"""Heterogeneous runs whose parties are processes of their own, as their host sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bilateral.engine.remote.hosting import Quorum
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import PlanError
from bilateral.runs.hetero.parties import deal, make_client
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.record import HeteroRecord, PublicFacts
from bilateral.runs.hetero.result import HeteroProgress, HeteroResult

ANSWER_SECONDS = 600.0
"""How long a site may take to be there when a job begins: many processes start on few cores."""
FACTS = "facts"
"""The option with the `PublicFacts` of a run whose clients are elsewhere."""


@dataclass(frozen=True)
class LocalHetero:
    """A heterogeneous run on this machine."""

    plan: HeteroPlan
    directory: RunDirectory
    known: PublicFacts

    @property
    def sites(self) -> tuple[str, ...]:
        return self.plan.clients.names

    @property
    def facts(self) -> dict[str, Any]:
        return {FACTS: asdict(self.known)}

    def look(self) -> HeteroProgress:
        return self._record().progress()

    def result(self) -> HeteroResult:
        return self._record().result(self.directory.path)

    def _record(self) -> HeteroRecord:
        return HeteroRecord.load(self.plan, self.known, self.directory)


class HostedHetero:
    """What a host asks of a heterogeneous run; `KIND` is this and more."""

    def quorum(self, plan: HeteroPlan, num_members: int) -> Quorum:  # noqa: ARG002
        """Every site is needed."""
        return Quorum(num_members)

    def answer_seconds(self, plan: HeteroPlan) -> float:  # noqa: ARG002
        return ANSWER_SECONDS

    def prepare(
        self,
        plan: HeteroPlan,
        *,
        output: Path | None,
        data_dir: Path | None,
        resume: bool,
        options: Mapping[str, Any],  # noqa: ARG002 (it has none)
    ) -> LocalHetero:
        if plan.answers != "secure":
            raise PlanError(
                f"answers = {plan.answers!r} would show every query to the server.",
                remedy="Use secure answers, or --engine in-process.",
            )
        facts = _facts(plan, data_dir)
        if resume:
            if output is None:
                raise PlanError("Resuming needs the directory of the run.", remedy="Give it as `output`.")
            directory = RunDirectory(output.resolve())
            HeteroRecord.load(plan, facts, directory)  # refused before any process is started
        else:  # made only now: a plan or data that are refused leave nothing behind
            directory = RunDirectory(RunDirectory.create(output, plan).path.resolve())
            HeteroRecord(plan, facts).save(directory)  # a stop before the processes are up can be resumed too
        return LocalHetero(plan, directory, facts)


def _facts(plan: HeteroPlan, data_dir: Path | None) -> PublicFacts:
    """What the result names. Builds every client once, so that a plan or data that do not fit are refused here."""
    shares = deal(plan, data_dir)
    for name, share in shares.clients.items():
        make_client(plan, name, share, shares.num_classes)
    return PublicFacts(shares.dataset, {name: len(share) for name, share in shares.clients.items()})
