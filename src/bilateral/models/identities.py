"""Who a tensor element is: the bookkeeping under the scale graph.

Every element of every tensor in a traced network belongs to two equivalence classes:

* a *scale class*: the elements that are multiplied by one common secret factor. Class 0 is the factor 1.
* a *neuron*: the elements that move together when hidden channels are permuted. Neuron 0 never moves.

An element also has a `location` that tells apart the elements of one neuron (the pixels of a feature map).

The three are kept as integer tensors of the value's own shape, so a `view`, `cat`, `chunk` or `permute` of the
network is followed by running the very same operation on these integers. Where an operation needs two elements to
agree (a residual sum, a pooling window), their classes are merged in a union-find forest. The tensors are
expanded, not copied, over dimensions on which nothing depends, so even large feature maps cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


class UnionFind:
    """Disjoint sets of integers; set 0 is the pinned one, and every merge into it remembers why."""

    def __init__(self) -> None:
        self._parent: list[int] = [0]
        self._pin_reason: dict[int, str] = {}

    def fresh(self, count: int) -> Tensor:
        """`count` new singletons."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def find(self, item: int) -> int:
        """The representative of `item`. Chains are as short as the network is deep, and left as they are:
        compressing them would lose the reason for a pin."""
        while self._parent[item] != item:
            item = self._parent[item]
        return item

    def union(self, left: Tensor, right: Tensor, reason: str) -> None:
        """Merge `left` and `right` elementwise. `reason` is kept if that ends in the pinned set."""
        shape = np.broadcast_shapes(left.shape, right.shape)
        left, right = _squeeze_expanded(left.expand(shape), right.expand(shape))
        pairs = torch.unique(torch.stack([left.reshape(-1), right.reshape(-1)], 1), dim=0)
        for a, b in pairs.tolist():
            root_a, root_b = self.find(a), self.find(b)
            if root_a == root_b:
                continue
            low, high = min(root_a, root_b), max(root_a, root_b)
            self._parent[high] = low
            if low == 0:
                self._pin_reason.setdefault(high, reason)

    def pin(self, items: Tensor, reason: str) -> None:
        self.union(items, torch.zeros((), dtype=torch.int64), reason)

    def merge_over(self, items: Tensor, dims: Sequence[int], reason: str) -> None:
        """Merge all elements that differ only in their index along `dims`."""
        for dim in dims:
            if items.shape[dim] > 1 and items.stride(dim) != 0:
                self.union(items, items.narrow(dim, 0, 1), reason)

    def roots(self) -> np.ndarray:
        """The representative of every item."""
        return np.array([self.find(i) for i in range(len(self._parent))], dtype=np.int64)

    def reason_for_pin(self, item: int) -> str:
        """Why `item` ended in set 0, or an empty text if it is not there."""
        while self._parent[item] != item:
            if item in self._pin_reason:
                return self._pin_reason[item]
            item = self._parent[item]
        return ""


def _squeeze_expanded(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Keep one index along dimensions over which neither tensor varies (stride 0)."""
    for dim in range(left.dim()):
        if left.shape[dim] > 1 and left.stride(dim) == 0 and right.stride(dim) == 0:
            left, right = left.narrow(dim, 0, 1), right.narrow(dim, 0, 1)
    return left, right


@dataclass(frozen=True)
class Identities:
    """Scale class, neuron and location of every element of one value, batch dimension included."""

    scale: Tensor
    neuron: Tensor
    location: Tensor

    def map(self, operation: Callable[[Tensor], Tensor]) -> Identities:
        """The identities after an operation that only moves elements."""
        return Identities(operation(self.scale), operation(self.neuron), operation(self.location))

    @staticmethod
    def pinned(shape: Sequence[int]) -> Identities:
        """Identities of something whose scale is 1 and whose elements never move, such as the network's input."""
        zero = torch.zeros((), dtype=torch.int64).expand(tuple(shape))
        return Identities(zero, zero, zero)

    @staticmethod
    def by_channel(scale: Tensor, neuron: Tensor, shape: Sequence[int]) -> Identities:
        """Identities of a (batch, channel, *space) value that depend on the channel alone."""
        space = tuple(shape[2:])
        view = (1, -1, *[1] * len(space))
        location = torch.arange(int(np.prod(space, dtype=np.int64))).reshape(1, 1, *space)
        return Identities(
            scale.reshape(view).expand(tuple(shape)),
            neuron.reshape(view).expand(tuple(shape)),
            location.expand(tuple(shape)),
        )


def combine(operation: Callable[[list[Tensor]], Tensor], parts: Sequence[Identities]) -> Identities:
    """The identities after an operation that joins several values, such as `torch.cat`."""
    return Identities(
        operation([p.scale for p in parts]),
        operation([p.neuron for p in parts]),
        operation([p.location for p in parts]),
    )
