"""The walk over a network's `torch.fx` graph: one rule a call, and what the rules collect."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from bilateral.errors import ModelError, NumericalRangeError, UnsupportedLayerError
from bilateral.models.modes import evaluating
from bilateral.protocols.share.circuit.description import FRACTION_BITS, AvgPool, Circuit, Step
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, PrivateLayer
from bilateral.protocols.share.ring import arithmetic as ring

SUPPORTED: Final = (
    "Supported: Linear, Conv2d, BatchNorm, ReLU, max and average pooling, flatten and reshape, residual sums, "
    "concatenation of channels, Dropout (which does nothing here)."
)
_MAX_WEIGHT_BITS: Final = 31
TRACED_BATCH: Final = 2
Rule = Callable[["GraphCompiler", "Call"], int]
"""Appends the steps of a call and returns the value that it gives."""


Parameters = Callable[[], tuple[Tensor, Tensor | None]]
"""A layer's weight and bias as its modules have them now."""


@dataclass(repr=False)
class FloatLayer:
    """A linear layer: parameters, then what BatchNorm does to each output, `scale * y + shift`, in turn.

    Computed anew whenever asked for, from tensors as they are then, with autograd's graph if it is on.
    """

    own: Parameters
    norms: list[Callable[[], tuple[Tensor, Tensor]]] = field(default_factory=list)

    def parameters(self) -> tuple[Tensor, Tensor]:
        weight, own_bias = self.own()
        bias = torch.zeros(weight.shape[0], dtype=torch.float64) if own_bias is None else own_bias
        for norm in self.norms:
            scale, shift = norm()
            weight = weight * scale.reshape(-1, *(1 for _ in weight.shape[1:]))
            bias = bias * scale + shift
        return weight, bias


@dataclass(frozen=True)
class Purpose:
    """What circuits are made for, as errors say it."""

    done: str
    supported: str


PREDICTION: Final = Purpose("predicted on shares", SUPPORTED)


@dataclass
class GraphCompiler:
    model: nn.Module
    input_shape: tuple[int, ...]
    module_rules: Mapping[Any, Rule]
    function_rules: Mapping[Any, Rule]
    steps: list[Step] = field(default_factory=list)
    layers: list[FloatLayer] = field(default_factory=list)
    layer_of_node: dict[fx.Node, int] = field(default_factory=dict)
    """Which layer a call made, for BatchNorm to fold into."""
    values: dict[fx.Node, int] = field(default_factory=dict)
    purpose: Purpose = PREDICTION

    def run(self) -> FixedPointModel:
        circuit = self.compile()
        with torch.no_grad():
            return FixedPointModel(circuit, encoded_layers(circuit, self.layers))

    def compile(self) -> Circuit:
        """The circuit; what its layers hold is in `layers`."""
        graph = self._trace()
        nodes = list(graph.graph.nodes)
        first = self._start(graph)
        self.values[nodes[first]] = 0
        for node in nodes[first + 1 :]:
            if node.op == "output":
                return self._finish(node)
            if isinstance(getattr(node.meta.get("tensor_meta"), "shape", None), torch.Size):
                self._visit(graph, node)
        raise ModelError(f"{type(self.model).__name__} returns nothing.")

    def _start(self, graph: fx.GraphModule) -> int:
        """Which node gives the circuit's input."""
        return next(place for place, node in enumerate(graph.graph.nodes) if node.op == "placeholder")

    def _copied(self) -> nn.Module:
        """The network whose calls are traced, in float64; layers read its parameters."""
        return copy.deepcopy(self.model).cpu().double().eval()

    def _trace(self) -> fx.GraphModule:
        try:
            traced = fx.symbolic_trace(self._copied())
        except Exception as error:  # fx raises whatever the model's own code raises
            raise ModelError(
                f"{type(self.model).__name__} cannot be traced by torch.fx: {error}.",
                remedy="Remove control flow that depends on tensor values from `forward`.",
            ) from error
        if sum(node.op == "placeholder" for node in traced.graph.nodes) != 1:
            raise ModelError(f"{type(self.model).__name__} has several inputs, or none.", remedy="Give it one.")
        try:
            with torch.no_grad(), evaluating(traced), torch.random.fork_rng(devices=[]):
                ShapeProp(traced).propagate(torch.zeros(TRACED_BATCH, *self.input_shape, dtype=torch.float64))
        except Exception as error:  # whatever the model's own code raises
            raise ModelError(
                f"{type(self.model).__name__} does not take samples of shape {self.input_shape}.",
                remedy="Give samples of the shape that the network was built for, batch first.",
            ) from error
        return traced

    def _visit(self, graph: fx.GraphModule, node: fx.Node) -> None:
        module = graph.get_submodule(str(node.target)) if node.op == "call_module" else None
        by_op: dict[str, Mapping[Any, Rule]] = {"call_module": self.module_rules, "get_attr": {}}
        rules = by_op.get(node.op, self.function_rules)
        rule = rules.get(type(module) if module is not None else node.target)
        call = Call(node, module, self.purpose)
        if rule is None:
            raise call.refuse("it has no rule")
        self.values[node] = rule(self, call)
        self._check_shape(node, call)

    def _check_shape(self, node: fx.Node, call: Call) -> None:
        found, expected = self.shape_of(self.values[node]), tuple(node.meta["tensor_meta"].shape)
        if (TRACED_BATCH, *found) != expected:
            raise call.refuse(f"it gives {expected[1:]} for a sample, which would be {found} here")

    def shape_of(self, value: int) -> tuple[int, ...]:
        return self.input_shape if value == 0 else Circuit(self.input_shape, tuple(self.steps[:value])).output.shape

    def source(self, call: Call, position: int = 0) -> int:
        node = call.node.args[position] if position < len(call.node.args) else call.node.kwargs.get("input")
        if not isinstance(node, fx.Node) or node not in self.values:
            raise call.refuse("it computes with something that is not a value of the network")
        return self.values[node]

    def append(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps)

    def append_average(self, step: AvgPool) -> int:
        return self.append(step)

    def append_layer(self, step: Step, own: Parameters, made_by: fx.Node | None = None) -> int:
        """A linear layer. `made_by`: the call that a BatchNorm after it may fold into."""
        if made_by is not None:
            self.layer_of_node[made_by] = len(self.layers)
        self.layers.append(FloatLayer(own))
        return self.append(step)

    def _finish(self, node: fx.Node) -> Circuit:
        (result,) = node.args
        if not isinstance(result, fx.Node) or result not in self.values:
            raise ModelError(
                f"{type(self.model).__name__} does not return one tensor.", remedy="Return the logits alone."
            )
        last = self.values[result]
        if last != len(self.steps) or not self.steps:
            raise ModelError(f"{type(self.model).__name__} computes something that it does not return.")
        return Circuit(self.input_shape, tuple(self.steps))


def encoded_layers(circuit: Circuit, layers: Sequence[FloatLayer]) -> tuple[PrivateLayer, ...]:
    """The layers' parameters now, as ring elements."""
    found = []
    for step, layer in zip(circuit.linear_steps, layers, strict=True):
        source, (weight, bias) = circuit.values[step.sources[0]], layer.parameters()
        encoded = _encoded_weight(weight / source.divisor, step)
        found.append(PrivateLayer(encoded, ring.encode(bias, FRACTION_BITS + source.fraction_bits)))
    return tuple(found)


def _encoded_weight(weight: Tensor, step: Step) -> Tensor:
    encoded = ring.encode(weight, FRACTION_BITS)
    if int(encoded.abs().max()).bit_length() >= _MAX_WEIGHT_BITS:
        raise NumericalRangeError(
            f"A weight of a {step.kind} layer is {float(weight.abs().max()):.3g}; at most "
            f"{2 ** (_MAX_WEIGHT_BITS - 1 - FRACTION_BITS)} can be encoded.",
            remedy="Train with weight decay, or rescale the layer.",
        )
    return encoded


@dataclass(frozen=True)
class Call:
    """One call of the traced graph, with its settings by name."""

    node: fx.Node
    module: nn.Module | None
    purpose: Purpose = PREDICTION

    @property
    def label(self) -> str:
        if self.module is not None:
            return f"{type(self.module).__name__} `{self.node.target}`"
        name = self.node.target if isinstance(self.node.target, str) else getattr(self.node.target, "__name__", "?")
        return f"`{name}` (node {self.node.name})"

    @property
    def input_node(self) -> object:
        """The first argument, or the one called `input`."""
        return self.node.args[0] if self.node.args else self.node.kwargs.get("input")

    def refuse(self, why: str, remedy: str | None = None) -> UnsupportedLayerError:
        return UnsupportedLayerError(
            f"{self.label} cannot be {self.purpose.done}: {why}.", remedy=remedy or self.purpose.supported
        )

    def settings(self, *names: str, **defaults: Any) -> list[Any]:
        """The values of `names`, from the module's attributes or the function's arguments."""
        if self.module is not None:
            return [getattr(self.module, name, defaults.get(name)) for name in names]
        by_name = dict(zip(names, self.node.args[1:], strict=False)) | dict(self.node.kwargs)
        return [by_name.get(name, defaults.get(name)) for name in names]
