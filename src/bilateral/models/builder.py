"""What the layer rules write into while a network is walked: classes, parameter bindings, constraints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from bilateral.errors import UnsupportedLayerError
from bilateral.models.factor_relations import ScaleClasses
from bilateral.models.identities import Identities, UnionFind, digest_over, mix, numbered
from bilateral.models.integer_inputs import NO_LIMIT

NormInputs = Literal["exact", "scaled"]
"""Whether what enters a normalisation has factor 1, so that its eps acts as in the plain model, or a secret one."""


@dataclass(frozen=True)
class Value:
    """A tensor of the walked network: its shape (as a meta tensor) and the identities of its elements."""

    meta: Tensor
    ids: Identities
    version: int = 0
    """torch's count of in-place changes of `meta` when these identities were made."""
    other_shape: torch.Size | None = None
    """The shape with another number of samples."""

    @staticmethod
    def of(meta: Tensor, ids: Identities) -> Value:
        return Value(meta, ids, meta._version)

    @property
    def was_overwritten(self) -> bool:
        return self.meta._version != self.version

    @property
    def batch_dims(self) -> set[int]:
        """Dimensions whose size follows the number of samples."""
        other = self.other_shape or self.meta.shape
        return {d for d, size in enumerate(self.meta.shape) if size != other[d]}

    @property
    def is_clear(self) -> bool:
        """Whether it was computed from inputs and constants alone, so that it has no factor and stays in place."""
        return all(not bool(t.any()) for t in (self.ids.scale, self.ids.neuron))


@dataclass(frozen=True)
class Parameter:
    """A parameter of the network at the place where it is used, by its canonical name."""

    name: str
    meta: Tensor


@dataclass(frozen=True)
class Stored:
    """Elements of bare parameters, moved about but not yet met by an activation: which element stands where."""

    meta: Tensor
    elements: Tensor
    other_shape: torch.Size | None = None
    """See `Value`."""


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
        if isinstance(argument, Value | Parameter | Stored):
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

    scales: ScaleClasses = field(default_factory=ScaleClasses)
    neurons: UnionFind = field(default_factory=UnionFind)
    bindings: dict[str, Binding] = field(default_factory=dict)
    binding_sites: dict[str, str] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    axes: list[Axis] = field(default_factory=list)
    producers: list[Axis] = field(default_factory=list)
    groupings: list[Grouping] = field(default_factory=list)
    statistics: list[Statistics] = field(default_factory=list)
    normalised_scales: list[Tensor] = field(default_factory=list)
    per_sample_norm_scales: list[Tensor] = field(default_factory=list)
    norm_inputs: NormInputs = "exact"
    num_tokens: int = 0
    parts: dict[int, Tensor] = field(default_factory=dict)
    """Per producer, by its number: which copy of its neuron each output is (see `tied_outputs`)."""
    bare: BareParameters = field(init=False)
    input_limits: Tensor | None = None
    """Of integer inputs, sample after sample: each stays below its limit, that of the tables it is looked up in."""

    def __post_init__(self) -> None:
        self.bare = BareParameters(self)

    def as_values(self, site: Site, *operands: Any) -> tuple[Any, ...]:
        """The operands of a call, its bare parameters as values beside the activations among them."""
        values = [operand for operand in operands if isinstance(operand, Value)]
        return tuple(
            self.bare.value(site, operand, values) if isinstance(operand, Parameter | Stored) else operand
            for operand in operands
        )

    def hold_integers(self, shape: Sequence[int]) -> Identities:
        """Identities of integer inputs; a role that is a small number says which input it is."""
        pinned = Identities.pinned(shape)
        self.input_limits = torch.full((torch.Size(shape).numel(),), NO_LIMIT)
        return Identities(pinned.scale, pinned.neuron, 1 + torch.arange(len(self.input_limits)).reshape(tuple(shape)))

    def limit_inputs(self, indices: Value, num_rows: int) -> None:
        """Inputs that are looked up as they are stay below the number of rows."""
        if self.input_limits is None:
            return
        places = indices.ids.role.reshape(-1) - 1
        places = places[(places >= 0) & (places < len(self.input_limits))]
        self.input_limits[places] = self.input_limits[places].clamp(max=num_rows)

    def token(self) -> Tensor:
        """A role's mark for one call of an operation."""
        self.num_tokens += 1
        return mix(torch.tensor(self.num_tokens))

    def fresh_channels(self, count: int) -> Identities:
        """New scale classes and new neurons for the outputs of a linear layer."""
        scale, neuron = self.scales.fresh(count), self.neurons.fresh(count)
        role = self.parts.get(len(self.producers), torch.zeros((), dtype=torch.int64).expand(count))
        self.producers.append(Axis(neuron, role))
        return Identities(scale, neuron, role)

    def tied_outputs(self) -> dict[int, Tensor]:
        """Layers of which several outputs are one neuron: for each output, how many copies of it came before.

        The rows of a query and of a key in one Linear layer are such outputs: they change places together. Told apart
        by their role from the start (a second walk with these as `parts`), they need not stay in place for that.
        """
        found: dict[int, Tensor] = {}
        for number, axis in enumerate(self.producers):
            rooted = Axis(self.neurons.rooted(axis.neuron), axis.role)
            tied, counts = torch.unique(rooted.neuron[rooted.neuron != 0], return_counts=True)
            if len(tied) > 1 and bool((counts > 1).any()):
                found[number] = rooted.copies()
        return found

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

    def is_same_for_all(self, ids: Identities, clear: Identities, shape: Sequence[int]) -> bool:
        """Whether `clear` (of that shape, before broadcasting) has no neurons, and meets all that changes places in
        `ids` with one and the same element."""
        if bool(self.neurons.rooted(clear.neuron).any()):
            return False
        varying = self.neurons.narrowed(ids.neuron).shape
        sizes = (1,) * (len(varying) - len(shape)) + tuple(shape)
        return all(size == 1 for size, neurons in zip(sizes, varying, strict=True) if neurons > 1)

    def met_by_clear(self, site: Site, ids: Identities, clear: Identities, shape: Sequence[int]) -> Identities:
        """`ids` after each element met one of a value that stays in place (a mask, a constant), of that shape."""
        if not self.is_same_for_all(ids, clear, shape):
            self.neurons.pin(clear.neuron, f"combined with a constant tensor by {site.label}")
            self.neurons.pin(ids.neuron, f"combined with a constant tensor by {site.label}")
            return ids.changed(self.token())
        places = torch.arange(torch.Size(shape).numel()).reshape(tuple(shape))
        return Identities(ids.scale, ids.neuron, mix(ids.role, places, self.token()).expand(ids.role.shape))

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


class BareParameters:
    """Parameters that a network uses as values: learned positions, class tokens, tables of attention biases.

    Each element has a factor and a neuron, which it shares with those beside it that are one channel. Which dimension
    holds the channels shows where the parameter meets an activation: that along which its neurons vary. Any choice is
    exact, since elements move along their own axis in their own roles; a wrong one only ties more together.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._offsets: dict[str, int] = {}
        self._sites: dict[str, tuple[Site, Parameter]] = {}
        self._count = 0
        self._ids = Identities(*(torch.zeros(0, dtype=torch.int64) for _ in range(3)))

    def stored(self, parameter: Parameter, site: Site) -> Stored:
        """All elements of a parameter, in place."""
        size = parameter.meta.numel()
        if parameter.name not in self._offsets:
            self._offsets[parameter.name] = self._count
            self._sites[parameter.name] = (site, parameter)
            self._count += size
            unknown = torch.full((size,), -1)
            self._ids = self._ids.map(lambda t: torch.cat([t, unknown]))
        start = self._offsets[parameter.name]
        return Stored(parameter.meta, torch.arange(start, start + size).reshape(parameter.meta.shape))

    def value(self, site: Site, operand: Parameter | Stored, beside: Sequence[Value]) -> Value:
        """The elements as a value that meets those in `beside`."""
        held = self.stored(operand, site) if isinstance(operand, Parameter) else operand
        self._assign(held.elements, self._channel_dims(held.meta, beside))
        found = Value.of(held.meta, self._ids.map(lambda t: t[held.elements]))
        return replace(found, other_shape=held.other_shape)

    def _channel_dims(self, meta: Tensor, beside: Sequence[Value]) -> list[int]:
        wide = [d for d, size in enumerate(meta.shape) if size > 1]
        found: set[int] = set()
        for value in beside:
            neurons = self._builder.neurons.narrowed(value.ids.neuron)
            shift = neurons.dim() - meta.dim()
            found |= {d for d in wide if d + shift >= 0 and _are_all_different(neurons, d + shift)}
        return sorted(found) or wide[-1:]

    def _assign(self, elements: Tensor, channel_dims: Sequence[int]) -> None:
        """Factors, neurons and roles for elements that have none yet, by the first place where each stands."""
        shape = elements.shape
        sizes = [size if d in channel_dims else 1 for d, size in enumerate(shape)]
        others = [1 if d in channel_dims else size for d, size in enumerate(shape)]
        channel = torch.arange(torch.Size(sizes).numel()).reshape(sizes).expand(shape).reshape(-1)
        place = torch.arange(torch.Size(others).numel()).reshape(others).expand(shape).reshape(-1)
        unique, first = (torch.from_numpy(a) for a in np.unique(elements.reshape(-1).numpy(), return_index=True))
        new = self._ids.scale[unique] == -1
        unique, first = unique[new], first[new]
        if not len(unique):
            return
        groups, group_of = torch.unique(channel[first], return_inverse=True)
        self._ids.scale[unique] = self._builder.scales.fresh(len(groups))[group_of]
        self._ids.neuron[unique] = self._builder.neurons.fresh(len(groups))[group_of]
        self._ids.role[unique] = mix(place[first], self._builder.token())

    def finish(self) -> None:
        """Bind every parameter that was used as a value."""
        for name, (site, parameter) in self._sites.items():
            part = slice(self._offsets[name], self._offsets[name] + parameter.meta.numel())
            scale, neuron, role = (t[part] for t in (self._ids.scale, self._ids.neuron, self._ids.role))
            unused = scale == -1
            places = torch.arange(len(scale))
            scale, neuron = scale.masked_fill(unused, 0), neuron.masked_fill(unused, 0)
            axis = Axis(neuron, numbered(torch.where(unused, mix(places), role)))
            self._builder.producers.append(axis)
            self._builder.bind(site, parameter, Binding(BARE, scale.reshape(parameter.meta.shape), outputs=axis))


def _are_all_different(neurons: Tensor, dim: int) -> bool:
    """Whether no neuron stands twice along a dimension, at the first place of the others."""
    line = neurons.movedim(dim, 0).reshape(neurons.shape[dim], -1)[:, 0]
    return len(line) > 1 and len(torch.unique(line)) == len(line)


BARE: Final = "parameter used as a value"
