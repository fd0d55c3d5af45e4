"""Rules for what only moves elements: view, flatten, permute, cat, chunk, indexing, channel shuffle ..."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from bilateral.models.builder import GraphBuilder, Parameter, Site, Value, refuse_activations
from bilateral.models.identities import Identities, combine
from bilateral.models.rules import METHOD_RULES, module_rule, rule, takes_parameters

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
    torch.t,
    torch.adjoint,
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
_TRANSPOSED = ("T", "mT", "H", "mH")
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


@rule(getattr)
def _attribute(builder: GraphBuilder, site: Site, x: Value, name: str) -> Identities:
    if name not in _TRANSPOSED:
        raise site.refuse(f"there is no rule for `.{name}`", "Use a function of torch instead.")
    return x.ids.map(lambda t: getattr(t, name))


COPIES = ("contiguous", "clone", "to", "type_as", "float", "double")


def only_moves(node: fx.Node) -> bool:
    """Whether a call only moves elements: then its settings are places and shapes, and identities follow them."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _TRANSPOSED
    if node.op == "call_method":
        return str(node.target) in (*_MOVING_METHODS, "view_as", "reshape_as", "expand_as")
    return node.op == "call_function" and node.target in _MOVING_FUNCTIONS


@rule(methods=("view_as", "reshape_as", "expand_as"))
def _in_the_shape_of_another(builder: GraphBuilder, site: Site, x: Value, other: Value | Parameter) -> Identities:
    shape = tuple(other.meta.shape)
    return x.ids.map(lambda t: t.reshape(shape) if t.numel() == other.meta.numel() else t.expand(shape))


def moves_parameters(node: fx.Node) -> bool:
    """Whether a call on parameters alone only moves, copies or joins their elements."""
    if node.op == "call_function" and node.target in (torch.clone, torch.cat, torch.concat, torch.stack):
        return True
    return only_moves(node) or (node.op == "call_method" and str(node.target) in COPIES)


@rule(torch.clone, methods=COPIES)
def _copied(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
    if torch.promote_types(x.meta.dtype, site.output.dtype) != site.output.dtype:
        raise site.refuse(
            f"it rounds an activation to {site.output.dtype}", "Keep activations in the precision of the model."
        )
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


@takes_parameters
@rule(torch.cat, torch.concat, torch.concatenate, torch.stack)
def joined(builder: GraphBuilder, site: Site, tensors: Sequence[Any], dim: int = 0) -> Identities:
    activations = [v for v in tensors if isinstance(v, Value)]
    given, tensors = tensors, builder.as_values(site, *tensors)
    if not all(isinstance(v, Value) for v in tensors):
        raise site.refuse("it joins a constant to an activation", "Join activations only.")
    join = torch.stack if site.output.dim() > tensors[0].meta.dim() else torch.cat
    place = dim % site.output.dim()
    if any(place in v.batch_dims for v in tensors) or (join is torch.stack and place == 0):
        raise site.refuse("it joins along the batch dimension", "Join channels (dim=1) instead.")
    for value, before in zip(tensors, given, strict=True):
        if value is not before and join is torch.cat:
            _tie_token(builder, site, value, activations[0], place)
    return combine(lambda parts: join(parts, dim), [v.ids for v in tensors])


def _tie_token(builder: GraphBuilder, site: Site, token: Value, beside: Value, dim: int) -> None:
    """A learned token has the channels of those that it is put in front of, unless it is joined channel by channel."""
    neurons = builder.neurons.narrowed(beside.ids.neuron)
    if neurons.shape[dim] == 1 and token.meta.shape[dim] == 1:
        builder.neurons.union(token.ids.neuron, neurons, site.label)
