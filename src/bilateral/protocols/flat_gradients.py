"""Gradients of one graph, written straight into flat rows.

Autograd makes every gradient in memory of its own. With the large Linear layers of AlexNet or VGG that is the whole
model again for each term, mapped, zeroed, copied into the upload and given back: half of a client's step. Here autograd
is asked for the gradient `g` at such a layer's outputs instead, and the weight's gradient `g^T x` is computed in its
place, by the same matrix product that autograd would have used.

Which weights those are is read off the graph that a forward pass left, not off the modules: a weight that is used in
any other way as well, or twice, is left to autograd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

DIRECT_VALUES = 1 << 20
"""Weights from this size on are computed in place; below, the allocator keeps the memory at hand."""
_PRODUCTS = {"AddmmBackward0": ("_saved_mat1", 2), "MmBackward0": ("_saved_self", 1)}
"""What a Linear layer leaves in the graph, with and without a bias: where its input and its weight are."""


@dataclass(frozen=True)
class _Product:
    """A Linear layer in the graph: where the gradient at its outputs is found, and its inputs."""

    outputs: GradientEdge
    inputs: Tensor


class FlatGradients:
    """Gradients of `root` at `parameters`, laid end to end. `given`: parameters that the caller brings himself."""

    def __init__(self, root: Tensor, parameters: Sequence[nn.Parameter], given: Sequence[Tensor] = ()) -> None:
        self._root = root
        self._parameters = parameters
        wanted = {p for p in parameters if p.requires_grad}.difference(given) if root.requires_grad else set()
        self._products = _large_products(root, [p for p in wanted if p.numel() >= DIRECT_VALUES])
        self._others: list[Tensor] = [p for p in parameters if p in wanted and p not in self._products]

    def write(self, row: Tensor, cotangent: Tensor | None, given: Mapping[Tensor, Tensor], *, last: bool) -> None:
        """Fill `row`; a parameter without a gradient (frozen, or not used) has gradient 0. `last` frees the graph."""
        edges = [product.outputs for product in self._products.values()]
        found: Sequence[Tensor | None] = ()
        if edges or self._others:
            inputs: list[Any] = [*self._others, *edges]
            found = torch.autograd.grad(self._root, inputs, cotangent, retain_graph=not last, allow_unused=True)
        gradients = dict(zip(self._others, found, strict=False)) | dict(given)
        at_outputs = dict(zip(self._products, found[len(self._others) :], strict=True))
        for p, target in self._places(row):
            gradient = gradients.get(p) if p.requires_grad else None
            at_output = at_outputs.get(p)
            if at_output is not None:
                torch.mm(at_output.t(), self._products[p].inputs, out=target)
            elif gradient is not None:
                target.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            else:
                target.zero_()

    def _places(self, row: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        offset = 0
        for p in self._parameters:
            yield p, row[offset : offset + p.numel()].view(p.shape)
            offset += p.numel()


def _large_products(root: Tensor, weights: Sequence[nn.Parameter]) -> dict[nn.Parameter, _Product]:
    """Of `weights`, those that are nothing but the weight of one Linear layer on a batch of vectors."""
    if not weights:
        return {}
    nodes, uses = _graph_below(root)
    wanted = {id(p): p for p in weights}
    found: dict[nn.Parameter, _Product] = {}
    for node in nodes:
        if node.name() not in _PRODUCTS:
            continue
        inputs_name, place = _PRODUCTS[node.name()]
        transposed, _ = node.next_functions[place]
        if transposed is None or transposed.name() != "TBackward0" or uses[transposed] != 1:
            continue
        leaf, _ = transposed.next_functions[0]
        weight = wanted.get(id(getattr(leaf, "variable", None)))
        if weight is None or uses[leaf] != 1 or getattr(node, "_saved_alpha", 1) != 1:
            continue
        inputs = getattr(node, inputs_name).detach()
        if weight._backward_hooks:  # autograd calls them
            continue
        if inputs.dtype == weight.dtype and inputs.layout == torch.strided and weight.is_contiguous():
            found[weight] = _Product(GradientEdge(node, 0), inputs)
    return found


def _graph_below(root: Tensor) -> tuple[list[Any], Counter[Any]]:
    """All nodes, and how often the output of each is used."""
    nodes: list[Any] = [root.grad_fn]
    uses: Counter[Any] = Counter()
    seen = set(nodes)
    for node in nodes:  # grows while it is walked
        for below, _ in node.next_functions:
            if below is None:
                continue
            uses[below] += 1
            if below not in seen:
                seen.add(below)
                nodes.append(below)
    return nodes, uses
