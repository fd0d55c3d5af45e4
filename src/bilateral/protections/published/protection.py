"""P2's scheme (docs/decisions/0010-published-ddp.md) as a protection of a run."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.base import Rule
from bilateral.protections.groundwork import Groundwork, Plan
from bilateral.protections.published.as_published import AsPublished
from bilateral.protections.published.sides import published_sides
from bilateral.protections.sides import Sides
from bilateral.protections.traits import Traits
from bilateral.protocols.noise.published_model import PublishedModel, published_settings
from bilateral.protocols.perturb.scheme import term_names


class Published(AsPublished):
    """Noise of clients that is Gaussian with the server's factors only, and noise that cancels between them."""

    name = "published"
    refused = (
        *AsPublished.refused,
        Rule(
            "published noise of a single client",
            lambda mix: mix.num_participants < 2,
            "there is no neighbour to share noise with",
            "Use two clients or more a round.",
        ),
    )

    def traits(self, plan: Plan, below: Traits) -> Traits:
        return replace(super().traits(plan, below), needs_full_sum=True, expands_network=True, noise_line=4)

    def term_names(self, plan: Plan, loss: str, below: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG002
        return term_names(published_settings(plan.perturbation.partitions))

    def client_network(self, network: nn.Module, graph: ScaleGraph, examples: Tensor) -> tuple[nn.Module, ScaleGraph]:
        """With transitional layers."""
        expanded = PublishedModel.of(network, graph, examples)
        return expanded.model, expanded.graph

    def sides(self, around: Groundwork) -> Sides:
        return published_sides(around)
