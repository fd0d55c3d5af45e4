"""The walked network once more with another number of samples: shapes may follow it, numbers may not."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from bilateral.errors import UnsupportedLayerError

BATCH: Final = 2
"""Samples of the walk: BatchNorm in training mode refuses one."""
OTHER_BATCH: Final = 3

_REMEDY: Final = "Use the number of samples in shapes only (x.view(x.size(0), -1)); or x.flatten(1)."


class OtherBatch:
    """Holds every value for `OTHER_BATCH` samples, and compares as the walk goes along."""

    def __init__(self) -> None:
        self._values: dict[fx.Node, Any] = {}

    def hold(self, node: fx.Node, value: Any) -> None:
        """A value that is no call: the input (with `OTHER_BATCH` samples), a parameter or a constant."""
        self._values[node] = value

    def of(self, arguments: Any) -> Any:
        return map_aggregate(arguments, lambda a: self._values[a] if isinstance(a, fx.Node) else a)

    def call(
        self, node: fx.Node, module: nn.Module | None, label: str, walked: tuple[Any, Any], output: Any, moves: bool
    ) -> None:
        """`walked` are the call's arguments in the walk, tensors as meta tensors; `output` is what it gave there."""
        args, kwargs = self.of(node.args), self.of(node.kwargs)
        if not moves and _holds_tensor(output) and _numbers((args, kwargs)) != _numbers(walked):
            raise _refusal(label, "one of its settings depends on the number of samples in a batch")
        try:
            other = run_call(node, module, args, kwargs)
        except Exception as error:  # torch raises many types for a shape that does not fit
            reason = f"it takes {BATCH} samples and not {OTHER_BATCH}: it depends on the number of samples ({error})"
            raise _refusal(label, reason) from error
        self._values[node] = other

    def check_size(self, node: fx.Node, label: str, output: Any) -> None:
        """After the call's own rule, which may know a better reason."""
        for ours, theirs in zip(_tensors(output), _tensors(self._values[node]), strict=False):
            if ours.numel() * OTHER_BATCH != theirs.numel() * BATCH:
                raise _refusal(label, "the size of its output does not follow the number of samples")

    def repeat(self, node: fx.Node, module: nn.Module | None) -> None:
        """A call without activations: on numbers, or on constants."""
        self._values[node] = run_call(node, module, self.of(node.args), self.of(node.kwargs))


def run_call(node: fx.Node, module: nn.Module | None, args: Any, kwargs: Any) -> Any:
    """The call itself, on meta tensors."""
    with torch.no_grad():
        if module is not None:
            return module(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)


def _refusal(label: str, reason: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(f"{label} cannot be protected: {reason}.", remedy=_REMEDY)


def _holds_tensor(output: Any) -> bool:
    return bool(_tensors(output))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in _leaves(tree) if isinstance(leaf, Tensor)]


def _numbers(tree: Any) -> list[Any]:
    return [leaf for leaf in _leaves(tree) if isinstance(leaf, int | float)]


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []

    def look(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_aggregate(tree, look)
    return found
