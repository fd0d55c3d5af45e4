"""What the layer rules write into while a network is walked: classes, parameter bindings, constraints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from bilateral.errors import UnsupportedLayerError
from bilateral.models.identities import Identities, UnionFind, digest_over, mix, numbered

NormInputs = Literal["exact", "scaled"]
"""Whether what enters a normalisation has factor 1, so that its eps acts as in the plain model, or a secret one."""


@dataclass(frozen=True)
class Value:
    """A tensor of the walked network: its shape (as a meta tensor) and the identities of its elements."""

    meta: Tensor
    ids: Identities
    version: int = 0
    """torch's count of in-place changes of `meta` when these identities were made."""

    @staticmethod
    def of(meta: Tensor, ids: Identities) -> Value:
        return Value(meta, ids, meta._version)

    @property
    def was_overwritten(self) -> bool:
        return self.meta._version != self.version


@dataclass(frozen=True)
class Parameter:
    """A parameter of the network at the place where it is used, by its canonical name."""

    name: str
    meta: Tensor


@dataclass(frozen=True)
class Site:
    """One call in the traced graph: how to speak of it, what it returns (meta), and its module path if it has one."""

    label: str
    output: Tensor
    path: str = ""

    def refuse(self, reason: str, remedy: str) -> UnsupportedLayerError:
        return UnsupportedLayerError(f"{self.label} cannot be protected: {reason}.", remedy=remedy)


def refuse_activations(site: Site, arguments: Any) -> None:
    """Refuse activations and parameters where a rule expects plain numbers."""

    def look(argument: Any) -> Any:
        if isinstance(argument, Value | Parameter):
            raise site.refuse(
                "one of its settings is itself an activation or a parameter", "Use a number, or write it as a layer."
            )
        return argument

    map_aggregate(arguments, look)


@dataclass(frozen=True)
class Axis:
    """The neurons (and their roles, numbered from 0) along one axis of a parameter."""

    neuron: Tensor
    role: Tensor

    @staticmethod
    def of(line: Identities) -> Axis:
        return Axis(line.neuron, numbered(line.role))

    def copies(self) -> Tensor:
        """How often the same neuron stood in the same role before, along the axis.

        Copies get parameters of their own, so behind such a layer they are no longer copies.
        """
        keys = (self.neuron * (len(self.role) + 1) + self.role).tolist()
        seen: Counter[int] = Counter()
        result = []
        for key in keys:
            result.append(seen[key])
            seen[key] += 1
        return torch.tensor(result, dtype=torch.int64)


@dataclass(frozen=True)
class Binding:
    """How one parameter follows the secrets.

    `perturbed = scale[numerator] / scale[denominator] * plain`, then elements are moved along the axes.
    A parameter with `inputs` is a matrix of `outputs` x `inputs` (or inputs x outputs if `transposed`) with trailing
    kernel dimensions and `groups`; one without is a flat list of `outputs`.
    """

    kind: str
    numerator: Tensor | None = None
    denominator: Tensor | None = None
    outputs: Axis | None = None
    inputs: Axis | None = None
    groups: int = 1
    transposed: bool = False


@dataclass(frozen=True)
class Grouping:
    """Channels that only meet inside their group: each side is an axis, cut into `num_groups` equal parts."""

    num_groups: int
    sides: tuple[Axis, ...]


@dataclass(frozen=True)
class Statistics:
    """A normalisation layer with running statistics: the classes of the channels that it normalises."""

    module: str
    scale: Tensor
    axis: Axis
    tracked: bool


@dataclass
class GraphBuilder:
    """Collects what the rules find out."""

    scales: UnionFind = field(default_factory=UnionFind)
    neurons: UnionFind = field(default_factory=UnionFind)
    bindings: dict[str, Binding] = field(default_factory=dict)
    binding_sites: dict[str, str] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    axes: list[Axis] = field(default_factory=list)
    producers: list[Tensor] = field(default_factory=list)
    groupings: list[Grouping] = field(default_factory=list)
    statistics: list[Statistics] = field(default_factory=list)
    normalised_scales: list[Tensor] = field(default_factory=list)
    per_sample_norm_scales: list[Tensor] = field(default_factory=list)
    norm_inputs: NormInputs = "exact"
    num_tokens: int = 0

    def token(self) -> Tensor:
        """A role's mark for one call of an operation."""
        self.num_tokens += 1
        return mix(torch.tensor(self.num_tokens))

    def fresh_channels(self, count: int) -> Identities:
        """New scale classes and new neurons for the outputs of a linear layer."""
        scale, neuron = self.scales.fresh(count), self.neurons.fresh(count)
        self.producers.append(neuron)
        return Identities(scale, neuron, torch.zeros((), dtype=torch.int64).expand(count))

    def channels(self, site: Site, value: Value, space_dims: int | None = None) -> Identities:
        """Identities of the channels of a (batch, channel, *space) value, made equal over batch and space."""
        if space_dims is not None and value.meta.dim() != space_dims + 2:
            raise site.refuse(
                f"it takes a (batch, channel, *{space_dims} of space) value, got shape {tuple(value.meta.shape)}, "
                "of which torch would take the batch for channels",
                "Give it a batch and a channel dimension (unsqueeze or view).",
            )
        if value.meta.dim() < 2:
            raise site.refuse(
                f"it needs a batch and a channel dimension, got shape {tuple(value.meta.shape)}",
                "Give the model inputs with a batch dimension.",
            )
        others = [d for d in range(value.meta.dim()) if d != 1]
        return self.uniform(site, value, others)

    def uniform(self, site: Site, value: Value, dims: Sequence[int]) -> Identities:
        """Merge classes over `dims`, and return what is left once those are dropped."""
        self.scales.merge_over(value.ids.scale, dims, f"mixed with a pinned value by {site.label}")
        self.neurons.merge_over(value.ids.neuron, dims, site.label)
        scale, neuron = value.ids.scale, value.ids.neuron
        for dim in sorted((d % value.meta.dim() for d in dims), reverse=True):
            scale, neuron = scale.select(dim, 0), neuron.select(dim, 0)
        return Identities(scale, neuron, digest_over(value.ids.role, dims))

    def bind(self, site: Site, parameter: Parameter | None, binding: Binding) -> None:
        """Record how a parameter is scaled and moved; a second use ties it to the first."""
        if parameter is None:
            return
        for axis in (binding.outputs, binding.inputs):
            if axis is not None:
                self.axes.append(axis)
        self.uses[parameter.name] += 1
        first = self.bindings.setdefault(parameter.name, binding)
        first_site = self.binding_sites.setdefault(parameter.name, site.label)
        if first is not binding:
            self._tie(site, parameter.name, first, first_site, binding)

    def _tie(self, site: Site, name: str, first: Binding, first_site: str, again: Binding) -> None:
        if first.kind != again.kind or first.groups != again.groups:
            raise site.refuse(
                f"its parameter `{name}` is shared with {first_site}, which uses it in another way",
                "Give the two layers parameters of their own.",
            )
        reason = f"`{name}` is shared between {first_site} and {site.label}"
        for mine, theirs in (
            (first.numerator, again.numerator),
            (first.denominator, again.denominator),
        ):
            if mine is not None and theirs is not None:
                self.scales.union(mine, theirs, reason)
        for axis, other in ((first.outputs, again.outputs), (first.inputs, again.inputs)):
            if axis is not None and other is not None:
                self.neurons.union(axis.neuron, other.neuron, reason)
                if not torch.equal(axis.role, other.role):
                    self.neurons.pin(axis.neuron, reason)
