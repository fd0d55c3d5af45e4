"""What protections are built from: a plan as far as they read it, and the public facts of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from pydantic import BaseModel
from torch import nn

from bilateral.errors import PlanError
from bilateral.learning.client import BatchSchedule, Schedule
from bilateral.learning.local_steps import LocalSchedule, LocalSettings
from bilateral.learning.problem import Member, Problem
from bilateral.learning.secrets import Secrets
from bilateral.models.layout import ModelLayout
from bilateral.models.scale_graph import ScaleGraph, traced
from bilateral.protections.sections import AggregationPlan, NoisePlan, PerturbationPlan
from bilateral.protections.sides import Seat
from bilateral.protections.traits import MaskName, Traits
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.objective import Objective
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.protocols.placement import Placement
from bilateral.protocols.workspace import Workspace
from bilateral.randomness import Randomness

if TYPE_CHECKING:  # a protection is built from a groundwork
    from bilateral.protections.chosen import Chosen


ROTATING: Final = "rotating"
"""What `federation.dealer` says where participants deal for each other."""


class TrainingSettings(Protocol):
    """`[training]`, as far as protections read it."""

    @property
    def rounds(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def loss(self) -> str: ...
    @property
    def augment(self) -> bool: ...
    @property
    def channels_last(self) -> bool | None: ...
    @property
    def local_settings(self) -> LocalSettings | None: ...
    def placement(self) -> Placement: ...


class FederationSettings(Protocol):
    """`[federation]`, as far as protections read it."""

    @property
    def participation(self) -> float: ...
    @property
    def dealer(self) -> str: ...

    def num_participants(self, num_clients: int, /) -> int: ...


class Plan(Protocol):
    """A plan, as far as protections read it."""

    @property
    def seed(self) -> int: ...
    @property
    def protection(self) -> str: ...
    @property
    def training(self) -> TrainingSettings: ...
    @property
    def federation(self) -> FederationSettings: ...
    @property
    def perturbation(self) -> PerturbationPlan: ...
    @property
    def aggregation(self) -> AggregationPlan: ...
    @property
    def noise(self) -> NoisePlan: ...
    @property
    def chosen(self) -> Chosen: ...
    @property
    def traits(self) -> Traits: ...
    @property
    def named_dealer(self) -> str | None: ...

    def masks(self, num_clients: int, /) -> MaskName: ...

    def own_settings(self, name: str, /) -> BaseModel:
        """The section of a protection's own (`Protection.settings`), or its defaults."""
        ...


@dataclass(frozen=True)
class ClientBasis:
    """What a client's half is built from."""

    name: str
    model: nn.Module
    layout: ModelLayout
    plan: Plan
    objective: Objective
    randomness: Randomness
    """The client's own."""
    clip: ClipSettings | None = None
    count_clipped: bool = False
    workspace: Workspace | None = None

    @property
    def graph(self) -> ScaleGraph:
        """Of a protection that needs a trace."""
        return traced(self.layout)

    @property
    def loss(self) -> str:
        """What is minimised, by its name."""
        return self.objective.name


@dataclass(frozen=True)
class Groundwork:
    """What every part of a stack is built from. All but `secrets` is public and the same in every process."""

    plan: Plan
    problem: Problem
    members: tuple[Member, ...]
    model: nn.Module
    """The architecture with the plan's initial weights. Nobody trains this one."""
    layout: ModelLayout
    """A `ScaleGraph` if the plan's protections need a trace."""
    secrets: Secrets

    @property
    def graph(self) -> ScaleGraph:
        """Of a plan whose protections need a trace (`Traits.needs_trace`)."""
        return traced(self.layout)

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    @property
    def num_participants(self) -> int:
        """Clients of a round, as planned."""
        return self.plan.federation.num_participants(len(self.members))

    @property
    def named_dealer(self) -> str | None:
        """A party without data that deals for all; None where nobody deals, or clients do so for each other."""
        return self.plan.named_dealer

    @property
    def sample_counts(self) -> list[int]:
        """Every member's number of samples; an error if one did not tell."""
        silent = [member.name for member in self.members if member.num_samples < 1]
        if silent:
            raise PlanError(
                f"This plan's accounting needs the number of samples of every client, and {', '.join(silent)} did not "
                "tell it.",
                remedy="Have every site tell it before the run is built (`needs_sample_counts`).",
            )
        return [member.num_samples for member in self.members]

    @property
    def perturbation(self) -> PerturbationSettings:
        return self.plan.perturbation.settings(self.problem.loss)

    @property
    def mask_settings(self) -> MaskSettings:
        """The plan's, with a floor: whoever fails to turn up, a sum has the threshold of the *planned* participants."""
        settings = self.plan.aggregation.settings()
        return replace(settings, min_in_sum=max(2, settings.threshold_of(self.num_participants)))

    def batch_schedule(self, seat: Seat) -> Schedule:
        """Which samples are used when is no secret here; noise that rests on sampling brings a schedule of its own."""
        batches = BatchSchedule(
            seat.num_samples, self.plan.training.batch_size, self.secrets.batches(self.plan.seed, seat.name)
        )
        local = self.plan.training.local_settings
        return batches if local is None else LocalSchedule(batches, local)

    def basis(self, seat: Seat, *, clip: ClipSettings | None = None, count_clipped: bool = False) -> ClientBasis:
        """What the half of the client in this seat is built from."""
        own = self.secrets.stream("client", seat.name)
        return ClientBasis(
            seat.name,
            self.model,
            self.layout,
            self.plan,
            self.problem.objective,
            own,
            clip,
            count_clipped,
            seat.workspace,
        )
