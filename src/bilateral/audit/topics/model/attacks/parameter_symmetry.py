"""What scaling and permutation of a network leave alone: its canonical form (ledger line 7; `path_products` as well).

Every scale class is divided out by the size of the weights that make it (`canonical`): two members of a family of
parameters that compute the same function have the same canonical form, up to the order of neurons. `follow` finds that
order between two of them, layer by layer from the inputs, whose places nobody can change.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from bilateral.models.scale_graph import ParameterLayout, ScaleGraph, positions


def unsupported(graph: ScaleGraph) -> str:
    """Why neurons of this architecture cannot be followed; empty if they can."""
    for layout in graph.parameters:
        binding = layout.binding
        if binding is not None and binding.inputs is not None and (binding.groups != 1 or binding.transposed):
            return f"`{layout.name}` is a grouped or transposed convolution"
    return ""


def is_bias(layout: ParameterLayout) -> bool:
    """Biases begin no scale of their own, and may be zero. Weights of normalisation layers do begin one."""
    return layout.binding is not None and layout.binding.inputs is None and layout.name.endswith("bias")


def canonical_factors(graph: ScaleGraph, parameters: Tensor) -> Tensor:
    """A size for every scale class: of the weights into it, with the classes before them divided out. Class 0 is 1."""
    sizes = torch.zeros(graph.num_scale_classes, dtype=torch.float64)
    sizes[0] = 1.0
    for layout in graph.parameters:
        binding = layout.binding
        if binding is None or binding.numerator is None or is_bias(layout):
            continue
        values = parameters[layout.slice].view(layout.shape).double()
        if binding.denominator is not None:
            known = sizes[binding.denominator]
            values = values * torch.where(known > 0, known, 1.0)
        above = binding.numerator.expand(layout.shape).reshape(-1)
        found = torch.zeros_like(sizes).index_add_(0, above, values.reshape(-1).square()).sqrt()
        sizes = torch.where(sizes > 0, sizes, found)
    return torch.where(sizes > 0, sizes, 1.0)


def canonical(graph: ScaleGraph, parameters: Tensor) -> Tensor:
    """The member of the family whose weights into every neuron have length 1, in float64."""
    return parameters.double() / graph.ratio(canonical_factors(graph, parameters))


def follow(graph: ScaleGraph, before: Tensor, after: Tensor) -> Tensor:
    """An exchange of neurons: at neuron n's place in `after` stands what `before` has at the place of `follow[n]`.

    Both are parameters of one network at different times, each scaled and permuted. What no weight tells apart stays.
    """
    old, new = canonical(graph, before), canonical(graph, after)
    exchange = torch.arange(graph.cells.num_neurons)
    known = ~_movable(graph)
    for layout in graph.parameters:
        binding = layout.binding
        if binding is None or binding.inputs is None or binding.outputs is None:
            continue
        neurons = binding.outputs.neuron
        rows = torch.nonzero(~known[neurons])[:, 0]
        if len(rows) == 0:
            continue
        columns = positions(binding.inputs, exchange)
        there = _unit(old[layout.slice].view(layout.shape)[:, columns][rows])
        here = _unit(new[layout.slice].view(layout.shape)[rows])
        _, partner = linear_sum_assignment((-here @ there.T).numpy())
        exchange[neurons[rows]] = neurons[rows[torch.from_numpy(partner)]]
        known[neurons[rows]] = True
    return exchange


def first_layer_neurons(graph: ScaleGraph) -> Tensor:
    """Neurons that read the input itself."""
    for layout in graph.parameters:
        if layout.binding is not None and layout.binding.inputs is not None and layout.binding.outputs is not None:
            return layout.binding.outputs.neuron
    return torch.zeros(0, dtype=torch.int64)


def _movable(graph: ScaleGraph) -> Tensor:
    movable = torch.zeros(graph.cells.num_neurons, dtype=torch.bool)
    for cell in graph.cells.free_cells:
        movable[cell] = True
    return movable


def _unit(rows: Tensor) -> Tensor:
    flat = rows.flatten(1)
    lengths: Tensor = flat.norm(dim=1, keepdim=True)
    return flat / lengths.clamp_min(1e-30)
