"""From an `nn.Module` to a circuit and ring weights, by its `torch.fx` graph.

BatchNorm is folded into the layer before it, or becomes a 1x1 convolution of its own where there is none. A ReLU
followed by max pooling is done after it: both orders give the same numbers, and this one compares half as often. What
has no rule is refused by name.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from bilateral.errors import ModelError, NumericalRangeError, UnsupportedLayerError
from bilateral.protocols.share import ring
from bilateral.protocols.share.circuit import (
    FRACTION_BITS,
    LARGEST_INPUT,
    VALUE_BITS,
    Add,
    AvgPool,
    Circuit,
    Concat,
    Conv,
    Dense,
    MaxPool,
    Pair,
    Relu,
    Reshape,
    Step,
)
from bilateral.protocols.share.plaintext import FixedPointModel, PlainArithmetic, PrivateLayer, predict_in_batches

SUPPORTED: Final = (
    "Supported: Linear, Conv2d, BatchNorm, ReLU, max and average pooling, flatten and reshape, residual sums, "
    "concatenation of channels, Dropout (which does nothing here)."
)
_HEADROOM: Final = 4
"""Numbers of the answering party's own samples must stay this far below the bound; a stranger's query may be larger."""
_MAX_WEIGHT_BITS: Final = 31
_AGREEMENT: Final = 2.0**-6
_BATCH: Final = 2


def compile_model(model: nn.Module, samples: Tensor) -> FixedPointModel:
    """The network as a circuit with ring weights.

    `samples` (the answering party's own, batch first) fix the shapes, and no number in the network may come near the
    bound of comparisons on them (`NumericalRangeError`).
    """
    if not len(samples):
        raise ModelError(f"{type(model).__name__} has no samples to be checked on.", remedy="Give one or more.")
    compiled = _Compiler(model, tuple(samples.shape[1:])).run()
    largest_input = min(LARGEST_INPUT, 2 ** math.ceil(math.log2(max(1.0, float(samples.abs().max())))))
    compiled = FixedPointModel(replace(compiled.circuit, largest_input=largest_input), compiled.layers)
    arithmetic = PlainArithmetic(compiled)
    found = predict_in_batches(compiled, samples, arithmetic=arithmetic)
    where, largest = max(arithmetic.largest.items(), key=lambda item: item[1], default=("", 0.0))
    if largest * _HEADROOM >= 2**VALUE_BITS:
        raise NumericalRangeError(
            f"{type(model).__name__} reaches {largest:.0f} at {where}; secret-shared prediction compares numbers below "
            f"{2**VALUE_BITS} and wants {_HEADROOM} times of room.",
            remedy="Normalise the inputs, use BatchNorm, or train with weight decay.",
        )
    _check_agreement(model, samples, found)
    return compiled


def _check_agreement(model: nn.Module, samples: Tensor, found: Tensor) -> None:
    """What wrapped around the ring, or was overwritten in place, gives other logits than the network itself."""
    with torch.no_grad():
        expected = copy.deepcopy(model).cpu().double().eval()(samples.double())
    difference = float((found - expected).abs().max())
    if not difference <= _AGREEMENT * (1 + float(expected.abs().max())):
        raise NumericalRangeError(
            f"{type(model).__name__} in fixed point differs from itself by {difference:.3g} on the samples.",
            remedy="Normalise the inputs, and do not read a tensor after an in-place operation has changed it.",
        )


@dataclass(repr=False)
class _FloatLayer:
    weight: Tensor
    bias: Tensor


@dataclass
class _Compiler:
    model: nn.Module
    input_shape: tuple[int, ...]
    steps: list[Step] = field(default_factory=list)
    layers: list[_FloatLayer] = field(default_factory=list)
    layer_of_node: dict[fx.Node, int] = field(default_factory=dict)
    """Which layer a call made, for BatchNorm to fold into."""
    values: dict[fx.Node, int] = field(default_factory=dict)

    def run(self) -> FixedPointModel:
        graph = self._trace()
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                if self.values:
                    raise ModelError(f"{type(self.model).__name__} has several inputs.", remedy="Give it one.")
                self.values[node] = 0
            elif node.op == "output":
                return self._finish(node)
            elif isinstance(getattr(node.meta.get("tensor_meta"), "shape", None), torch.Size):
                self._visit(graph, node)
        raise ModelError(f"{type(self.model).__name__} returns nothing.")

    def _trace(self) -> fx.GraphModule:
        try:
            traced = fx.symbolic_trace(copy.deepcopy(self.model).cpu().double().eval())
        except Exception as error:  # fx raises whatever the model's own code raises
            raise ModelError(
                f"{type(self.model).__name__} cannot be traced by torch.fx: {error}.",
                remedy="Remove control flow that depends on tensor values from `forward`.",
            ) from error
        if sum(node.op == "placeholder" for node in traced.graph.nodes) != 1:
            raise ModelError(f"{type(self.model).__name__} has several inputs, or none.", remedy="Give it one.")
        try:
            with torch.no_grad():
                ShapeProp(traced).propagate(torch.zeros(_BATCH, *self.input_shape, dtype=torch.float64))
        except Exception as error:  # whatever the model's own code raises
            raise ModelError(
                f"{type(self.model).__name__} does not take samples of shape {self.input_shape}.",
                remedy="Give samples of the shape that the network was built for, batch first.",
            ) from error
        return traced

    def _visit(self, graph: fx.GraphModule, node: fx.Node) -> None:
        module = graph.get_submodule(str(node.target)) if node.op == "call_module" else None
        rules: Mapping[Any, _Rule] = {"call_module": _MODULE_RULES, "get_attr": {}}.get(node.op, _FUNCTION_RULES)
        rule = rules.get(type(module) if module is not None else node.target)
        call = _Call(node, module)
        if rule is None:
            raise call.refuse("it has no rule")
        num_layers = len(self.layers)
        self.values[node] = rule(self, call)
        if len(self.layers) > num_layers and rule is not _batch_norm:
            self.layer_of_node[node] = num_layers
        self._check_shape(node, call)

    def _check_shape(self, node: fx.Node, call: _Call) -> None:
        found, expected = self.shape_of(self.values[node]), tuple(node.meta["tensor_meta"].shape)
        if (_BATCH, *found) != expected:
            raise call.refuse(f"it gives {expected[1:]} for a sample, which would be {found} here")

    def shape_of(self, value: int) -> tuple[int, ...]:
        return self.input_shape if value == 0 else Circuit(self.input_shape, tuple(self.steps[:value])).output.shape

    def source(self, call: _Call, position: int = 0) -> int:
        node = call.node.args[position] if position < len(call.node.args) else call.node.kwargs.get("input")
        if not isinstance(node, fx.Node) or node not in self.values:
            raise call.refuse("it computes with something that is not a value of the network")
        return self.values[node]

    def append(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps)

    def append_layer(self, step: Step, weight: Tensor, bias: Tensor | None) -> int:
        value = self.append(step)
        found = torch.zeros(weight.shape[0], dtype=torch.float64) if bias is None else bias.detach().clone()
        self.layers.append(_FloatLayer(weight.detach().clone(), found))
        return value

    def _finish(self, node: fx.Node) -> FixedPointModel:
        (result,) = node.args
        if not isinstance(result, fx.Node) or result not in self.values:
            raise ModelError(
                f"{type(self.model).__name__} does not return one tensor.", remedy="Return the logits alone."
            )
        last = self.values[result]
        if last != len(self.steps) or not self.steps:
            raise ModelError(f"{type(self.model).__name__} computes something that it does not return.")
        circuit = Circuit(self.input_shape, tuple(self.steps))
        linear = [step for step in circuit.steps if isinstance(step, Dense | Conv)]
        layers = []
        for step, layer in zip(linear, self.layers, strict=True):
            source = circuit.values[step.sources[0]]
            layers.append(
                PrivateLayer(
                    _encoded_weight(layer.weight / source.divisor, step),
                    ring.encode(layer.bias, FRACTION_BITS + source.fraction_bits),
                )
            )
        return FixedPointModel(circuit, tuple(layers))


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
class _Call:
    """One call of the traced graph, with its settings by name."""

    node: fx.Node
    module: nn.Module | None

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

    def refuse(self, why: str) -> UnsupportedLayerError:
        return UnsupportedLayerError(f"{self.label} cannot be predicted on shares: {why}.", remedy=SUPPORTED)

    def settings(self, *names: str, **defaults: Any) -> list[Any]:
        """The values of `names`, from the module's attributes or the function's arguments."""
        if self.module is not None:
            return [getattr(self.module, name, defaults.get(name)) for name in names]
        by_name = dict(zip(names, self.node.args[1:], strict=False)) | dict(self.node.kwargs)
        return [by_name.get(name, defaults.get(name)) for name in names]


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _linear(compiler: _Compiler, call: _Call) -> int:
    module = call.module
    assert isinstance(module, nn.Linear)
    step = Dense((compiler.source(call),), module.out_features)
    return compiler.append_layer(step, module.weight, module.bias)


def _conv(compiler: _Compiler, call: _Call) -> int:
    module = call.module
    assert isinstance(module, nn.Conv2d)
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        raise call.refuse("only padding with a number of zeros has a rule")
    kernel, stride, padding, dilation = (
        _pair(v) for v in (module.kernel_size, module.stride, module.padding, module.dilation)
    )
    step = Conv((compiler.source(call),), module.out_channels, kernel, stride, padding, dilation, module.groups)
    return compiler.append_layer(step, module.weight, module.bias)


def _batch_norm(compiler: _Compiler, call: _Call) -> int:
    norm = call.module
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
    if norm.running_mean is None or norm.running_var is None:
        raise call.refuse("it keeps no running statistics")
    source, source_node = compiler.source(call), call.input_node
    assert isinstance(source_node, fx.Node)
    scale = (norm.running_var + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight.detach()
    shift = -norm.running_mean * scale
    shift = shift if norm.bias is None else shift + norm.bias.detach()
    if source_node in compiler.layer_of_node and len(source_node.users) == 1:
        layer = compiler.layers[compiler.layer_of_node[source_node]]
        layer.weight *= scale.reshape(-1, *(1 for _ in layer.weight.shape[1:]))
        layer.bias = layer.bias * scale + shift
        return source
    shape, channels = compiler.shape_of(source), len(scale)
    if len(shape) == 1:
        source = compiler.append(Reshape((source,), (channels, 1, 1)))
    step = Conv((source,), channels, (1, 1), (1, 1), (0, 0), (1, 1), channels)
    value = compiler.append_layer(step, scale.reshape(-1, 1, 1, 1), shift)
    return compiler.append(Reshape((value,), (channels,))) if len(shape) == 1 else value


def _relu(compiler: _Compiler, call: _Call) -> int:
    return compiler.append(Relu((compiler.source(call),)))


def _max_pool(compiler: _Compiler, call: _Call) -> int:
    kernel, stride, padding, dilation, ceil_mode = call.settings(
        "kernel_size", "stride", "padding", "dilation", "ceil_mode", padding=0, dilation=1, ceil_mode=False
    )
    if _pair(dilation) != (1, 1) or ceil_mode:
        raise call.refuse("dilation and ceil_mode have no rule")
    source, source_node = compiler.source(call), call.input_node
    settings = (_pair(kernel), _pair(kernel if stride is None else stride), _pair(padding))
    assert isinstance(source_node, fx.Node)
    after_relu = source > 0 and isinstance(compiler.steps[source - 1], Relu)
    if settings[2] != (0, 0):
        if not after_relu:
            raise call.refuse("padding has a rule only directly after a ReLU")
        return compiler.append(MaxPool((source,), *settings))
    is_own = len(source_node.users) == 1 and sum(1 for value in compiler.values.values() if value == source) == 1
    if after_relu and source == len(compiler.steps) and is_own:
        relu = compiler.steps.pop()
        return compiler.append(Relu((compiler.append(MaxPool(relu.sources, *settings)),)))
    return compiler.append(MaxPool((source,), *settings))


def _avg_pool(compiler: _Compiler, call: _Call) -> int:
    kernel, stride, padding, ceil_mode, include_pad, override = call.settings(
        "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override",
        padding=0, ceil_mode=False, count_include_pad=True,
    )  # fmt: skip
    if ceil_mode or override is not None or (_pair(padding) != (0, 0) and not include_pad):
        raise call.refuse("ceil_mode, divisor_override and count_include_pad=False have no rule")
    source = compiler.source(call)
    return compiler.append(
        AvgPool((source,), _pair(kernel), _pair(kernel if stride is None else stride), _pair(padding))
    )


def _adaptive_avg_pool(compiler: _Compiler, call: _Call) -> int:
    (size,) = call.settings("output_size")
    source = compiler.source(call)
    _, *image = compiler.shape_of(source)
    wanted = [now if size is None else size for size, now in zip(_sizes(size), image, strict=True)]
    if any(now % then for now, then in zip(image, wanted, strict=True)):
        raise call.refuse(f"{tuple(image)} pixels do not divide evenly into {tuple(wanted)}")
    kernel = (image[0] // wanted[0], image[1] // wanted[1])
    return compiler.append(AvgPool((source,), kernel, kernel, (0, 0)))


def _sizes(size: Any) -> Sequence[int | None]:
    return (size, size) if size is None or isinstance(size, int) else tuple(size)


def _mean(compiler: _Compiler, call: _Call) -> int:
    dims, keepdim = call.settings("dim", "keepdim", keepdim=False)
    source = compiler.source(call)
    shape = compiler.shape_of(source)
    if len(shape) != 3 or not isinstance(dims, tuple | list) or sorted(d % 4 for d in dims) != [2, 3]:
        raise call.refuse("only the mean over an image's height and width has a rule")
    kernel = (shape[1], shape[2])
    value = compiler.append(AvgPool((source,), kernel, kernel, (0, 0)))
    return value if keepdim else compiler.append(Reshape((value,), (shape[0],)))


def _reshape(compiler: _Compiler, call: _Call) -> int:
    batch, *shape = call.node.meta["tensor_meta"].shape
    if batch != _BATCH or len(shape) not in (1, 3):
        raise call.refuse("it must keep the samples apart and give flat values or images")
    return compiler.append(Reshape((compiler.source(call),), tuple(shape)))


def _add(compiler: _Compiler, call: _Call) -> int:
    if call.node.kwargs:
        raise call.refuse("only a plain sum of two values has a rule")
    return compiler.append(Add((compiler.source(call, 0), compiler.source(call, 1))))


def _concat(compiler: _Compiler, call: _Call) -> int:
    parts = call.node.args[0] if call.node.args else call.node.kwargs.get("tensors")
    dim = call.settings("dim", dim=0)[0]
    if dim not in (1, 1 - len(call.node.meta["tensor_meta"].shape)):
        raise call.refuse("only concatenation of channels or features (dim=1) has a rule")
    if not isinstance(parts, list | tuple) or not all(part in compiler.values for part in parts):
        raise call.refuse("it joins something that is not a value of the network")
    return compiler.append(Concat(tuple(compiler.values[part] for part in parts if isinstance(part, fx.Node))))


def _dropout(compiler: _Compiler, call: _Call) -> int:
    _, is_training = call.settings("p", "training", training=True)
    if is_training and call.module is None:
        raise call.refuse("it drops at random in evaluation, too")
    return compiler.source(call)


def _nothing(compiler: _Compiler, call: _Call) -> int:
    return compiler.source(call)


_Rule = Callable[[_Compiler, _Call], int]
_MODULE_RULES: Final[dict[type[nn.Module] | None, _Rule]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU: _relu,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool2d: _adaptive_avg_pool,
    nn.Flatten: _reshape,
    nn.Identity: _nothing,
    nn.Dropout: _nothing,
    nn.Dropout2d: _nothing,
}
_FUNCTION_RULES: Final[dict[Any, _Rule]] = {
    F.relu: _relu,
    torch.relu: _relu,
    "relu": _relu,
    F.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    F.avg_pool2d: _avg_pool,
    F.adaptive_avg_pool2d: _adaptive_avg_pool,
    torch.mean: _mean,
    "mean": _mean,
    torch.flatten: _reshape,
    "flatten": _reshape,
    "view": _reshape,
    "reshape": _reshape,
    torch.reshape: _reshape,
    operator.add: _add,
    operator.iadd: _add,
    torch.add: _add,
    "add": _add,
    torch.cat: _concat,
    torch.concat: _concat,
    F.dropout: _dropout,
}
