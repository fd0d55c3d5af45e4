"""Rules for what only moves elements: view, flatten, permute, cat, chunk, indexing, channel shuffle ..."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from bilateral.models.builder import GraphBuilder, Parameter, Site, Value, refuse_activations
from bilateral.models.identities import Identities, combine
from bilateral.models.rules import METHOD_RULES, module_rule, rule

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


def only_moves(node: fx.Node) -> bool:
    """Whether a call only moves elements: then its settings are places and shapes, and identities follow them."""
    if node.op == "call_method":
        return str(node.target) in (*_MOVING_METHODS, "view_as", "reshape_as", "expand_as")
    return node.op == "call_function" and node.target in _MOVING_FUNCTIONS


@rule(methods=("view_as", "reshape_as", "expand_as"))
def _in_the_shape_of_another(builder: GraphBuilder, site: Site, x: Value, other: Value | Parameter) -> Identities:
    shape = tuple(other.meta.shape)
    return x.ids.map(lambda t: t.reshape(shape) if t.numel() == other.meta.numel() else t.expand(shape))


@rule(torch.clone, methods=("contiguous", "clone", "float", "double", "to", "type_as"))
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


@rule(torch.cat, torch.concat, torch.concatenate, torch.stack)
def joined(builder: GraphBuilder, site: Site, tensors: Sequence[Value], dim: int = 0) -> Identities:
    if not all(isinstance(v, Value) for v in tensors):
        raise site.refuse("it joins a constant to an activation", "Join activations only.")
    if dim % site.output.dim() == 0:
        raise site.refuse("it joins along the batch dimension", "Join channels (dim=1) instead.")
    join = torch.stack if site.output.dim() > tensors[0].meta.dim() else torch.cat
    return combine(lambda parts: join(parts, dim), [v.ids for v in tensors])
