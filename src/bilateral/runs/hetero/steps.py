"""The stages of a heterogeneous run: which there are, what each costs, and where a client is among its own.

A client has 1 + 2 x iterations stages: it trains; in every iteration it asks, then it retrains. How many of them are
done, client by client, is all that there is to know about where a run is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bilateral.runs.hetero.plan import HeteroPlan

StageKind = Literal["train", "ask", "retrain"]
_WORK_OF_AN_ANSWER = {"plain": 0.3, "secure": 10.0}
"""Of one prediction, in sample passes of a training (forward and backward)."""


@dataclass(frozen=True)
class Stage:
    """One client's part of one step. `work` is a rough number of sample passes, for the time left."""

    kind: StageKind
    client: str
    iteration: int
    work: float

    def __str__(self) -> str:
        if self.kind == "train":
            return f"{self.client} trains"
        verb = "asks" if self.kind == "ask" else "retrains"
        return f"{self.client} {verb}, iteration {self.iteration}"

    @property
    def own_index(self) -> int:
        """Which of its client's stages this is, from 0."""
        return 2 * self.iteration - (self.kind == "ask")


@dataclass(frozen=True)
class Step:
    """The same stage of one client, or of several at the same time."""

    kind: StageKind
    iteration: int
    clients: tuple[str, ...]


def step_of(own_index: int, clients: tuple[str, ...]) -> Step:
    """The stage with this number, as a step of these clients."""
    kind: StageKind = "train" if own_index == 0 else "ask" if own_index % 2 else "retrain"
    return Step(kind, (own_index + 1) // 2, clients)


def num_stages(plan: HeteroPlan) -> int:
    """Of one client."""
    return 1 + 2 * plan.iterations


def asking_stage(iteration: int) -> int:
    """How many stages a client has done when it is about to ask; it has retrained before, or trained alone."""
    return 2 * iteration - 1


def num_measured(stage: int) -> int:
    """How often a client was measured in its first `stage` stages."""
    return (stage + 1) // 2


def waits_for_retraining(stage: int) -> bool:
    """Has a client asked, after so many stages, and not learned from the answers yet?"""
    return stage > 0 and stage % 2 == 0


def stages_of(plan: HeteroPlan, num_samples: Mapping[str, int]) -> list[Stage]:
    """All stages of a run, in order."""
    training, retraining = plan.training, plan.retraining
    stages = [Stage("train", name, 0, training.epochs * count) for name, count in num_samples.items()]
    for iteration in range(1, plan.iterations + 1):
        for name in num_samples:
            answers = plan.queries.number * plan.num_answerers
            stages.append(Stage("ask", name, iteration, _WORK_OF_AN_ANSWER[plan.answers] * answers))
        for name, count in num_samples.items():
            passes = retraining.epochs * (count + plan.queries.number)
            most = passes if retraining.max_steps is None else retraining.max_steps * retraining.batch_size
            stages.append(Stage("retrain", name, iteration, min(passes, most)))
    return stages
