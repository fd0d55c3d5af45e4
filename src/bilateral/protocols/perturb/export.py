"""Inference export (spec 1.6): parameters that predict exactly like the true ones, and are not the true ones.

Scale factors and permutation as in training, but no additive noise: whoever holds the export gets true predictions
and parameters that are known only up to the network's symmetries.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.secrets import draw_scaling
from bilateral.protocols.statistics import scaled_buffers
from bilateral.randomness import Randomness


def perturbed_state(
    model: nn.Module,
    graph: ScaleGraph,
    randomness: Randomness,
    *,
    scale_range: tuple[float, float] = (0.25, 4.0),
    permute: bool = True,
) -> dict[str, Tensor]:
    """A state dict for a module of the same architecture, in evaluation mode."""
    factors, exchange = draw_scaling(graph, scale_range, permute, randomness, exact_eps=True)
    named = dict(model.named_parameters())
    plain = graph.flatten(named, torch.float64)
    perturbed = graph.unflatten((graph.ratio(factors) * plain)[graph.source(exchange)])
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    canonical = {id(p): name for name, p in reversed(list(model.named_parameters()))}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        state[name] = perturbed[canonical[id(parameter)]].to(parameter.dtype)
    state.update(scaled_buffers(model, graph, factors, exchange))
    return state
