"""What there is to tell of a heterogeneous run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bilateral.protocols.guarantee import Guarantee
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.steps import Stage

AVERAGE = "average"


@dataclass(frozen=True)
class HeteroProgress:
    """Where a run is: so much of its work done, so many stages of all, and the stage at hand (None at the end)."""

    share_done: float
    stages_done: int
    num_stages: int
    stage: Stage | None
    metrics: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def num_done(self) -> int:
        return self.stages_done

    @property
    def num_steps(self) -> int:
        return self.num_stages

    def __str__(self) -> str:
        count = f"stage {min(self.stages_done + 1, self.num_stages)} of {self.num_stages}"
        return f"{count}: {self.stage}" if self.stage is not None else "done"


@dataclass(frozen=True)
class ClientOutcome:
    """One client. `accuracies`: trained alone, then after every iteration so far. `queries`: asked an iteration."""

    name: str
    architecture: str
    num_samples: int
    accuracies: tuple[float, ...]
    queries: int | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "client": self.name,
            "architecture": self.architecture,
            "samples": self.num_samples,
            "queries": self.queries,
            "accuracies": list(self.accuracies),
        }


@dataclass(frozen=True)
class HeteroResult:
    """A finished (or interrupted) run."""

    plan: HeteroPlan
    dataset: str
    clients: tuple[ClientOutcome, ...]
    guarantee: Guarantee
    seconds: float
    stages_done: int
    num_stages: int
    output: Path | None

    @property
    def finished(self) -> bool:
        return self.stages_done == self.num_stages

    def rows(self) -> list[dict[str, Any]]:
        """A row an architecture (means over its clients), and one for all clients."""
        groups: dict[str, list[ClientOutcome]] = {}
        for client in self.clients:
            groups.setdefault(client.architecture, []).append(client)
        return [self._row(name, group) for name, group in groups.items()] + [self._row(AVERAGE, self.clients)]

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows(),
            "clients": [client.as_dict() for client in self.clients],
            "answers": self.plan.answers,
            "guarantee": self.guarantee.as_dict(),
            "iterations": self.plan.iterations,
            "answerers": self.plan.num_answerers,
            "stages_done": self.stages_done,
            "stages": self.num_stages,
            "finished": self.finished,
            "seconds": round(self.seconds, 3),
            "output": str(self.output) if self.output else None,
        }

    def _row(self, architecture: str, group: Sequence[ClientOutcome]) -> dict[str, Any]:
        plan = self.plan
        asked = _mean([client.queries for client in group])
        return {
            "dataset": self.dataset,
            "clients": len(group),
            "architecture": architecture,
            "method": plan.queries.pool,
            "queries": None if asked is None else round(asked),
            "fraction": plan.queries.fraction,
            "accuracy_before": _mean([_at(client.accuracies, 0) for client in group]),
            "accuracy_after": _mean([_at(client.accuracies, plan.iterations) for client in group]),
            "seed": plan.seed,
            "alpha": plan.data.alpha if plan.data.partition == "dirichlet" else None,
            "selection": plan.queries.selection,
            "normalisation": plan.queries.normalisation,
        }


def _at(values: Sequence[float], index: int) -> float | None:
    return values[index] if index < len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    """Of all values; None if one is not there yet."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
