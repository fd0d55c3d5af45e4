"""What perturbation would hide of a model, layer by layer: the answer to `bilateral inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bilateral.arguments import checked
from bilateral.models.builder import NormInputs
from bilateral.models.scale_graph import ParameterLayout, ScaleGraph


@dataclass(frozen=True)
class ParameterCoverage:
    """One parameter: how many of its elements carry a secret factor, how many can change place, and why not."""

    name: str
    kind: str
    shape: tuple[int, ...]
    num_elements: int
    num_scaled: int
    num_moved: int
    remark: str

    @property
    def num_clear(self) -> int:
        """Elements whose value a client reads as it is (it may not know where they belong, if they moved)."""
        return self.num_elements - self.num_scaled


@dataclass(frozen=True)
class Coverage:
    """The coverage of a whole model."""

    rows: tuple[ParameterCoverage, ...]
    num_scale_factors: int
    num_hidden_channels: int
    num_movable_channels: int
    head: str
    num_outputs: int

    @property
    def num_parameters(self) -> int:
        return sum(row.num_elements for row in self.rows)

    @property
    def fraction_clear(self) -> float:
        """Share of all parameters whose value a client sees."""
        return sum(row.num_clear for row in self.rows) / max(1, self.num_parameters)

    def as_dict(self) -> dict[str, Any]:
        return {
            "head": self.head,
            "outputs": self.num_outputs,
            "parameters": self.num_parameters,
            "fraction_clear": self.fraction_clear,
            "scale_factors": self.num_scale_factors,
            "hidden_channels": self.num_hidden_channels,
            "movable_channels": self.num_movable_channels,
            "rows": [
                {
                    "name": row.name,
                    "kind": row.kind,
                    "shape": list(row.shape),
                    "elements": row.num_elements,
                    "scaled": row.num_scaled,
                    "movable": row.num_moved,
                    "clear": row.num_clear,
                    "remark": row.remark,
                }
                for row in self.rows
            ],
        }


def coverage(graph: ScaleGraph) -> Coverage:
    """The coverage of an analysed model."""
    movable = _movable_neurons(graph)
    return Coverage(
        rows=tuple(_row(graph, p, movable) for p in graph.parameters),
        num_scale_factors=graph.num_free_factors,
        num_hidden_channels=graph.cells.num_neurons - 1,
        num_movable_channels=graph.cells.num_movable,
        head=graph.head,
        num_outputs=graph.num_outputs,
    )


@checked
def inspect(model: nn.Module, example_input: Tensor, *, norm_inputs: NormInputs = "exact") -> Coverage:
    """What a client could and could not read of `model`; `example_input` has a batch dimension.

    `norm_inputs`: as `perturbation.norm_inputs` of the plan; see `ScaleGraph.of`.
    """
    return coverage(ScaleGraph.of(model, example_input, norm_inputs=norm_inputs))


def _movable_neurons(graph: ScaleGraph) -> Tensor:
    movable = torch.zeros(graph.cells.num_neurons, dtype=torch.bool)
    for cell in graph.cells.free_cells:
        movable[cell] = True
    for groups in graph.cells.exchangeable_groups:
        for group in groups:
            for cell in group:
                movable[cell] = movable[cell] | (len(groups) > 1 or len(cell) > 1)
    return movable


def _row(graph: ScaleGraph, p: ParameterLayout, movable: Tensor) -> ParameterCoverage:
    scaled = torch.zeros((), dtype=torch.bool)
    moved = torch.zeros(p.numel, dtype=torch.bool)
    if p.binding is not None:
        for classes in (p.binding.numerator, p.binding.denominator):
            if classes is not None:
                scaled = scaled | (classes != 0)
        moved = _moved_elements(p, movable)
    num_scaled = int(scaled.expand(p.shape).sum())
    remark = "; ".join(p.pin_reasons) if num_scaled < p.numel else ""
    if p.name == f"{graph.head}.weight":
        remark = "plus activation noise"
    elif p.name == f"{graph.head}.bias":
        remark = "clear with activation noise, hidden by offset noise"
    elif p.kind in ("PReLU weight", "channel factor", "factor"):
        remark = "no scale factor can act on it"
    return ParameterCoverage(p.name, p.kind, tuple(p.shape), p.numel, num_scaled, int(moved.sum()), remark)


def _moved_elements(p: ParameterLayout, movable: Tensor) -> Tensor:
    """Elements on a row or column whose channel can change places."""
    binding = p.binding
    assert binding is not None
    if binding.outputs is None:
        return torch.zeros(p.numel, dtype=torch.bool)
    rows = movable[binding.outputs.neuron]
    if binding.inputs is None:
        return rows
    columns = movable[binding.inputs.neuron]
    if binding.transposed:
        rows, columns = columns, rows
    per_group = len(columns) // binding.groups
    table = columns.reshape(binding.groups, 1, per_group).expand(-1, len(rows) // binding.groups, -1)
    either = rows[:, None] | table.reshape(len(rows), per_group)
    return either.reshape(len(rows), per_group, *[1] * (len(p.shape) - 2)).expand(p.shape).reshape(-1)
