"""What a user wants to be told of a run while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bilateral.engine.plan import RunPlan
from bilateral.runs.rounds.result import RoundReport, RunResult


class Callback:
    """Override what is wanted: `bilateral.run(plan, callbacks=[Mine()])`.

    Whatever one raises ends the run after the round at hand, which is saved before anybody is told of it.
    """

    def on_start(self, plan: RunPlan, output: Path | None) -> None:
        """Before the first round, or before the first of those that a resumed run has left."""

    def on_round(self, report: RoundReport) -> None:
        """After a round. `report.metrics` are what was measured after it, and empty where nothing was."""

    def on_end(self, result: RunResult) -> None:
        """Of a run that is done, or that was asked to stop."""


@dataclass(frozen=True)
class Callbacks(Callback):
    """Several as one, told in their order."""

    those: Sequence[Callback] = ()

    def on_start(self, plan: RunPlan, output: Path | None) -> None:
        for one in self.those:
            one.on_start(plan, output)

    def on_round(self, report: RoundReport) -> None:
        for one in self.those:
            one.on_round(report)

    def on_end(self, result: RunResult) -> None:
        for one in self.those:
            one.on_end(result)
