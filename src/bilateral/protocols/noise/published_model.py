"""What both halves of P2's scheme know: the expanded network, its graph, and which noise each element needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.errors import ModelError
from bilateral.models.builder import NormInputs
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.transitional import expand, original_names
from bilateral.protocols.noise.published_factors import FactorPlan
from bilateral.protocols.perturb.settings import PerturbationSettings


def published_settings(num_partitions: int = 1, norm_inputs: NormInputs = "exact") -> PerturbationSettings:
    """P2's perturbation: squared error, noise in the head's weights, and no exchange of neurons.

    P2 gives every output a secret of its own (`num_partitions` = number of outputs); P1's basic form is 1.
    """
    return PerturbationSettings(
        loss="mse", noise="activation", num_partitions=num_partitions, permute=False, norm_inputs=norm_inputs
    )


@dataclass(frozen=True, repr=False)
class PublishedModel:
    """The expanded network beside the original one. Public but for the parameters' values."""

    model: nn.Module
    """Expanded; shares its parameters with the original."""
    graph: ScaleGraph
    original_graph: ScaleGraph
    factors: FactorPlan
    missing_halves: Tensor
    """For every element of the expanded vector, what the client supplies (see `FactorPlan`)."""
    trained: Tensor
    """Indices of the elements that get noise: of used, trained parameters, without the transitional layers."""
    original_place: Tensor
    """For every element of the expanded vector its index in the original one, or -1 (transitional layers)."""

    @staticmethod
    def of(model: nn.Module, graph: ScaleGraph, example_input: Tensor) -> PublishedModel:
        """`graph` is the scale graph of `model`; `example_input` has a batch dimension."""
        if len(graph.derived.targets) or graph.vocabulary is not None:
            raise ModelError(
                "The published noise is written for layers whose factors are drawn one by one: it knows no products of "
                "activations (attention, bilinear gates) and no tables (nn.Embedding).",
                remedy="Use noise.mechanism = 'sound', or a network without them.",
            )
        expanded = expand(model, example_input)
        wide = ScaleGraph.of(expanded, example_input, norm_inputs=graph.norm_inputs)
        factors = FactorPlan.of(wide)
        names = original_names(model, expanded)
        own = dict(expanded.named_parameters())
        place = torch.full((wide.num_parameters,), -1)
        trained = torch.zeros(wide.num_parameters, dtype=torch.bool)
        for layout in wide.parameters:
            trained[layout.slice] = own[layout.name].requires_grad and layout.binding is not None
            if layout.name in names:
                there = graph.layout(names[layout.name])
                place[layout.slice] = torch.arange(there.offset, there.offset + there.numel)
        return PublishedModel(
            expanded,
            wide,
            graph,
            factors,
            factors.missing_halves(wide),
            torch.nonzero(trained)[:, 0],
            place,
        )

    def to_original(self, vector: Tensor) -> Tensor:
        """A vector over the expanded network's parameters in the original's order (P2 Theorem 4); unused ones are 0."""
        known = self.original_place >= 0
        result = torch.zeros(self.original_graph.num_parameters, dtype=vector.dtype)
        return result.index_copy_(0, self.original_place[known], vector[known])
