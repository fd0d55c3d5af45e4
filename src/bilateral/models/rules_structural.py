"""Rules for layers without parameters: what moves elements, what passes a positive factor through, what does not.

moves elements            view, flatten, permute, cat, chunk, indexing, channel shuffle ...
passes factors through    ReLU, LeakyReLU, dropout, abs, multiplication by a number
pools or resizes space    max, average and adaptive pooling, upsampling, padding with zeros
needs equal factors       residual sums, means over a dimension
pins factors to 1         every other nonlinearity, and a sum with a constant
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.builder import GraphBuilder, Parameter, Site, Value
from bilateral.models.identities import Identities, combine
from bilateral.models.rules import METHOD_RULES, module_rule, rule

# --- moving elements ---

_MOVING_FUNCTIONS: dict[Any, str] = {
    torch.flatten: "flatten",
    torch.reshape: "reshape",
    torch.permute: "permute",
    torch.transpose: "transpose",
    torch.squeeze: "squeeze",
    torch.unsqueeze: "unsqueeze",
    torch.chunk: "chunk",
    torch.split: "split",
    torch.flip: "flip",
    torch.roll: "roll",
    torch.movedim: "movedim",
    torch.swapaxes: "swapaxes",
    torch.unflatten: "unflatten",
    torch.repeat_interleave: "repeat_interleave",
    torch.unbind: "unbind",
    torch.narrow: "narrow",
    torch.select: "select",
    torch.clone: "clone",
    operator.getitem: "__getitem__",
}
_MOVING_METHODS = (
    *_MOVING_FUNCTIONS.values(),
    "view",
    "contiguous",
    "expand",
    "repeat",
    "float",
    "double",
    "to",
    "type_as",
    "swapdims",
    "view_as",
    "reshape_as",
    "expand_as",
)
_SAME_ELEMENTS = {"contiguous", "clone", "float", "double", "to", "type_as"}
_AS_OTHER_SHAPE = {"view_as": "reshape", "reshape_as": "reshape", "expand_as": "expand"}


def _move(name: str) -> Any:
    def moved(builder: GraphBuilder, site: Site, x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Value):  # indexing a tuple that an earlier call returned
            return getattr(x, name)(*args, **kwargs)
        if name in _SAME_ELEMENTS:
            return x.ids
        method, call_args = ("reshape" if name == "view" else name), args
        if name in _AS_OTHER_SHAPE:
            method, call_args = _AS_OTHER_SHAPE[name], (tuple(args[0].meta.shape),)
        results = [getattr(t, method)(*call_args, **kwargs) for t in (x.ids.scale, x.ids.neuron, x.ids.location)]
        if isinstance(results[0], Tensor):
            return Identities(*results)
        return tuple(Identities(*parts) for parts in zip(*results, strict=True))

    return moved


for _function, _name in _MOVING_FUNCTIONS.items():
    rule(_function)(_move(_name))
for _name in _MOVING_METHODS:
    METHOD_RULES[_name] = _move(_name)


@module_rule(nn.Flatten, nn.Unflatten, nn.ChannelShuffle, nn.PixelShuffle, nn.PixelUnshuffle)
def _moving_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    # Pixel and channel shuffles want floating point; class numbers are far below 2^53.
    return x.ids.map(lambda t: module(t.double()).long())


@rule(torch.cat, torch.concat, torch.concatenate, torch.stack)
def joined(builder: GraphBuilder, site: Site, tensors: Sequence[Value], dim: int = 0) -> Identities:
    if not all(isinstance(v, Value) for v in tensors):
        raise site.refuse("it joins a constant to an activation", "Join activations only.")
    dims = tensors[0].meta.dim()
    if dim % max(dims, 1) == 0:
        raise site.refuse("it joins along the batch dimension", "Join channels (dim=1) instead.")
    join = torch.stack if site.output.dim() > dims else torch.cat
    return combine(lambda parts: join(parts, dim), tensors_ids(tensors))


def tensors_ids(values: Sequence[Value]) -> list[Identities]:
    return [v.ids for v in values]


# --- passing a positive factor through ---

_HOMOGENEOUS_FUNCTIONS = (
    F.relu,
    F.relu_,
    torch.relu,
    torch.relu_,
    F.leaky_relu,
    F.leaky_relu_,
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    torch.dropout,
    torch.abs,
    torch.neg,
    operator.neg,
)


@rule(*_HOMOGENEOUS_FUNCTIONS, methods=("relu", "relu_", "abs", "neg", "detach"))
def unchanged(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
    return x.ids


@module_rule(nn.ReLU, nn.LeakyReLU, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Identity)
def _homogeneous_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return x.ids


# --- pooling, resizing, padding ---

_SPATIAL_FUNCTIONS = (
    F.max_pool1d,
    F.max_pool2d,
    F.max_pool3d,
    F.avg_pool1d,
    F.avg_pool2d,
    F.avg_pool3d,
    F.adaptive_avg_pool1d,
    F.adaptive_avg_pool2d,
    F.adaptive_avg_pool3d,
    F.adaptive_max_pool1d,
    F.adaptive_max_pool2d,
    F.adaptive_max_pool3d,
    torch.max_pool1d,
    torch.max_pool2d,
    F.interpolate,
)
_SPATIAL_MODULES = (
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.Upsample,
    nn.UpsamplingNearest2d,
    nn.UpsamplingBilinear2d,
    nn.ReflectionPad1d,
    nn.ReflectionPad2d,
    nn.ReplicationPad1d,
    nn.ReplicationPad2d,
    nn.CircularPad1d,
    nn.CircularPad2d,
)


@rule(*_SPATIAL_FUNCTIONS)
def spatial(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
    if not isinstance(site.output, Tensor):
        raise site.refuse("it also returns the positions of the maxima", "Set return_indices=False.")
    scale, neuron = builder.channels(site, x)
    return Identities.by_channel(scale, neuron, site.output.shape)


@module_rule(*_SPATIAL_MODULES)
def _spatial_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return spatial(builder, site, x)


@rule(F.pad)
def padded(
    builder: GraphBuilder,
    site: Site,
    x: Value,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Identities:
    """Zeros have every scale. New channels of zeros are new neurons, which later layers may tie to others."""
    if value not in (None, 0, 0.0):
        raise site.refuse(f"it pads with {value}, which does not scale with its channel", "Pad with zeros.")
    widths = {x.meta.dim() - 1 - i // 2: (pad[i], pad[i + 1]) for i in range(0, len(pad), 2)}
    if any(widths.get(0, (0, 0))):
        raise site.refuse("it pads the batch dimension", "Pad channels or space only.")
    if mode != "constant" or not any(widths.get(1, (0, 0))):
        return spatial(builder, site, x)
    scale, neuron = builder.channels(site, x)
    before, after = widths[1]
    if before < 0 or after < 0:
        raise site.refuse("it crops channels by negative padding", "Slice the channels instead.")
    zeros = [builder.scales.fresh(before), builder.scales.fresh(after)]
    silent = [builder.neurons.fresh(before), builder.neurons.fresh(after)]
    return Identities.by_channel(
        torch.cat([zeros[0], scale, zeros[1]]), torch.cat([silent[0], neuron, silent[1]]), site.output.shape
    )


@module_rule(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)
def _pad_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return padded(builder, site, x, list(module.padding), value=module.value)  # type: ignore[arg-type]


# --- sums, products, reductions ---

_SUMS = (operator.add, operator.iadd, operator.sub, operator.isub, torch.add, torch.sub)
_PRODUCTS = (operator.mul, operator.imul, torch.mul)
_QUOTIENTS = (operator.truediv, operator.itruediv, torch.div)


@rule(*_SUMS, methods=("add", "add_", "sub", "sub_"))
def summed(builder: GraphBuilder, site: Site, left: Any, right: Any, alpha: float = 1) -> Identities:
    _refuse_parameters(site, left, right)
    if not (isinstance(left, Value) and isinstance(right, Value)):
        return _with_constant(builder, site, left, right, scale_survives=False)
    return _tied(builder, site, left, right)


@rule(*_PRODUCTS, methods=("mul", "mul_"))
def multiplied(builder: GraphBuilder, site: Site, left: Any, right: Any) -> Identities:
    """A factor of scale 1, such as a sigmoid gate, leaves the other factor's scale alone."""
    _refuse_parameters(site, left, right)
    if not (isinstance(left, Value) and isinstance(right, Value)):
        return _with_constant(builder, site, left, right, scale_survives=True)
    gate, gated = (left, right) if _is_pinned(builder, left) else (right, left)
    builder.scales.pin(gate.ids.scale, f"multiplied with another activation by {site.label}")
    scale = gated.ids.scale.expand(site.output.shape)
    neuron, location = _tie_neurons(builder, site, gated, gate)
    return Identities(scale, neuron, location)


@rule(*_QUOTIENTS, methods=("div", "div_"))
def divided(builder: GraphBuilder, site: Site, left: Any, right: Any) -> Identities:
    _refuse_parameters(site, left, right)
    if isinstance(right, Value):
        raise site.refuse("it divides by an activation", "Use a normalisation layer (BatchNorm, GroupNorm, LayerNorm).")
    return _with_constant(builder, site, left, right, scale_survives=True)


def _tied(builder: GraphBuilder, site: Site, left: Value, right: Value) -> Identities:
    builder.scales.union(left.ids.scale, right.ids.scale, f"added to a pinned value by {site.label}")
    neuron, location = _tie_neurons(builder, site, left, right)
    return Identities(left.ids.scale.expand(site.output.shape), neuron, location)


def _tie_neurons(builder: GraphBuilder, site: Site, left: Value, right: Value) -> tuple[Tensor, Tensor]:
    shape = site.output.shape
    wide = left if left.meta.shape == shape else right
    neuron, location = wide.ids.neuron.expand(shape), wide.ids.location.expand(shape)
    builder.neurons.union(left.ids.neuron, right.ids.neuron, site.label)
    for value in (left, right):
        if value.meta.shape == shape and not torch.equal(value.ids.location, location):
            builder.neurons.pin(neuron, site.label)  # the two number their pixels differently
    return neuron, location


def _with_constant(builder: GraphBuilder, site: Site, left: Any, right: Any, *, scale_survives: bool) -> Identities:
    value, constant = (left, right) if isinstance(left, Value) else (right, left)
    if site.output.shape != value.meta.shape:
        raise site.refuse("a constant changes the shape of an activation", "Give the constant the activation's shape.")
    if not scale_survives:
        builder.scales.pin(value.ids.scale, f"a constant is added by {site.label}")
    if isinstance(constant, Tensor) and constant.numel() > 1:
        builder.neurons.pin(value.ids.neuron, f"combined with a constant tensor by {site.label}")
    return value.ids


def _refuse_parameters(site: Site, *operands: Any) -> None:
    for operand in operands:
        if isinstance(operand, Parameter):
            raise site.refuse(
                f"it combines an activation with the bare parameter `{operand.name}`",
                "Express it as a layer (a bias of a Linear or Conv, a BatchNorm, a 1x1 convolution).",
            )


def _is_pinned(builder: GraphBuilder, value: Value) -> bool:
    return all(builder.scales.find(i) == 0 for i in torch.unique(value.ids.scale).tolist())


@rule(torch.mean, torch.sum, torch.amax, methods=("mean", "sum", "amax"))
def reduced(
    builder: GraphBuilder, site: Site, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Identities:
    num_dims = x.meta.dim()
    dims = sorted({d % num_dims for d in ([dim] if isinstance(dim, int) else dim or range(num_dims))})
    if 0 in dims:
        raise site.refuse("it mixes the samples of a batch", "Reduce over channels or space only.")
    scale, neuron = builder.uniform(site, x, dims)
    if keepdim:
        for d in dims:
            scale, neuron = scale.unsqueeze(d), neuron.unsqueeze(d)
    space = site.output.shape[2:]
    location = torch.arange(space.numel()).reshape(space).expand(site.output.shape)
    return Identities(scale, neuron, location)


# --- everything that is not homogeneous ---

_PINNING_FUNCTIONS = (
    torch.sigmoid,
    F.sigmoid,
    torch.tanh,
    F.tanh,
    F.gelu,
    F.silu,
    F.elu,
    F.selu,
    F.celu,
    F.mish,
    F.softplus,
    F.softsign,
    F.hardswish,
    F.hardsigmoid,
    F.hardtanh,
    F.relu6,
    F.logsigmoid,
    F.softmax,
    F.log_softmax,
    torch.softmax,
    torch.log_softmax,
    torch.exp,
    torch.log,
    torch.sqrt,
    torch.clamp,
    torch.square,
    torch.pow,
    operator.pow,
)
_PINNING_MODULES = (
    nn.Sigmoid,
    nn.Tanh,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.Mish,
    nn.Softplus,
    nn.Softsign,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Hardtanh,
    nn.ReLU6,
    nn.LogSigmoid,
    nn.Softmax,
    nn.LogSoftmax,
)


@rule(
    *_PINNING_FUNCTIONS,
    methods=("sigmoid", "tanh", "softmax", "exp", "log", "sqrt", "clamp", "square", "pow"),
)
def pinning(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
    builder.scales.pin(x.ids.scale, f"input of {site.label}, which is not positively homogeneous")
    return x.ids


@module_rule(*_PINNING_MODULES)
def _pinning_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return pinning(builder, site, x)
