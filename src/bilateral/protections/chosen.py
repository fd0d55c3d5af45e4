"""What the two names in a plan stand for, and what all its protections together are like."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from bilateral.errors import UnsoundPlanError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections import registry
from bilateral.protections.base import AnyModelProtection, ModelProtection, NoiseProtection, Protection
from bilateral.protections.groundwork import Groundwork, Plan
from bilateral.protections.sides import Sides
from bilateral.protections.traits import Traits


@dataclass(frozen=True)
class Chosen:
    """The protections of a plan, below its masks."""

    plan: Plan
    model: AnyModelProtection
    noise: NoiseProtection | None

    @staticmethod
    def by(plan: Plan) -> Chosen:
        return Chosen(plan, registry.protection_named(plan.protection), registry.mechanism_named(plan.noise.mechanism))

    @property
    def each(self) -> tuple[Protection, ...]:
        return (self.model,) if self.noise is None else (self.model, self.noise)

    @property
    def halves(self) -> ModelProtection:
        """The model's protection, where its clients are made each by itself: for noise, and for who plays them anew."""
        if not isinstance(self.model, ModelProtection):
            raise UnsoundPlanError(
                f"The clients of {self.model.name} are made with all that the parties agreed on, none by itself.",
                remedy="Choose another protection.",
            )
        return self.model

    @property
    def traits(self) -> Traits:
        below = self.model.traits(self.plan)
        return below if self.noise is None else self.noise.traits(self.plan, below)

    def sides(self, around: Groundwork) -> Sides:
        """Both sides below the masks."""
        return self.each[-1].sides(around)

    def term_names(self, loss: str) -> tuple[str, ...]:
        """The rows of an upload."""
        below = self.model.term_names(self.plan, loss)
        return below if self.noise is None else self.noise.term_names(self.plan, loss, below)

    def asks(self, loss: str) -> bool:
        """Whether clients ask the server in the middle of a round, which shows it their batch."""
        return self.model.asks(self.plan, loss)

    def client_network(self, network: nn.Module, graph: ScaleGraph, examples: Tensor) -> tuple[nn.Module, ScaleGraph]:
        """The network that clients train, and its graph."""
        return (network, graph) if self.noise is None else self.noise.client_network(network, graph, examples)
