"""Transitional layers (P2 section 4.1): a diagonal layer of ones behind every layer that has parameters.

In a scale graph a weight's ratio is `scale[output] / scale[input]`, so one factor stands above the line for one layer
and below it for the next. P2 needs products: it lets a factor `r` end at a diagonal layer, behind which another one,
`1 / s`, begins. Then every weight has the ratio `r_output * s_input`, with `r` and `s` from any distribution.

    Linear -> ReLU -> Linear (head)        becomes        Linear -> Transitional -> ReLU -> Linear (head)

`expand` does this for every model that the scale graph accepts:
- behind each hidden Linear and convolution, as in P2;
- behind each normalisation layer with weights (P2 has none), whose weights have the ratio `r` and begin a scale too;
- before the head, if its inputs share their scale with another layer's inputs (residual networks), so that the head's
  factors are its own.

Formal guarantee (tests/models/test_transitional.py): the expanded network computes what the original computes, bit by
bit, and holds the very same parameters, so training one trains the other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bilateral.errors import ModelError
from bilateral.models.calls import trace
from bilateral.models.modes import kept_in_evaluation, note_kept_in_evaluation, set_training
from bilateral.models.rules_transitional import TRANSITIONAL, Transitional
from bilateral.models.scale_graph import ScaleGraph

_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CHANNEL_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)
_FUNCTIONS: Final[Mapping[Any, int]] = {
    F.linear: -1,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), 1),
    F.group_norm: 1,
}
"""Layers called as functions, and the dimension of their output's channels."""


def expand(model: nn.Module, example_input: Tensor) -> nn.Module:
    """`model` with transitional layers. It shares all modules, parameters and buffers with `model`.

    `example_input` has a batch dimension; only its shape matters. What the network does not use is not in it.
    """
    ScaleGraph.of(model, example_input)  # refuse here, in the words of the original model, what cannot be protected
    expander = _Expander(model, example_input)
    expanded = expander.after_layers()
    if _head_shares_its_inputs(ScaleGraph.of(expanded, example_input)):
        expanded = expander.before_head()
    return expanded


def is_transitional(kind: str) -> bool:
    """Whether a parameter of this kind (`ParameterLayout.kind`) belongs to a transitional layer."""
    return kind == TRANSITIONAL


def _head_shares_its_inputs(graph: ScaleGraph) -> bool:
    """Whether a class below the head's weights is also below another layer's weights."""
    own = graph.head_input_classes[graph.head_input_classes != 0]
    others = [
        p.binding.denominator.reshape(-1)
        for p in graph.parameters
        if p is not graph.head_weight and not is_transitional(p.kind)
        if p.binding is not None and p.binding.denominator is not None
    ]
    return bool(others) and bool(torch.isin(own, torch.cat(others)).any())


class _Expander:
    """A traced copy of the network's calls, into which layers are put."""

    def __init__(self, model: nn.Module, example_input: Tensor) -> None:
        self._model = model
        # The mode is part of a trace (F.dropout is told it), and an expanded network is there to be trained.
        kept = kept_in_evaluation(model)
        calls, constants = trace(set_training(copy.deepcopy(model), kept))
        self._module = _graph_module(model, calls, constants)
        note_kept_in_evaluation(self._module, kept)
        self._shapes = _Shapes(self._module).of(example_input)
        self._folder = "transitional"
        while hasattr(self._module, self._folder):
            self._folder += "_"
        self._head = next(n for n in self._module.graph.nodes if n.op == "output").args[0]

    def after_layers(self) -> nn.Module:
        for node in list(self._module.graph.nodes):
            dim = self._channel_dim(node)
            if dim is not None and node is not self._head:
                self._insert(node, dim)
        return self._finish()

    def before_head(self) -> nn.Module:
        assert isinstance(self._head, fx.Node)
        inputs = self._head.args[0]
        assert isinstance(inputs, fx.Node)
        self._insert(inputs, -1, only=self._head)
        return self._finish()

    def _insert(self, node: fx.Node, dim: int, only: fx.Node | None = None) -> None:
        place = "head" if only is not None else str(node.target if node.op == "call_module" else node.name)
        name = f"{'before' if only is not None else 'after'}_{place.replace('.', '_')}"
        path, number = f"{self._folder}.{name}", 1
        while path in dict(self._module.named_modules()):
            path, number = f"{self._folder}.{name}_{number}", number + 1
        shape = self._shapes[node]
        dtype = next(self._model.parameters()).dtype
        self._module.add_submodule(path, Transitional(shape[dim], dim, dtype).train(self._model.training))
        with self._module.graph.inserting_after(node):
            inserted = self._module.graph.call_module(path, (node,))
        self._shapes[inserted] = shape
        node.replace_all_uses_with(inserted, lambda user: user is not inserted and (only is None or user is only))

    def _finish(self) -> nn.Module:
        self._module.graph.lint()
        self._module.recompile()
        return self._module

    def _channel_dim(self, node: fx.Node) -> int | None:
        """The dimension of the channels, if this call is a layer with weights that begins a scale."""
        if node.op == "call_module":
            return _module_channel_dim(self._module.get_submodule(str(node.target)))
        if node.op != "call_function":
            return None
        if node.target in (F.layer_norm, F.group_norm) and _argument(node, 2, "weight") is None:
            return None
        if node.target is F.layer_norm:
            return -len(_argument(node, 1, "normalized_shape"))
        return _FUNCTIONS.get(node.target)


def _module_channel_dim(module: nn.Module) -> int | None:
    if isinstance(module, nn.Linear):
        return -1
    if isinstance(module, _CONVOLUTIONS):
        return 1
    if isinstance(module, nn.LayerNorm) and module.weight is not None:
        return -len(module.normalized_shape)
    if isinstance(module, _CHANNEL_NORMS) and module.weight is not None:
        return 1
    return None


def _argument(node: fx.Node, place: int, name: str) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _graph_module(model: nn.Module, calls: fx.Graph, constants: Mapping[str, Tensor]) -> fx.GraphModule:
    """The recorded calls as a module that shares `model`'s parts; constants made in `forward` become attributes."""
    for name, value in constants.items():
        setattr(model, name, value)  # where torch.fx looks for them, for as long as it looks
    try:
        return fx.GraphModule(model, calls, f"Expanded{type(model).__name__}")
    finally:
        for name in constants:
            delattr(model, name)


class _Shapes(fx.Interpreter):
    """Runs a copy of the network on zeros, and keeps the shape of every value."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._nodes = {n.name: n for n in module.graph.nodes}
        self._found: dict[fx.Node, torch.Size] = {}
        super().__init__(copy.deepcopy(module).eval())

    def of(self, example_input: Tensor) -> dict[fx.Node, torch.Size]:
        real = example_input.is_floating_point()
        dtype = next(self.module.parameters()).dtype if real else example_input.dtype
        with torch.no_grad():
            self.run(torch.zeros(2, *example_input.shape[1:], dtype=dtype))
        return self._found

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self._found[self._nodes[n.name]] = result.shape
        return result


def original_names(model: nn.Module, expanded: nn.Module) -> dict[str, str]:
    """For each trained-model parameter of `expanded`, the name that `model` has for the same tensor.

    The first name where several layers share a tensor, which is the one that the scale graph uses.
    """
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names.setdefault(id(parameter), name)
    found = {n: names[id(p)] for n, p in expanded.named_parameters() if id(p) in names}
    if not found:
        raise ModelError(
            "The expanded model has no parameter in common with the model.",
            remedy="Use `expand` on this very model, not on a copy of it.",
        )
    return found
