"""Rules for layers without parameters: what moves elements, what passes a positive factor through, what does not.

moves elements            view, flatten, permute, cat, chunk, indexing, channel shuffle ...
passes factors through    ReLU, LeakyReLU, dropout, abs, multiplication by a number
pools or resizes space    max, average and adaptive pooling, upsampling, padding with zeros
needs equal factors       residual sums, means over a dimension
pins factors to 1         every other nonlinearity, and a sum with a constant
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from bilateral.models.builder import GraphBuilder, Parameter, Site, Value
from bilateral.models.identities import Identities, combine, mix
from bilateral.models.rules import METHOD_RULES, module_rule, rule

# --- moving elements ---

_MOVING_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    torch.flatten,
    torch.reshape,
    torch.permute,
    torch.transpose,
    torch.squeeze,
    torch.unsqueeze,
    torch.chunk,
    torch.split,
    torch.flip,
    torch.roll,
    torch.movedim,
    torch.swapaxes,
    torch.unflatten,
    torch.repeat_interleave,
    torch.unbind,
    torch.narrow,
    torch.select,
    operator.getitem,
)
_MOVING_METHODS = (
    *(function.__name__ for function in _MOVING_FUNCTIONS if function is not operator.getitem),
    "__getitem__",
    "view",
    "expand",
    "repeat",
    "swapdims",
)
_OTHER_VIEWS = {"view": "reshape"}  # identities need not lie in memory as the value does


def _moved(site: Site, x: Any, operation: Callable[[Any], Any], rest: Any) -> Any:
    if not isinstance(x, Value):  # indexing a tuple that an earlier call returned
        return operation(x)
    refuse_activations(site, rest)
    results = [operation(t) for t in (x.ids.scale, x.ids.neuron, x.ids.role)]
    if isinstance(results[0], Tensor):
        return Identities(*results)
    return tuple(Identities(*parts) for parts in zip(*results, strict=True))


def _moving_function(function: Callable[..., Any]) -> Any:
    def moved(builder: GraphBuilder, site: Site, x: Any, *args: Any, **kwargs: Any) -> Any:
        return _moved(site, x, lambda t: function(t, *args, **kwargs), (args, kwargs))

    return moved


def _moving_method(name: str) -> Any:
    def moved(builder: GraphBuilder, site: Site, x: Any, *args: Any, **kwargs: Any) -> Any:
        return _moved(site, x, lambda t: getattr(t, name)(*args, **kwargs), (args, kwargs))

    return moved


for _function in _MOVING_FUNCTIONS:
    rule(_function)(_moving_function(_function))
for _name in _MOVING_METHODS:
    METHOD_RULES[_name] = _moving_method(_OTHER_VIEWS.get(_name, _name))


@rule(methods=("view_as", "reshape_as", "expand_as"))
def _in_the_shape_of_another(builder: GraphBuilder, site: Site, x: Value, other: Value | Parameter) -> Identities:
    shape = tuple(other.meta.shape)
    return x.ids.map(lambda t: t.reshape(shape) if t.numel() == other.meta.numel() else t.expand(shape))


@rule(torch.clone, methods=("contiguous", "clone", "float", "double", "to", "type_as"))
def _copied(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
    if not site.output.is_floating_point():
        raise site.refuse(f"it rounds an activation to {site.output.dtype}", "Keep activations in floating point.")
    return x.ids


@module_rule(nn.Flatten, nn.Unflatten, nn.ChannelShuffle, nn.PixelShuffle, nn.PixelUnshuffle)
def _moving_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    # Pixel and channel shuffles want floating point; the number of elements is far below 2^53.
    places = torch.arange(x.meta.numel(), dtype=torch.float64).reshape(x.meta.shape)
    order = module(places).long()
    return x.ids.map(lambda t: t.reshape(-1)[order])


def refuse_activations(site: Site, arguments: Any) -> None:
    """Refuse activations and parameters where a rule expects plain numbers."""

    def look(argument: Any) -> Any:
        if isinstance(argument, Value | Parameter):
            raise site.refuse(
                "one of its settings is itself an activation or a parameter", "Use a number, or write it as a layer."
            )
        return argument

    map_aggregate(arguments, look)


@rule(torch.cat, torch.concat, torch.concatenate, torch.stack)
def joined(builder: GraphBuilder, site: Site, tensors: Sequence[Value], dim: int = 0) -> Identities:
    if not all(isinstance(v, Value) for v in tensors):
        raise site.refuse("it joins a constant to an activation", "Join activations only.")
    if dim % site.output.dim() == 0:
        raise site.refuse("it joins along the batch dimension", "Join channels (dim=1) instead.")
    join = torch.stack if site.output.dim() > tensors[0].meta.dim() else torch.cat
    return combine(lambda parts: join(parts, dim), [v.ids for v in tensors])


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
def homogeneous(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
    refuse_activations(site, (args, kwargs))
    return x.ids.changed(builder.token())


@module_rule(nn.ReLU, nn.LeakyReLU, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Identity)
def _homogeneous_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return homogeneous(builder, site, x)


# --- pooling, resizing, padding ---

_SPACE_OF_FUNCTIONS: dict[Callable[..., Any], int] = {
    F.max_pool1d: 1,
    F.max_pool2d: 2,
    F.max_pool3d: 3,
    F.avg_pool1d: 1,
    F.avg_pool2d: 2,
    F.avg_pool3d: 3,
    F.adaptive_avg_pool1d: 1,
    F.adaptive_avg_pool2d: 2,
    F.adaptive_avg_pool3d: 3,
    F.adaptive_max_pool1d: 1,
    F.adaptive_max_pool2d: 2,
    F.adaptive_max_pool3d: 3,
    torch.max_pool1d: 1,
    torch.max_pool2d: 2,
}
_SPACE_OF_MODULES: dict[type[nn.Module], int] = {
    nn.MaxPool1d: 1,
    nn.MaxPool2d: 2,
    nn.MaxPool3d: 3,
    nn.AvgPool1d: 1,
    nn.AvgPool2d: 2,
    nn.AvgPool3d: 3,
    nn.AdaptiveAvgPool1d: 1,
    nn.AdaptiveAvgPool2d: 2,
    nn.AdaptiveAvgPool3d: 3,
    nn.AdaptiveMaxPool1d: 1,
    nn.AdaptiveMaxPool2d: 2,
    nn.AdaptiveMaxPool3d: 3,
    nn.UpsamplingNearest2d: 2,
    nn.UpsamplingBilinear2d: 2,
    nn.ReflectionPad1d: 1,
    nn.ReflectionPad2d: 2,
    nn.ReplicationPad1d: 1,
    nn.ReplicationPad2d: 2,
    nn.CircularPad1d: 1,
    nn.CircularPad2d: 2,
}


def _spatial(builder: GraphBuilder, site: Site, x: Value, space_dims: int | None) -> Identities:
    """What works on the space of each channel by itself, the same way in every channel."""
    if not isinstance(site.output, Tensor):
        raise site.refuse("it also returns the positions of the maxima", "Set return_indices=False.")
    return Identities.by_channel(builder.channels(site, x, space_dims), site.output.shape, builder.token())


def _spatial_function(space_dims: int | None) -> Any:
    def applied(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
        refuse_activations(site, (args, kwargs))
        return _spatial(builder, site, x, space_dims)

    return applied


for _function, _dims in _SPACE_OF_FUNCTIONS.items():
    rule(_function)(_spatial_function(_dims))
rule(F.interpolate)(_spatial_function(None))  # torch itself insists on a batch and a channel dimension


@module_rule(*_SPACE_OF_MODULES, nn.Upsample)
def _spatial_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return _spatial(builder, site, x, _SPACE_OF_MODULES.get(type(module)))


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
    before, after = widths.get(1, (0, 0))
    if not before and not after:
        return _spatial(builder, site, x, None)
    if mode != "constant":
        raise site.refuse(f"it pads channels by {mode}", "Pad channels with zeros, or space only.")
    if before < 0 or after < 0:
        raise site.refuse("it crops channels by negative padding", "Slice the channels instead.")
    silent = builder.fresh_channels(before + after)
    parts = [silent.map(lambda t: t[:before]), builder.channels(site, x), silent.map(lambda t: t[before:])]
    return Identities.by_channel(combine(torch.cat, parts), site.output.shape, builder.token())


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
def summed(builder: GraphBuilder, site: Site, left: Any, other: Any, *, alpha: float = 1) -> Identities:
    _refuse_parameters(site, left, other)
    refuse_activations(site, alpha)
    if not (isinstance(left, Value) and isinstance(other, Value)):
        return _with_constant(builder, site, left, other, scale_survives=False)
    builder.scales.union(left.ids.scale, other.ids.scale, f"added to a pinned value by {site.label}")
    return _met(builder, site, left.ids.scale, left, other)


@rule(*_PRODUCTS, methods=("mul", "mul_"))
def multiplied(builder: GraphBuilder, site: Site, left: Any, other: Any) -> Identities:
    """A factor of scale 1, such as a sigmoid gate, leaves the other factor's scale alone."""
    _refuse_parameters(site, left, other)
    if not (isinstance(left, Value) and isinstance(other, Value)):
        return _with_constant(builder, site, left, other, scale_survives=True)
    gate, gated = (left, other) if _is_pinned(builder, left) else (other, left)
    builder.scales.pin(gate.ids.scale, f"multiplied with another activation by {site.label}")
    return _met(builder, site, gated.ids.scale, left, other)


@rule(*_QUOTIENTS, methods=("div", "div_"))
def divided(builder: GraphBuilder, site: Site, left: Any, other: Any) -> Identities:
    _refuse_parameters(site, left, other)
    if isinstance(other, Value):
        raise site.refuse("it divides by an activation", "Use a normalisation layer (BatchNorm, GroupNorm, LayerNorm).")
    return _with_constant(builder, site, left, other, scale_survives=True)


def _met(builder: GraphBuilder, site: Site, scale: Tensor, left: Value, right: Value) -> Identities:
    """Neurons that meet element by element move together from now on; the pair of their roles is a new role."""
    shape = site.output.shape
    builder.neurons.union(left.ids.neuron, right.ids.neuron, site.label)
    wide = left if left.meta.shape == shape else right
    role = mix(left.ids.role, right.ids.role, builder.token())
    return Identities(scale.expand(shape), wide.ids.neuron.expand(shape), role.expand(shape))


def _with_constant(builder: GraphBuilder, site: Site, left: Any, right: Any, *, scale_survives: bool) -> Identities:
    value, constant = (left, right) if isinstance(left, Value) else (right, left)
    if site.output.shape != value.meta.shape:
        raise site.refuse("a constant changes the shape of an activation", "Give the constant the activation's shape.")
    adds_nothing = isinstance(constant, int | float) and constant == 0  # where `sum([a, b])` starts
    if not scale_survives and not adds_nothing:
        builder.scales.pin(value.ids.scale, f"a constant is added by {site.label}")
    if isinstance(constant, Tensor) and constant.numel() > 1:
        builder.neurons.pin(value.ids.neuron, f"combined with a constant tensor by {site.label}")
    return value.ids.changed(builder.token())


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
    result = builder.uniform(site, x, dims).changed(builder.token())
    if keepdim:
        for d in dims:
            result = result.map(lambda t, d=d: t.unsqueeze(d))  # type: ignore[misc]
    return result


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
)


@rule(*_PINNING_FUNCTIONS, methods=("sigmoid", "tanh", "exp", "log", "sqrt", "clamp", "square", "pow"))
def pinning(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
    refuse_activations(site, (args, kwargs))
    builder.scales.pin(x.ids.scale, f"input of {site.label}, which is not positively homogeneous")
    return x.ids.changed(builder.token())


@module_rule(*_PINNING_MODULES)
def _pinning_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return pinning(builder, site, x)


@rule(F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, methods=("softmax", "log_softmax"))
def softmax(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
    """Its sum runs over certain neurons, and the sum of others would be another one: they stay in place."""
    builder.neurons.pin(x.ids.neuron, f"input of {site.label}")
    return pinning(builder, site, x, *args, **kwargs)


@module_rule(nn.Softmax, nn.LogSoftmax)
def _softmax_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return softmax(builder, site, x)
