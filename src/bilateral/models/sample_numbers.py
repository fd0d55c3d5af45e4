"""Numbers that follow the number of samples: which of them are known for every batch, and where they may go.

The walk sees two batches, and two values do not make a function: `x.size(0) // 8` is 0 for both. So a number counts as
known only by where it comes from: a size of an activation, or sums, multiples and exact parts of such sizes. It is then
the same for every batch, or proportional to its number of samples. Everything else that is computed from such a number
(`n // 8`, `n > 16`, `n + 1`) is unknown, and no call may take it. Known ones that vary may go into the shapes of
activations and nowhere else; not into those of constants, whose sum would be the number again.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import fx

_SHAPES: Final = ("view", "reshape", "expand", "unflatten")
_SHAPE_FUNCTIONS: Final = (torch.reshape, torch.unflatten)


class SampleNumbers:
    """The numbers of a walk, by node, for two batches of which the second has one sample more."""

    def __init__(self) -> None:
        self._varies: dict[fx.Node, tuple[Any, Any]] = {}
        self._unknown: set[fx.Node] = set()

    def see(self, node: fx.Node, values: tuple[Any, Any], *, of_tensor: bool) -> None:
        """A call that gave a number, or several. `values` in the two batches; `of_tensor`: it asked an activation."""
        if values[0] != values[1]:
            self._varies[node] = values
        known = not self._taken(node) if of_tensor else self._is_known(node, values)
        if not known:
            self._unknown.add(node)

    def _taken(self, node: fx.Node) -> list[fx.Node]:
        return [number for number in node.all_input_nodes if number in self._varies or number in self._unknown]

    def trouble(self, node: fx.Node) -> str:
        """Why a call that gives tensors may not take the numbers that it takes; empty if it may."""
        if any(argument in self._unknown for argument in node.all_input_nodes):
            return "one of its settings is computed from the number of samples in a batch"
        varying = [argument for argument in node.all_input_nodes if argument in self._varies]
        if varying and not _takes_shapes(node) and not self._keeps_all_samples(node, varying):
            return "one of its settings depends on the number of samples in a batch"
        return ""

    def _is_known(self, node: fx.Node, values: tuple[Any, Any]) -> bool:
        numbers = node.all_input_nodes
        if any(number in self._unknown for number in numbers):
            return False
        varying = [number for number in numbers if number in self._varies]
        if not varying:
            return True
        target = node.target
        if target is operator.getitem:  # of x.shape; which element must not depend on the batch
            return varying == [node.args[0]]
        if target is operator.add:  # of sizes, or of shapes (joined)
            return isinstance(values[0], tuple) or all(number in self._varies for number in node.args)
        if target is operator.mul:
            return isinstance(values[0], int) and len(varying) == 1 and node.args[0] is not node.args[1]
        return target is operator.floordiv and varying == [node.args[0]] and self._divides(node.args[1], varying[0])

    def _divides(self, divisor: Any, size: fx.Node) -> bool:
        """`a n // c` is proportional to n for every n if c divides a, which is what one sample more adds."""
        few, more = self._varies[size]
        return isinstance(divisor, int) and isinstance(few, int) and divisor != 0 and (more - few) % divisor == 0

    def _keeps_all_samples(self, node: fx.Node, varying: list[fx.Node]) -> bool:
        """`x[: x.size(0)]`, and nothing else of an index."""
        if node.target is not operator.getitem:
            return False
        index = node.args[1]
        first, *others = index if isinstance(index, tuple) else (index,)
        if not isinstance(first, slice) or first.start is not None or first.step is not None:
            return False
        return varying == [first.stop] and not any(isinstance(other, fx.Node | slice) for other in others)


def _takes_shapes(node: fx.Node) -> bool:
    if node.op == "call_method":
        return str(node.target) in _SHAPES
    return node.op == "call_function" and node.target in _SHAPE_FUNCTIONS
