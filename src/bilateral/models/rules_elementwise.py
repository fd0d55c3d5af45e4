"""Rules for what acts on single elements, or on elements that meet.

passes factors through    ReLU, LeakyReLU, dropout, stochastic depth, abs, multiplication by a number or by a parameter
needs equal factors       residual sums, means over a dimension
pins factors to 1         every other nonlinearity, and a sum with a constant
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.builder import Axis, Binding, GraphBuilder, Parameter, Site, Value, refuse_activations
from bilateral.models.identities import Identities, mix
from bilateral.models.rules import NAMED_FUNCTION_RULES, module_rule, rule

CHANNEL_FACTOR: Final = "channel factor"

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


def _stochastic_depth(
    builder: GraphBuilder, site: Site, input: Value, p: float, mode: str, training: bool = True
) -> Identities:
    """torchvision's: a whole sample (or the batch) is dropped or multiplied by one number, as dropout does."""
    return homogeneous(builder, site, input, p, mode, training)


NAMED_FUNCTION_RULES["torchvision.ops.stochastic_depth.stochastic_depth"] = _stochastic_depth


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
    for value, parameter in ((left, other), (other, left)):
        if isinstance(value, Value) and isinstance(parameter, Parameter):
            return _channel_factor(builder, site, value, parameter)
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


def _channel_factor(builder: GraphBuilder, site: Site, x: Value, parameter: Parameter) -> Identities:
    """A parameter that multiplies every channel (LayerScale) moves with its channels; scales pass through it."""
    num_dims = x.meta.dim()
    sizes = [1] * (num_dims - parameter.meta.dim()) + list(parameter.meta.shape)
    wide = [dim for dim, size in enumerate(sizes) if size > 1]
    if site.output.shape != x.meta.shape or len(wide) > 1 or 0 in wide:
        raise site.refuse(
            f"its bare parameter `{parameter.name}` of shape {tuple(parameter.meta.shape)} is no factor of channels",
            "Give it one number a channel, or express it as a layer.",
        )
    if not wide:
        builder.bind(site, parameter, Binding("factor"))
        return x.ids.changed(builder.token())
    axis = Axis.of(builder.uniform(site, x, [dim for dim in range(num_dims) if dim != wide[0]]))
    builder.bind(site, parameter, Binding(CHANNEL_FACTOR, outputs=axis))
    copies = axis.copies().view([-1 if dim == wide[0] else 1 for dim in range(num_dims)])
    role = mix(x.ids.role, copies, builder.token()).expand(x.meta.shape)
    return Identities(x.ids.scale, x.ids.neuron, role)


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
            result = result.map(partial(torch.unsqueeze, dim=d))
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
