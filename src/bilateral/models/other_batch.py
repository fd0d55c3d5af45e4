"""The walked network once more with another number of samples: shapes may follow it, numbers may not."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from bilateral.errors import UnsupportedLayerError
from bilateral.models.sample_numbers import SampleNumbers

BATCH: Final = 2
"""Samples of the walk: BatchNorm in training mode refuses one."""
OTHER_BATCH: Final = 3

_REMEDY: Final = "Use the number of samples in shapes only (x.view(x.size(0), -1)); or x.flatten(1)."


class OtherBatch:
    """Holds every value for `OTHER_BATCH` samples, and compares as the walk goes along."""

    def __init__(self) -> None:
        self._values: dict[fx.Node, Any] = {}
        self._numbers = SampleNumbers()

    def hold(self, node: fx.Node, value: Any) -> None:
        """A value that is no call: the input (with `OTHER_BATCH` samples), a parameter or a constant."""
        self._values[node] = value

    def of(self, arguments: Any) -> Any:
        return map_aggregate(arguments, lambda a: self._values[a] if isinstance(a, fx.Node) else a)

    def call(self, node: fx.Node, module: nn.Module | None, label: str, output: Any, *, of_activation: bool) -> None:
        """`output` is what the call gave in the walk. `of_activation`: it takes one, not only numbers or constants."""
        trouble = self._numbers.trouble(node) if _tensors(output) else ""
        if trouble:
            raise _refusal(label, trouble)
        try:
            other = run_call(node, module, self.of(node.args), self.of(node.kwargs))
        except Exception as error:  # torch raises many types for a shape that does not fit
            reason = f"it takes {BATCH} samples and not {OTHER_BATCH}: it depends on the number of samples ({error})"
            raise _refusal(label, reason) from error
        self._values[node] = other
        if not _tensors(output):
            self._numbers.see(node, (output, other), of_tensor=of_activation)

    def check_size(self, node: fx.Node, label: str, output: Any) -> None:
        """After the call's own rule, which may know a better reason."""
        for ours, theirs in zip(_tensors(output), _tensors(self._values[node]), strict=False):
            if ours.numel() * OTHER_BATCH != theirs.numel() * BATCH:
                raise _refusal(label, "the size of its output does not follow the number of samples")


def run_call(node: fx.Node, module: nn.Module | None, args: Any, kwargs: Any) -> Any:
    """The call itself, on meta tensors. Constants that are indices or masks keep their values where torch lets them."""
    try:
        return _run_call(node, module, args, kwargs)
    except Exception:  # torch raises many types; among them that a mask is not where the activation is
        on_meta = map_aggregate((args, kwargs), lambda a: a.to("meta") if isinstance(a, Tensor) else a)
        if all(tensor.is_meta for tensor in _tensors((args, kwargs))):
            raise
        with suppress(Exception):
            return _run_call(node, module, *on_meta)
        raise


def _run_call(node: fx.Node, module: nn.Module | None, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        if module is not None:
            return module(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)


def _refusal(label: str, reason: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(f"{label} cannot be protected: {reason}.", remedy=_REMEDY)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in _leaves(tree) if isinstance(leaf, Tensor)]


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []

    def look(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_aggregate(tree, look)
    return found
