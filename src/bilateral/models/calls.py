"""The calls of a network as `torch.fx` records them, and the refusal of what such a record does not show.

The scale graph reasons about recorded calls, clients run the module itself. So a record counts only if

- nothing but the calls changes values or gradients: no hooks, parametrizations or backward passes of a user's own;
- it comes out the same every time, in both modes and for other parameters: no random numbers, no state, no switches;
- run on real numbers, it gives what the module gives.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import BackwardCFunction
from torch.fx.node import map_aggregate
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from bilateral.errors import BilateralError, ModelError
from bilateral.models.integer_inputs import integers_below
from bilateral.models.modes import kept_in_evaluation, set_training
from bilateral.models.no_dropout import NoDropout
from bilateral.models.rules import function_rule
from bilateral.models.spelled_out import SPELLED_OUT, drop_unused_weights

MODE_IS_AN_ARGUMENT: Final = ("dropout", "stochastic_depth")
"""Functions that are told the mode, and pass factors through in both."""
_MODE_ARGUMENTS: Final = {"scaled_dot_product_attention": (4, "dropout_p"), "batch_norm": (5, "training")}
"""Functions of which one argument may tell the mode, its place and name."""
_MAKERS: Final = ("arange", "zeros", "ones", "full", "eye")
_TRACING: Final = threading.RLock()
"""Traces replace functions of torch for a moment, so there is one at a time."""
_HOOKS: Final = (
    ("_forward_hooks", "forward hook"),
    ("_forward_pre_hooks", "forward pre-hook"),
    ("_backward_hooks", "backward hook"),
    ("_backward_pre_hooks", "backward pre-hook"),
)
_TOLERANCE: Final = 1e-5
"""Between two runs of the same calls, over the largest output; half precision is off by more than 1e-3."""


@dataclass(frozen=True)
class Calls:
    """The recorded calls, the constants that `forward` made on the way, and a copy of the module in training mode."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    module: nn.Module
    kept_in_evaluation: tuple[str, ...]


def record(model: nn.Module) -> Calls:
    """Record the calls of `model` in training, or say why that record would not tell the truth."""
    name = type(model).__name__
    _refuse_without_values(model)
    _refuse_hooks(model)
    try:
        copied = copy.deepcopy(model)
    except Exception as error:  # user modules may do anything in __deepcopy__
        raise ModelError(f"{name} cannot be copied: {error}.", remedy="Make the module copyable.") from error
    kept = kept_in_evaluation(model)
    graph, constants = trace(set_training(copied, kept))
    recorded = _spelled(graph, constants)
    if _spelled(*trace(copied)) != recorded:
        raise ModelError(
            f"{name} computes something else each time it is called: `forward` draws random numbers or keeps a state.",
            remedy="Use Dropout layers for randomness, and register_buffer for constants.",
        )
    if _spelled(*trace(copied.eval())) != recorded:
        raise ModelError(
            f"{name} computes something else in training than in evaluation.",
            remedy="Remove `if self.training` from `forward`; leave such switches to Dropout and BatchNorm.",
        )
    if _spelled(*trace(_with_other_parameters(set_training(copied, kept)))) != recorded:
        raise ModelError(
            f"{name} computes a constant from the values of its parameters, which the trace takes for fixed.",
            remedy="Use parameters through layers (Linear, convolution, normalisation, PReLU) only.",
        )
    return Calls(graph, constants, copied, kept)


def trace(model: nn.Module) -> tuple[fx.Graph, dict[str, Tensor]]:
    """Calls and the constants made in `forward`; `model` is left as it was."""
    before = set(vars(model))
    try:
        with _sizes_of_constants():
            graph = _traced(model)
        drop_unused_weights(graph)
    except BilateralError:
        raise
    except Exception as error:  # fx raises whatever the model's own code raises
        raise ModelError(
            f"{type(model).__name__} cannot be traced by torch.fx: {error}.",
            remedy="Remove control flow that depends on tensor values, or on the number of samples, from `forward`.",
        ) from error
    made = {n: v for n, v in vars(model).items() if n not in before and n.startswith("_tensor_constant")}
    for name in made:
        delattr(model, name)
    return graph, made


def _traced(model: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(model)
    except (TypeError, IndexError):  # a buffer is cut to the size of an activation: it has to be recorded as well
        with_buffers = _Tracer()
        with_buffers.proxy_buffer_attributes = True
        return with_buffers.trace(model)


@contextmanager
def _sizes_of_constants() -> Iterator[None]:
    """Record constants whose size is one of an activation (`torch.arange(x.size(1))`), which torch.fx refuses."""

    def recording(made: Callable[..., Any]) -> Callable[..., Any]:
        def record_or_make(*args: Any, **kwargs: Any) -> Any:
            proxies: list[fx.Proxy] = []
            map_aggregate((args, kwargs), lambda a: proxies.append(a) if isinstance(a, fx.Proxy) else a)
            if not proxies:
                return made(*args, **kwargs)
            return proxies[0].tracer.create_proxy("call_function", made, args, kwargs)

        return record_or_make

    with _TRACING:
        kept = {name: getattr(torch, name) for name in _MAKERS}
        try:
            for name, made in kept.items():
                setattr(torch, name, recording(made))
            yield
        finally:
            for name, made in kept.items():
                setattr(torch, name, made)


class _Tracer(fx.Tracer):
    """Names a hook on an activation, for which torch.fx itself has no word; records composite layers written out."""

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        written = SPELLED_OUT.get(type(m))
        return super().call_module(m, forward, args, kwargs) if written is None else written(m, *args, **kwargs)

    def create_proxy(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Proxy:
        if kind == "call_method" and "hook" in str(target):
            raise _hooked(f"`{target}` (called in `forward`)", "hook on an activation")
        return super().create_proxy(kind, target, *args, **kwargs)


def check_inputs(
    model: nn.Module,
    input_shape: tuple[int, ...],
    vocabulary: Tensor | None = None,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Two samples that the model takes: normal ones in its own precision, or integers of `dtype` within its tables."""
    generator = torch.Generator().manual_seed(0)
    if vocabulary is None:
        own = next(p.dtype for p in model.parameters() if p.is_floating_point())
        return torch.randn(2, *input_shape, dtype=own, generator=generator)
    return integers_below(vocabulary, torch.rand(2, *input_shape, generator=generator)).to(dtype)


def check_record(model: nn.Module, calls: Calls, inputs: Tensor) -> None:
    """Run module and record on the same two samples; refuse a difference, and backward passes of a user's own."""
    name = type(model).__name__
    module = set_training(copy.deepcopy(model), calls.kept_in_evaluation)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), NoDropout():
        expected = _run(name, module, inputs)
        for constant, value in calls.constants.items():
            setattr(module, constant, value)
        got = _run(name, fx.GraphModule(module, calls.graph), inputs)
    for function in _backward_functions(expected):
        raise ModelError(
            f"{name} cannot be protected: `{function}` has a backward pass of its own (torch.autograd.Function), which "
            "the trace does not see.",
            remedy="Write it with torch's own functions.",
        )
    size = float(expected.detach().abs().nan_to_num().max())
    if not torch.allclose(got, expected, rtol=0.0, atol=_TOLERANCE * size, equal_nan=True):
        raise ModelError(
            f"{name} cannot be protected: it does not compute what the trace of its calls computes.",
            remedy="Remove what a trace does not show (autocast, state outside of the module) from `forward`.",
        )


def _run(name: str, module: nn.Module, inputs: Tensor) -> Tensor:
    torch.default_generator.manual_seed(1)
    try:
        result = module(inputs.clone())
    except Exception as error:  # what a meta tensor passes and a real one does not
        raise ModelError(
            f"{name} fails on an input of shape {tuple(inputs.shape)}: {error}.",
            remedy="Check the model against the shape of the data.",
        ) from error
    assert isinstance(result, Tensor)
    return result


def _spelled(graph: fx.Graph, constants: dict[str, Tensor]) -> list[tuple[object, ...]]:
    """Calls with their arguments and constants, to compare two traces."""
    return [_spelled_call(node, constants) for node in graph.nodes]


def _spelled_call(node: fx.Node, constants: dict[str, Tensor]) -> tuple[object, ...]:
    if node.op == "get_attr" and node.target in constants:
        value = constants[str(node.target)].detach()
        return (node.op, value.dtype, tuple(value.shape), value.cpu().contiguous().numpy().tobytes())
    told = node.op == "call_function" and any(word in str(node.target) for word in MODE_IS_AN_ARGUMENT)
    has_rule = node.op != "call_function" or function_rule(node.target) is not None
    # A function without a rule is refused by the walk, by its name, whatever it is told.
    args, kwargs = _without_mode(node)
    return (node.op, node.target, f"{args} {kwargs}" if has_rule and not told else "")


def _without_mode(node: fx.Node) -> tuple[Any, Any]:
    place, name = _MODE_ARGUMENTS.get(getattr(node.target, "__name__", ""), (None, ""))
    if node.op != "call_function" or place is None:
        return node.args, node.kwargs
    return (*node.args[:place], *node.args[place + 1 :]), {k: v for k, v in node.kwargs.items() if k != name}


def _with_other_parameters(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    return module


def _backward_functions(output: Tensor) -> Iterator[str]:
    """Names of the functions of a user's own in the graph of `output`."""
    stack: list[Any] = [output.grad_fn]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            yield type(node).__name__.removesuffix("Backward")
        stack.extend(parent for parent, _ in node.next_functions)


def _refuse_without_values(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise ModelError(f"`{name}` has no shape yet.", remedy="Run the lazy module once on an example input.")
        if tensor.is_meta:
            raise ModelError(
                f"`{name}` is on the device meta: it has a shape and no values.",
                remedy="Build the model outside of torch.device('meta'), or fill it after `to_empty`.",
            )


def _refuse_hooks(model: nn.Module) -> None:
    for path, module in model.named_modules():
        label = f"{type(module).__name__} `{path}`" if path else type(module).__name__
        if parametrize.is_parametrized(module):
            raise ModelError(
                f"{label} cannot be protected: it has a parametrization, so its weights are computed, not parameters.",
                remedy="Use torch.nn.utils.parametrize.remove_parametrizations, or a plain layer.",
            )
        if "forward" in vars(module):
            raise ModelError(
                f"{label} cannot be protected: its `forward` was replaced on the object, which its type does not show.",
                remedy="Write a class with that `forward` instead.",
            )
        for attribute, kind in _HOOKS:
            if getattr(module, attribute):
                raise _hooked(label, kind)
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise _hooked(f"Parameter `{name}`", "gradient hook")
    if torch_module._has_any_global_hook():  # type: ignore[no-untyped-call]
        raise _hooked("Every module", "global hook")


def _hooked(label: str, kind: str) -> ModelError:
    return ModelError(
        f"{label} cannot be protected: it has a {kind}, which may change what is computed and which the trace does not "
        "see.",
        remedy="Remove the hook (pruning: prune.remove; weight_norm: remove_weight_norm), or write it into `forward`.",
    )
