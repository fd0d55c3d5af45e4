"""The frozen, public front of a network: what no trained parameter comes before, and one value comes out of.

Everybody may know it, so whoever has the inputs computes it in the clear, and only the rest needs shares. It is used
as in evaluation: BatchNorm with its running statistics, dropout off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import TensorMetadata

_DROPOUTS: Final = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def end_of_front(graph: fx.GraphModule, traced_batch: int) -> int | None:
    """The place of the node whose value leaves the longest front; None if nothing in front has numbers of its own.

    A front does not end in dropout: what comes just before the trained layers stays theirs.
    """
    nodes = list(graph.graph.nodes)
    begin = next(place for place, node in enumerate(nodes) if node.op == "placeholder")
    end = next(place for place, node in enumerate(nodes) if node.op == "output" or _trains(graph, node))
    holding = [place for place in range(end) if _holds_numbers(graph, nodes[place])]
    cuts = [place for place in range(begin + 1, end) if _is_sample(nodes[place], traced_batch) and _alone(nodes, place)]
    cuts = [place for place in cuts if holding and place >= holding[0]]
    if not cuts:
        return None
    last = max(place for place in holding if place <= cuts[-1])
    dropouts = [place for place in range(last + 1, cuts[-1] + 1) if _drops(graph, nodes[place])]
    kept = [place for place in cuts if last <= place and not (dropouts and place >= dropouts[0])]
    return (kept or cuts)[-1]


class PublicFront(fx.GraphModule):
    """Calls up to a node, in evaluation mode always."""

    def train(self, mode: bool = True) -> PublicFront:
        del mode
        super().train(False)
        return self


def front_of(module: nn.Module, place: int) -> PublicFront:
    """The calls of `module` in evaluation up to the node at `place`. It shares the module's tensors."""
    traced = fx.symbolic_trace(module.eval())
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    nodes = list(traced.graph.nodes)[: place + 1]
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda source: copies[source])
    graph.output(copies[nodes[-1]])
    front = PublicFront(traced, graph, f"FrontOf{type(module).__name__}")
    front.requires_grad_(False)
    front.eval()
    return front


def _trains(graph: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return any(parameter.requires_grad for parameter in graph.get_submodule(str(node.target)).parameters())
    found = _attribute(graph, node)
    return isinstance(found, nn.Parameter) and found.requires_grad


def _holds_numbers(graph: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        module = graph.get_submodule(str(node.target))
        return any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    return isinstance(_attribute(graph, node), torch.Tensor)


def _attribute(graph: fx.GraphModule, node: fx.Node) -> object:
    if node.op != "get_attr":
        return None
    *path, name = str(node.target).split(".")
    return getattr(graph.get_submodule(".".join(path)), name)


def _drops(graph: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        module = graph.get_submodule(str(node.target))
        return isinstance(module, _DROPOUTS) and module.training
    return "dropout" in str(node.target) and node.op == "call_function"


def _is_sample(node: fx.Node, traced_batch: int) -> bool:
    """Its value is a batch of flat or image-shaped numbers."""
    found = node.meta.get("tensor_meta")
    if not isinstance(found, TensorMetadata) or not found.dtype.is_floating_point:
        return False
    return len(found.shape) in (2, 4) and found.shape[0] == traced_batch


def _alone(nodes: Sequence[fx.Node], place: int) -> bool:
    """Nothing behind it reads what came before it."""
    before = set(nodes[:place])
    return not any(source in before for node in nodes[place + 1 :] for source in node.all_input_nodes)
