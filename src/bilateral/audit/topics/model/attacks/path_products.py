"""Path products: what no scaling and no exchange of neurons changes, computed from received weights (ledger line 7).

From each input to each output: the sum over all paths of the product of the absolute weights on them. The factors of a
neuron cancel between the weights into it and those out of it, and a sum does not know in which order its neurons stand.

- an input is a channel of an image or a feature; every tap of a kernel is a path of its own, places are not told apart
- a channel that feeds several inputs of a flattened layer goes by all of them; branches add up where they meet again
- a BatchNorm divides a channel by its spread, and so by its factor if it has one (`norm_inputs = "scaled"`); here, by
  the size of the weights that make it
- biases, and weights of activations and of pooling, are left out

Formal guarantees (test_path_products.py): equal to the sum over listed paths; the same for every
draw of factors and exchange of neurons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.audit.topics.model.attacks.parameter_symmetry import canonical_factors, is_bias, unsupported
from bilateral.errors import UnsupportedLayerError
from bilateral.models.builder import Binding
from bilateral.models.scale_graph import ParameterLayout, ScaleGraph

_INPUT = 0
"""The place of whatever is neither scaled nor moved: the network's inputs."""


def without_path_products(graph: ScaleGraph) -> str:
    """Why this architecture has none; empty if it has."""
    try:
        _steps(graph)
    except UnsupportedLayerError as error:
        return str(error).removesuffix(error.remedy).strip()
    return ""


def path_products(graph: ScaleGraph, parameters: Tensor) -> Tensor:
    """Outputs x inputs, in float64. `parameters` are received ones, without the head's noise."""
    steps = _steps(graph)
    num_inputs = next(len(step.sources) for step in steps if step.reads_input)
    num_places = 1 + max(int(torch.cat([step.sources, step.targets]).max()) for step in steps)
    paths = torch.zeros(num_places, num_inputs, dtype=torch.float64)
    arrived, sizes = paths, canonical_factors(graph, parameters)
    for step in steps:
        incoming = torch.eye(num_inputs, dtype=torch.float64) if step.reads_input else paths[step.sources]
        weights = parameters[step.layout.slice].view(step.layout.shape).double().abs()
        if step.divides_by is not None:
            arrived = (weights.reshape(-1) / sizes[step.divides_by])[:, None] * incoming
        else:
            arrived = weights.reshape(*weights.shape[:2], -1).sum(2) @ incoming
        paths.index_add_(0, step.targets, arrived)
    return arrived


@dataclass(frozen=True)
class _Step:
    """One layer: the places it reads and the places it adds to. A place is a neuron at one scale.

    `divides_by`: of a BatchNorm, the scale classes of its channels.
    """

    layout: ParameterLayout
    sources: Tensor
    targets: Tensor
    divides_by: Tensor | None = None

    @property
    def reads_input(self) -> bool:
        return bool((self.sources == _INPUT).all())


def _steps(graph: ScaleGraph) -> tuple[_Step, ...]:
    """The layers up to the head in the order of the module, which must be the order in which they are computed."""
    reason = unsupported(graph)
    if reason:
        raise UnsupportedLayerError(f"{reason}.", remedy="Leave the path products of this network out.")
    found = []
    for layout in graph.parameters:
        binding = layout.binding
        if binding is None or binding.numerator is None or is_bias(layout) or layout.name == graph.head_weight.name:
            continue
        found.append(_step(graph, layout, binding))
    head = graph.head_weight
    assert head.binding is not None
    steps = _numbered([*found, _step(graph, head, head.binding)])
    _check_order(steps)
    return steps


def _step(graph: ScaleGraph, layout: ParameterLayout, binding: Binding) -> _Step:
    """With places as pairs of a scale class and a neuron: residual sums tie both, a BatchNorm the neuron alone."""
    num_neurons = graph.cells.num_neurons
    assert binding.numerator is not None
    assert binding.outputs is not None
    targets = binding.numerator.reshape(-1) * num_neurons + binding.outputs.neuron
    if binding.inputs is not None:
        assert binding.denominator is not None
        denominator = binding.denominator.reshape(binding.denominator.shape[0], -1)[0]
        return _Step(layout, denominator * num_neurons + binding.inputs.neuron, targets)
    before = next((s for s in graph.statistics if f"{s.module}.weight" == layout.name), None)
    if before is None:
        raise _refuse(layout, "normalises each sample by itself, and by several channels at once")
    classes = before.scale_classes.reshape(-1)
    return _Step(layout, classes * num_neurons + before.axis.neuron, targets, classes)


def _numbered(steps: Sequence[_Step]) -> tuple[_Step, ...]:
    """Places as consecutive numbers; the input stays 0."""
    used = torch.unique(torch.cat([torch.tensor([_INPUT]), *(t for s in steps for t in (s.sources, s.targets))]))
    return tuple(
        _Step(s.layout, torch.searchsorted(used, s.sources), torch.searchsorted(used, s.targets), s.divides_by)
        for s in steps
    )


def _check_order(steps: Sequence[_Step]) -> None:
    written: set[int] = set()
    widths = {len(step.sources) for step in steps if step.reads_input}
    for step in steps:
        sources, targets = step.sources.tolist(), step.targets.tolist()
        if not step.reads_input and not written.issuperset(sources):
            raise _refuse(step.layout, "reads inputs beside other values, or what no layer before it makes")
        if step is not steps[-1] and (_INPUT in targets or len(set(targets)) < len(targets)):
            raise _refuse(step.layout, "has outputs that nothing tells apart")
        written.update(targets)
    if len(widths) != 1:
        raise _refuse(steps[0].layout, f"is one of several layers that read the inputs in {len(widths)} shapes")


def _refuse(layout: ParameterLayout, reason: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"`{layout.name}` {reason}: there are no path products through it.",
        remedy="Leave the path products of this network out.",
    )
