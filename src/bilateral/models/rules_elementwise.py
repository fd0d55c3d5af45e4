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
from bilateral.models.rules import NAMED_FUNCTION_RULES, handles_constants, module_rule, rule, takes_parameters

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


@handles_constants
@rule(*_SUMS, methods=("add", "add_", "sub", "sub_"))
def summed(builder: GraphBuilder, site: Site, left: Any, other: Any, *, alpha: float = 1) -> Identities:
    refuse_activations(site, alpha)
    if not (isinstance(left, Value) and isinstance(other, Value)):
        return _with_constant(builder, site, left, other, scale_survives=False)
    builder.scales.union(left.ids.scale, other.ids.scale, f"added to a pinned value by {site.label}")
    return _met(builder, site, left.ids.scale, left, other)


@takes_parameters
@handles_constants
@rule(*_PRODUCTS, methods=("mul", "mul_"))
def multiplied(builder: GraphBuilder, site: Site, left: Any, other: Any) -> Identities:
    """Factors multiply; one that is pinned to 1, such as a sigmoid gate's, leaves the other's alone."""
    for value, parameter in ((left, other), (other, left)):
        if isinstance(value, Value) and isinstance(parameter, Parameter) and _is_channel_factor(site, value, parameter):
            return _channel_factor(builder, site, value, parameter)
    left, other = builder.as_values(site, left, other)
    if not (isinstance(left, Value) and isinstance(other, Value)):
        return _with_constant(builder, site, left, other, scale_survives=True)
    scale = builder.scales.product(left.ids.scale, other.ids.scale, f"multiplied with an activation by {site.label}")
    return _met(builder, site, scale, left, other)


@handles_constants
@rule(*_QUOTIENTS, methods=("div", "div_"))
def divided(builder: GraphBuilder, site: Site, left: Any, other: Any) -> Identities:
    """A quotient has the quotient of the factors."""
    if not isinstance(other, Value):
        return _with_constant(builder, site, left, other, scale_survives=True)
    above = left.ids.scale if isinstance(left, Value) else torch.zeros((), dtype=torch.int64)
    reason = f"an activation is divided by it in {site.label}"
    scale = builder.scales.product(above, other.ids.scale, reason, power=-1)
    if isinstance(left, Value):
        return _met(builder, site, scale, left, other)
    ids = _with_constant(builder, site, left, other, scale_survives=True)
    return Identities(scale.expand(site.output.shape), ids.neuron, ids.role)


def _is_channel_factor(site: Site, x: Value, parameter: Parameter) -> bool:
    """Whether it is one number, or one along a single dimension that is not the batch."""
    wide = [dim for dim, size in enumerate(_sizes_beside(x, parameter)) if size > 1]
    return site.output.shape == x.meta.shape and len(wide) <= 1 and 0 not in wide


def _sizes_beside(x: Value, parameter: Parameter) -> list[int]:
    return [1] * (x.meta.dim() - parameter.meta.dim()) + list(parameter.meta.shape)


def _channel_factor(builder: GraphBuilder, site: Site, x: Value, parameter: Parameter) -> Identities:
    """A parameter that multiplies every channel (LayerScale) moves with its channels; scales pass through it."""
    num_dims = x.meta.dim()
    wide = [dim for dim, size in enumerate(_sizes_beside(x, parameter)) if size > 1]
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
    for value, other in ((left, right), (right, left)):
        if value.meta.shape == shape and builder.is_same_for_all(value.ids, other.ids, other.meta.shape):
            met = builder.met_by_clear(site, value.ids, other.ids, other.meta.shape)
            return Identities(scale.expand(shape), met.neuron, met.role)
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
        return builder.met_by_clear(site, value.ids, Identities.pinned(constant.shape), constant.shape)
    return value.ids.changed(builder.token())


@rule(torch.mean, torch.sum, torch.amax, methods=("mean", "sum", "amax"))
def reduced(
    builder: GraphBuilder, site: Site, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Identities:
    num_dims = x.meta.dim()
    dims = sorted({d % num_dims for d in ([dim] if isinstance(dim, int) else dim or range(num_dims))})
    if x.batch_dims.intersection(dims):
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


@rule(F.glu)
def gated(builder: GraphBuilder, site: Site, x: Value, dim: int = -1) -> Identities:
    """One half times the sigmoid of the other, element by element."""
    half = x.meta.shape[dim] // 2
    value, gate = (x.ids.map(lambda t, start=start: t.narrow(dim, start, half)) for start in (0, half))  # type: ignore[misc]
    builder.scales.pin(gate.scale, f"gate of {site.label}, which is not positively homogeneous")
    builder.neurons.union(value.neuron, gate.neuron, site.label)
    return Identities(value.scale, value.neuron, mix(value.role, gate.role, builder.token()))


@module_rule(nn.GLU)
def _gated_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value
) -> Identities:
    assert isinstance(module, nn.GLU)
    return gated(builder, site, x, module.dim)
