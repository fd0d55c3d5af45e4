"""The scale graph: everything the server needs to know of an architecture to perturb it exactly.

For a module of supported layers, `ScaleGraph.of(model, example_input)` finds which scale factors and which channel
permutations leave the network's function unchanged, and how each parameter follows them (protocol section 1.1, 1.7):

    perturbed[i] = ratio[source[i]] * plain[source[i]]          ratio = scale[numerator] / scale[denominator]

Both the ratio and the source index are flat vectors over all parameters, so that perturbing is one gather and one
product and recovering a gradient is the transpose of that.

Formal guarantee (tests/models/test_scale_graph.py): for every draw of positive scale factors and exchange of
neurons, the module with perturbed parameters computes the same function as the module with plain ones, up to
rounding. With `norm_inputs = "scaled"` it does so up to the `eps` of normalisation layers too, which acts as
`eps / scale^2` there; by default what enters them has factor 1 (docs/decisions/0003).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from bilateral.arguments import checked
from bilateral.errors import PlanError
from bilateral.models.builder import Axis, Binding, Grouping, NormInputs
from bilateral.models.factor_relations import Derived
from bilateral.models.flat_maps import FlatMaps
from bilateral.models.identities import UnionFind
from bilateral.models.layout import BatchNormLayer, FlatParameter, ModelLayout
from bilateral.models.permutation import NeuronCells, find_cells
from bilateral.models.tracing import Walk, walk

_LARGE: Final = 1_000_000


@dataclass(frozen=True)
class ParameterLayout(FlatParameter):
    """One parameter: where it lies in the flat vector, which scale classes it has, how it moves."""

    kind: str
    binding: Binding | None
    pin_reasons: tuple[str, ...]


@dataclass(frozen=True)
class StatisticsLayout(BatchNormLayer):
    """A BatchNorm layer, with the scale classes and neurons of its channels."""

    scale_classes: Tensor
    axis: Axis


@dataclass(frozen=True)
class ScaleGraph(ModelLayout):
    """Scale classes, neurons and parameter layouts of one architecture. Immutable; holds no secrets.

    Frozen parameters are in it: they are disguised with the others, so they travel.
    """

    parameters: tuple[ParameterLayout, ...]
    statistics: tuple[StatisticsLayout, ...]
    num_scale_classes: int
    normalised_classes: Tensor
    per_sample_norm_classes: Tensor
    """Classes that enter a GroupNorm or LayerNorm: unlike BatchNorm's, their eps cannot be absorbed at export."""
    cells: NeuronCells
    head: str
    head_input_classes: Tensor
    norm_inputs: NormInputs = "exact"
    derived: Derived = field(default_factory=Derived.none)
    """Classes whose factor is a product of others'."""
    vocabulary: Tensor | None = None
    """Of a network of integers: what each input of a sample stays below. None where inputs are real numbers."""

    @staticmethod
    @checked
    def of(model: nn.Module, example_input: Tensor, *, norm_inputs: NormInputs = "exact") -> ScaleGraph:
        """Analyse `model`. Of `example_input`, which has a batch dimension, only shape and type matter.

        `norm_inputs`: exact gives factor 1 to what enters a normalisation layer; scaled gives it secret ones as well,
        and the layer's eps acts as eps / scale^2: another network than the plain one, another one every round.
        """
        found = walk(model, example_input, norm_inputs)
        return _compress(found, model)

    @property
    def num_free_factors(self) -> int:
        """Secret factors that are drawn, and not computed from others."""
        return self.num_scale_classes - 1 - len(self.derived.targets)

    @property
    def head_weight(self) -> ParameterLayout:
        return self.layout(f"{self.head}.weight")

    @property
    def head_bias(self) -> ParameterLayout | None:
        name = f"{self.head}.bias"
        return next((p for p in self.parameters if p.name == name), None)

    def layout(self, name: str) -> ParameterLayout:
        return next(p for p in self.parameters if p.name == name)

    @cached_property
    def _maps(self) -> FlatMaps:
        return FlatMaps(
            [(p.offset, p.shape, p.binding) for p in self.parameters],
            [(s.scale_classes, s.axis) for s in self.statistics if s.tracked],
        )

    def ratio(self, scale_factors: Tensor) -> Tensor:
        """perturbed / plain for every element, in the plain order."""
        return self._maps.ratio(scale_factors)

    def source(self, exchange: Tensor) -> Tensor:
        """For every element of the perturbed vector, the index of the plain element that stands there."""
        return self._maps.source(exchange)

    def move_back(self, vector: Tensor, source: Tensor, exchange: Tensor) -> Tensor:
        """The inverse of `plain[source]`: each element of a perturbed vector back to its plain place."""
        if len(vector) < _LARGE:
            return torch.empty_like(vector).scatter_(0, source, vector)
        # torch scatters on one core and gathers on all: for large models the inverse map pays.
        return vector.index_select(0, self.source(torch.argsort(exchange)))

    def unscale(self, statistics: Tensor, scale_factors: Tensor, exchange: Tensor) -> Tensor:
        """Batch statistics from scaled and permuted channels to plain ones: mean / s, variance / s^2, in order."""
        return self._maps.unscale(statistics, scale_factors, exchange)


def traced(layout: ModelLayout) -> ScaleGraph:
    """The layout of a model that was traced, which whoever asks for this asked for beforehand."""
    if not isinstance(layout, ScaleGraph):
        raise PlanError(
            "The scale graph of a model was asked for that was not traced.",
            remedy="Let the protection's traits say `needs_trace=True`.",
        )
    return layout


def positions(axis: Axis, exchange: Tensor) -> Tensor:
    """For each place along an axis, the plain place of the neuron (in the same role) that `exchange` puts there."""
    stride = int(axis.role.max()) + 1 if axis.role.numel() else 1
    plain = axis.neuron * stride + axis.role
    moved = exchange[axis.neuron] * stride + axis.role
    result = torch.empty_like(plain)
    result[torch.argsort(moved, stable=True)] = torch.argsort(plain, stable=True)
    return result


def _compress(found: Walk, model: nn.Module) -> ScaleGraph:
    """Replace class numbers by consecutive representatives and lay the parameters out in one vector."""
    builder = found.builder
    normalised = [s.reshape(-1) for s in builder.normalised_scales]
    builder.scales.settle(torch.cat(normalised) if normalised else None)
    scale_of, num_scales = _consecutive(builder.scales)
    neuron_of, num_neurons = _consecutive(builder.neurons)

    def compress(axis: Axis) -> Axis:
        return Axis(neuron_of[axis.neuron], axis.role)

    shapes = {n: p.shape for n, p in model.named_parameters()}
    layouts, offset = [], 0
    for name in found.parameter_names:
        raw = builder.bindings.get(name)
        binding = None
        if raw is not None:
            binding = Binding(
                raw.kind,
                None if raw.numerator is None else scale_of[raw.numerator],
                None if raw.denominator is None else scale_of[raw.denominator],
                None if raw.outputs is None else compress(raw.outputs),
                None if raw.inputs is None else compress(raw.inputs),
                raw.groups,
                raw.transposed,
            )
        kind = raw.kind if raw is not None else "unused"
        layout = ParameterLayout(name, shapes[name], offset, kind, binding, _pin_reasons(builder.scales, raw))
        layouts.append(layout)
        offset += layout.numel
    cells = find_cells(
        num_neurons,
        [compress(axis) for axis in builder.axes],
        [compress(axis) for axis in builder.producers],
        [Grouping(g.num_groups, tuple(compress(side) for side in g.sides)) for g in builder.groupings],
    )

    def classes(scales: Sequence[Tensor]) -> Tensor:
        joined = [scale_of[s.reshape(-1)] for s in scales]
        return torch.unique(torch.cat(joined)) if joined else torch.zeros(0, dtype=torch.int64)

    head_input = found.head_inputs.ids
    powers = [
        (int(scale_of[target]), int(scale_of[source]), float(power))
        for target, row in sorted(builder.scales.derived().items())
        for source, power in sorted(row.items())
    ]
    return ScaleGraph(
        parameters=tuple(layouts),
        statistics=tuple(
            StatisticsLayout(s.module, len(s.scale), s.tracked, scale_of[s.scale], compress(s.axis))
            for s in builder.statistics
        ),
        num_scale_classes=num_scales,
        normalised_classes=classes(builder.normalised_scales),
        per_sample_norm_classes=classes(builder.per_sample_norm_scales),
        cells=cells,
        head=found.head,
        num_outputs=found.num_outputs,
        head_input_classes=scale_of[head_input.scale[0]],
        input_shape=found.input_shape,
        kept_in_evaluation=found.kept_in_evaluation,
        norm_inputs=builder.norm_inputs,
        derived=Derived.of(powers),
        vocabulary=found.vocabulary,
    )


def _consecutive(forest: UnionFind) -> tuple[Tensor, int]:
    representatives, numbers = np.unique(forest.roots(), return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), len(representatives)


def _pin_reasons(scales: UnionFind, binding: Binding | None) -> tuple[str, ...]:
    if binding is None:
        return ("the network does not use it",)
    classes: Sequence[Tensor] = [t for t in (binding.numerator, binding.denominator) if t is not None]
    items = torch.unique(torch.cat([t.reshape(-1) for t in classes])).tolist() if classes else []
    reasons = {scales.reason_for_pin(i) for i in items} - {""}
    return tuple(sorted(reasons))
