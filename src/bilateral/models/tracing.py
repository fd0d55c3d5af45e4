"""From an `nn.Module` to filled-in identities: trace with `torch.fx`, then walk the graph call by call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from bilateral.errors import BilateralError, ModelError

# Importing the rule files registers their rules.
from bilateral.models import (  # noqa: F401
    rules_attention,
    rules_clear,
    rules_elementwise,
    rules_moving,
    rules_parametric,
    rules_recurrent,
    rules_spatial,
    rules_spelled,
    rules_tables,
)
from bilateral.models.builder import GraphBuilder, NormInputs, Parameter, Site, Stored, Value
from bilateral.models.calls import Calls, check_inputs, check_record, record
from bilateral.models.identities import Identities
from bilateral.models.other_batch import BATCH, OTHER_BATCH, OtherBatch, run_call
from bilateral.models.rules import HANDLES_CONSTANTS, METHOD_RULES, MODULE_RULES, TAKES_PARAMETERS, function_rule
from bilateral.models.rules_moving import COPIES, moves_parameters, only_moves

SUPPORTED = (
    "Supported: Linear, Conv1d/2d/3d (grouped, transposed), ReLU, LeakyReLU, PReLU, pooling, upsampling, padding, "
    "BatchNorm, GroupNorm, LayerNorm, Dropout, Embedding, attention, matmul, LSTM, GRU, flatten/view/cat/add; sigmoid, "
    "tanh, GELU and the like are pinned."
)

_NUMPY_NAMES: Final = {"axis": "dim", "keepdims": "keepdim"}


@dataclass(frozen=True)
class Walk:
    """A walked network: what the rules collected, and which Linear is its head."""

    builder: GraphBuilder
    head: str
    head_inputs: Value
    num_outputs: int
    parameter_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    kept_in_evaluation: tuple[str, ...]
    vocabulary: Tensor | None = None


def walk(model: nn.Module, example_input: Tensor, norm_inputs: NormInputs = "exact") -> Walk:
    """Trace `model` and apply the rule of every call. Of `example_input` only shape and type matter."""
    calls = record(model)
    input_shape = tuple(example_input.shape[1:])
    integers = None if example_input.is_floating_point() else example_input.dtype
    found = _Walker(model, calls, norm_inputs, integers).run(input_shape)
    tied = found.builder.tied_outputs()
    if tied:
        found = _Walker(model, calls, norm_inputs, integers, tied).run(input_shape)
    check_record(model, calls, check_inputs(model, input_shape, found.vocabulary, example_input.dtype))
    return found


class _Walker:
    def __init__(
        self,
        model: nn.Module,
        calls: Calls,
        norm_inputs: NormInputs,
        integers: torch.dtype | None = None,
        parts: dict[int, Tensor] | None = None,
    ) -> None:
        self._calls = calls
        self._builder = GraphBuilder(norm_inputs=norm_inputs, parts=parts or {})
        self._integers = integers
        self._canonical = _canonical_names(model)
        self._model = model
        self._dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        self._meta = calls.module.to(device="meta")
        self._values: dict[fx.Node, Any] = {}
        self._other = OtherBatch()
        self._linear_calls: dict[fx.Node, tuple[Value, Parameter]] = {}

    def run(self, input_shape: tuple[int, ...]) -> Walk:
        nodes = self._calls.graph.nodes
        inputs = [n for n in nodes if n.op == "placeholder" and not n.args]
        if len(inputs) != 1:
            raise ModelError(
                f"The model takes {len(inputs)} inputs.",
                remedy="Give it exactly one input tensor (use cat to join).",
            )
        output: fx.Node | None = None
        for node in nodes:
            if node is inputs[0]:
                shape = (BATCH, *input_shape)
                ids = Identities.pinned(shape) if self._integers is None else self._builder.hold_integers(shape)
                other = torch.Size((OTHER_BATCH, *input_shape))
                self._values[node] = replace(Value.of(self._empty(shape), ids), other_shape=other)
                self._other.hold(node, self._empty((OTHER_BATCH, *input_shape)))
            elif node.op in ("placeholder", "get_attr"):
                held = node.args[0] if node.op == "placeholder" else self._attribute(str(node.target))
                self._values[node] = held
                self._other.hold(node, _to_meta(held))
            elif node.op == "output":
                output = node
            else:
                self._values[node] = self._call(node)
        assert output is not None
        return self._finish(output, input_shape)

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, device="meta", dtype=self._integers or self._dtype)

    def _attribute(self, path: str) -> Any:
        if path in self._calls.constants:
            return self._calls.constants[path].detach().cpu()
        found: Any = self._model
        for part in path.split("."):
            found = getattr(found, part)
        if isinstance(found, nn.Parameter):
            return Parameter(self._canonical[path], found.detach().to(device="meta"))
        return found.detach().cpu() if isinstance(found, Tensor) else found

    def _call(self, node: fx.Node) -> Any:
        args = map_aggregate(node.args, lambda a: self._values[a] if isinstance(a, fx.Node) else a)
        kwargs = map_aggregate(node.kwargs, lambda a: self._values[a] if isinstance(a, fx.Node) else a)
        assert isinstance(args, tuple)
        assert isinstance(kwargs, dict)
        args, kwargs = _by_position(args, dict(kwargs))
        module = self._meta.get_submodule(str(node.target)) if node.op == "call_module" else None
        label = _label(node, module)
        if module is not None and type(module) not in MODULE_RULES:
            raise Site(label, torch.empty(0)).refuse("there is no rule for it", f"Replace it. {SUPPORTED}")
        held = _held((args, kwargs))
        self._check_overwritten(held, label)
        output = self._meta_result(node, module, args, kwargs, label)
        if not _holds_tensor(output):  # x.shape, x.size(0), x.dim(): plain numbers
            return output
        site = Site(label, output, str(node.target) if module is not None else "")
        if not any(isinstance(argument, Value) for argument in held):
            if not held and type(module) is not nn.Embedding:
                return output  # a constant
            if held and moves_parameters(node):
                return self._told(node, self._moved_parameters(node, site, output, args, kwargs))
        if self._rule(node, module, site) not in TAKES_PARAMETERS:
            args, kwargs = self._with_values(site, (args, kwargs), held)
        applied = self._told(node, self._apply(node, module, site, args, kwargs))
        if any(isinstance(argument, Value) and argument.batch_dims for argument in held):
            self._other.check_size(node, label, output)
        if not only_moves(node) and self._rule(node, module, site) not in HANDLES_CONSTANTS:
            _keep_in_place(self._builder, site, held, _constants((args, kwargs)))
        if type(module) is nn.Linear:
            weight = Parameter(self._canonical[f"{node.target}.weight"], module.weight)
            assert isinstance(args[0], Value)
            self._linear_calls[node] = (args[0], weight)
        return applied

    def _moved_parameters(
        self, node: fx.Node, site: Site, output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Bare parameters that are moved, copied or joined among themselves: the same with their elements."""

        def elements(argument: Any) -> Any:
            if isinstance(argument, Parameter):
                return self._builder.bare.stored(argument, site).elements
            return argument.elements if isinstance(argument, Stored) else argument

        if node.op == "call_method" and str(node.target) in COPIES:
            (held,) = _held((args, kwargs))
            return Stored(output, elements(held))
        moved = run_call(node, None, map_aggregate(args, elements), map_aggregate(kwargs, elements))
        if isinstance(moved, Tensor):
            return Stored(output, moved)
        return tuple(Stored(meta, part) for meta, part in zip(output, moved, strict=True))

    def _with_values(self, site: Site, arguments: Any, held: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, bare parameters among them as values beside its activations."""
        values = [argument for argument in held if isinstance(argument, Value)]

        def as_value(argument: Any) -> Any:
            if isinstance(argument, Parameter | Stored):
                return self._builder.bare.value(site, argument, values)
            return argument

        args, kwargs = map_aggregate(arguments, as_value)
        return args, kwargs

    def _told(self, node: fx.Node, applied: Any) -> Any:
        """Values with the shapes that they have for another number of samples."""

        def tell(part: Any, other: Any) -> Any:
            if isinstance(part, Value | Stored):
                return replace(part, other_shape=other.shape)
            if isinstance(part, tuple):
                return tuple(tell(*pair) for pair in zip(part, other, strict=True))
            return part

        return tell(applied, self._other.of(node))

    def _check_overwritten(self, held: list[Any], label: str) -> None:
        for argument in held:
            if isinstance(argument, Value) and argument.was_overwritten:
                raise Site(label, argument.meta).refuse(
                    "it uses a value (or a view of one) after an in-place operation has overwritten it",
                    "Use the in-place operation's result, or set inplace=False.",
                )

    def _apply(
        self, node: fx.Node, module: nn.Module | None, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        applied = self._rule(node, module, site)
        try:
            ids = applied(self._builder, site, *self._module_arguments(node, module), *args, **kwargs)
            return _wrap(site, site.output, ids)
        except BilateralError:
            raise
        except Exception as error:  # a form of the call that torch accepts and the rule does not
            if args and isinstance(args[0], Tensor):
                raise site.refuse(
                    "it is called on a constant and not on an activation",
                    "Make the constant ready where the model is built (a buffer), or replace the call.",
                ) from error
            raise site.refuse(
                f"there is no rule for this form of the call ({error})",
                "Call it with plain positional arguments, or replace it.",
            ) from error

    def _rule(self, node: fx.Node, module: nn.Module | None, site: Site) -> Callable[..., Any]:
        if module is not None:
            found = MODULE_RULES.get(type(module))
        elif node.op == "call_method":
            found = METHOD_RULES.get(str(node.target))
        else:
            found = function_rule(node.target)
        if found is None and _is_marked(node):
            raise site.refuse(
                "there is no rule for it, and what it does inside is not seen: it is marked for torch.fx as one call "
                "(`torch.fx.wrap`)",
                "Write it out in `forward` without the mark, if it has no `if` on values.",
            )
        if found is None:
            raise site.refuse("there is no rule for it", f"Replace it. {SUPPORTED}")
        return found

    def _module_arguments(self, node: fx.Node, module: nn.Module | None) -> tuple[Any, ...]:
        if module is None:
            return ()
        path = str(node.target)
        own = {
            name: Parameter(self._canonical[f"{path}.{name}"], parameter)
            for name, parameter in module.named_parameters()
        }
        return (module, own)

    def _meta_result(
        self,
        node: fx.Node,
        module: nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        label: str,
    ) -> Any:
        plain_args, plain_kwargs = map_aggregate(args, _to_meta), map_aggregate(kwargs, _to_meta)
        if "device" in plain_kwargs and not _held((args, kwargs)):  # a constant is known, not only its shape
            plain_kwargs = {**plain_kwargs, "device": "cpu"}
        try:
            result = run_call(node, module, plain_args, plain_kwargs)
        except Exception as error:  # torch raises many types for a shape that does not fit
            shapes = [tuple(a.meta.shape) for a in args if isinstance(a, Value)]
            raise ModelError(
                f"{label} does not accept an input of shape {shapes}: {error}.",
                remedy="Check the model against the shape of the data.",
            ) from error
        of_activation = any(isinstance(a, Value) for a in _held((args, kwargs)))
        self._other.call(node, module, label, result, of_activation=of_activation)
        return result

    def _named(self, node: fx.Node) -> str:
        return _label(node, self._meta.get_submodule(str(node.target)) if node.op == "call_module" else None)

    def _finish(self, output: fx.Node, input_shape: tuple[int, ...]) -> Walk:
        result = output.args[0]
        if not isinstance(result, fx.Node) or result not in self._linear_calls:
            last = self._named(result) if isinstance(result, fx.Node) else f"a {type(result).__name__}"
            raise ModelError(
                f"The model's output is not the output of an nn.Linear module, but of {last}.",
                remedy="End the model with nn.Linear and leave softmax or sigmoid to the loss; wrap a lone layer in "
                "nn.Sequential.",
            )
        head_input, weight = self._linear_calls[result]
        site = Site(f"The head (Linear `{weight.name}`)", self._values[result].meta)
        if result.kwargs:
            raise site.refuse("it is called by keyword", "Call it as `self.head(x)`.")
        if head_input.meta.dim() != 2:
            raise site.refuse(f"its input has shape {tuple(head_input.meta.shape)}", "Flatten it to (batch, features).")
        if len(head_input.meta) != BATCH:
            raise site.refuse(
                f"it gets {len(head_input.meta)} rows for a batch of {BATCH} samples",
                "Keep the batch dimension (x.flatten(1), or x.view(x.size(0), -1)).",
            )
        if head_input.was_overwritten:
            raise site.refuse("its input is overwritten in place afterwards", "Leave the head's input as it is.")
        if len(result.users) != 1:
            raise site.refuse("its output is also used inside the network", "Use it as the model's output only.")
        if self._builder.uses[weight.name] != 1:
            raise site.refuse("its weight is shared with another layer", "Give the head a weight of its own.")
        head = str(result.target)
        if self._builder.uses[self._canonical.get(f"{head}.bias", "")] > 1:
            raise site.refuse("its bias is shared with another layer", "Give the head a bias of its own.")
        builder = self._builder
        builder.bare.finish()
        builder.scales.pin(self._values[result].ids.scale, "output of the network")
        builder.neurons.pin(self._values[result].ids.neuron, "output of the network")
        limits = builder.input_limits
        return Walk(
            builder,
            head=weight.name.removesuffix(".weight"),
            head_inputs=head_input,
            num_outputs=int(self._values[result].meta.shape[1]),
            parameter_names=tuple(dict.fromkeys(self._canonical.values())),
            input_shape=input_shape,
            kept_in_evaluation=self._calls.kept_in_evaluation,
            vocabulary=None if limits is None else limits[: math.prod(input_shape)].reshape(input_shape),
        )


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter -> the first name of the same tensor (shared weights have several)."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    return {n: first[id(p)] for n, p in model.named_parameters(remove_duplicate=False)}


def _label(node: fx.Node, module: nn.Module | None) -> str:
    if module is not None:
        return f"{type(module).__name__} `{node.target}`"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return f"`{name}` (node `{node.name}`)"


def _to_meta(argument: Any) -> Any:
    if isinstance(argument, Value | Parameter | Stored):
        return argument.meta
    return argument.to("meta") if isinstance(argument, Tensor) and argument.is_floating_point() else argument


def _by_position(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Torch's first argument by position whatever its name, and numpy's names replaced by torch's."""
    for name in ("input", "tensor"):
        if not args and name in kwargs:
            args = (kwargs.pop(name),)
    return args, {_NUMPY_NAMES.get(name, name): value for name, value in kwargs.items()}


def _is_marked(node: fx.Node) -> bool:
    """Whether it is a function of somebody's Python code: a trace goes into these, but for those that are marked."""
    package = str(getattr(node.target, "__module__", "") or "").split(".", maxsplit=1)[0]
    return isinstance(node.target, FunctionType) and package not in ("torch", "_operator", "bilateral")


def _held(arguments: Any) -> list[Any]:
    """All values and parameters inside nested arguments."""
    found: list[Any] = []

    def look(argument: Any) -> Any:
        if isinstance(argument, Value | Parameter | Stored):
            found.append(argument)
        return argument

    map_aggregate(arguments, look)
    return found


def _holds_tensor(output: Any) -> bool:
    return isinstance(output, Tensor) or (
        isinstance(output, tuple | list) and any(isinstance(part, Tensor) for part in output)
    )


def _constants(arguments: Any) -> list[Tensor]:
    """All tensors inside nested arguments that tell elements apart."""
    found: list[Tensor] = []

    def look(argument: Any) -> Any:
        if isinstance(argument, Tensor) and argument.numel() > 1:
            found.append(argument)
        return argument

    map_aggregate(arguments, look)
    return found


def _keep_in_place(builder: GraphBuilder, site: Site, held: list[Any], constants: list[Tensor]) -> None:
    """What meets a constant of several elements, whatever the call, must not change places with a neighbour."""
    for value in held:
        if constants and isinstance(value, Value):
            builder.neurons.pin(value.ids.neuron, f"combined with a constant tensor by {site.label}")


def _wrap(site: Site, output: Any, ids: Any) -> Any:
    if isinstance(ids, Identities):
        assert isinstance(output, Tensor)
        if ids.scale.shape != output.shape:
            raise site.refuse(
                f"its output of shape {tuple(output.shape)} has another shape than the activation that it changes",
                "Give the constant the activation's shape.",
            )
        return Value.of(output, ids)
    if isinstance(ids, Value | Stored):
        return ids
    return tuple(_wrap(site, part, i) for part, i in zip(output, ids, strict=True))
