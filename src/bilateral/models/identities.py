"""Who a tensor element is: the bookkeeping under the scale graph.

Every element of every tensor in a traced network belongs to two equivalence classes:

* a *scale class*: the elements that are multiplied by one common secret factor. Class 0 is the factor 1.
* a *neuron*: the elements that move together when hidden channels are permuted. Neuron 0 never moves.

An element also has a `role` that tells apart the values of one neuron: the pixels of a feature map, and what has been
done to them (`x` and `relu(x)` are the same neuron in two roles). Elements with one neuron and one role have one
value, and exchanging two neurons exchanges their values in every role. Roles are 64-bit hashes.

The three are kept as integer tensors of the value's own shape, so a `view`, `cat`, `chunk` or `permute` of the
network is followed by running the very same operation on these integers. Where an operation needs two elements to
agree (a residual sum, a pooling window), their classes are merged in a union-find forest. The tensors are
expanded, not copied, over dimensions on which nothing depends, so even large feature maps cost next to nothing.
"""

from __future__ import annotations

import math
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
        differ = left != right  # most pairs are equal, and sorting the rest as single numbers is much faster
        count = len(self._parent)
        for pair in torch.unique(left[differ] * count + right[differ]).tolist():
            a, b = divmod(pair, count)
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

    def rooted(self, items: Tensor) -> Tensor:
        """Every item's representative."""
        narrow = _without_expanded(items)[0]
        unique, places = torch.unique(narrow.contiguous(), return_inverse=True)
        found = torch.tensor([self.find(i) for i in unique.tolist()], dtype=torch.int64)
        return found[places].expand(items.shape)

    def narrowed(self, items: Tensor, num_dims: int | None = None) -> Tensor:
        """Representatives, with one index kept along dimensions over which they do not vary."""
        rooted = _without_expanded(items)[0]
        if num_dims is not None and rooted.dim() < num_dims:
            rooted = rooted.reshape(*[1] * (num_dims - rooted.dim()), *rooted.shape)
        rooted = self.rooted(rooted)
        for dim in range(rooted.dim()):
            if rooted.shape[dim] > 1 and bool((rooted == rooted.narrow(dim, 0, 1)).all()):
                rooted = rooted.narrow(dim, 0, 1)
        return rooted

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


def mix(*numbers: Tensor) -> Tensor:
    """A 64-bit hash of integers, element by element (the finaliser of splitmix64; arithmetic wraps around)."""
    result = torch.zeros((), dtype=torch.int64)
    for number in _without_expanded(*numbers):
        result = result * 31 + number + -0x61C8864680B583EB
        result = (result ^ (result >> 30)) * -0x40A7B892E31B1A47
        result = (result ^ (result >> 27)) * -0x6B2FB644ECCEEE15
        result = result ^ (result >> 31)
    return result.expand(np.broadcast_shapes(*(n.shape for n in numbers)))


def _without_expanded(*tensors: Tensor) -> list[Tensor]:
    """Broadcast together, but keep one index along dimensions over which no tensor varies."""
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    wide = [t.expand(shape) for t in tensors]
    for dim in range(len(shape)):
        if shape[dim] > 1 and all(t.stride(dim) == 0 for t in wide):
            wide = [t.narrow(dim, 0, 1) for t in wide]
    return wide


def digest_over(roles: Tensor, dims: Sequence[int]) -> Tensor:
    """One role for all the elements that differ only in their index along `dims`; those dimensions are dropped."""
    for dim in sorted((d % roles.dim() for d in dims), reverse=True):
        if roles.stride(dim) == 0 or roles.shape[dim] == 1:
            roles = roles.select(dim, 0)
        else:
            places = torch.arange(roles.shape[dim]).reshape(-1, *[1] * (roles.dim() - dim - 1))
            narrow = _without_expanded(roles)[0]
            total = mix(narrow, places).sum(dim)
            roles = total.expand((*roles.shape[:dim], *roles.shape[dim + 1 :]))
    return roles


def numbered(roles: Tensor) -> Tensor:
    """Roles along one axis as 0, 1, 2, ... in the order of their first appearance."""
    if roles.numel() == 0 or roles.stride(0) == 0:
        return torch.zeros(roles.shape, dtype=torch.int64)
    _, first, inverse = np.unique(roles.numpy(), return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(rank[inverse.reshape(-1)])


@dataclass(frozen=True)
class Identities:
    """Scale class, neuron and role of every element of one value, batch dimension included."""

    scale: Tensor
    neuron: Tensor
    role: Tensor

    def map(self, operation: Callable[[Tensor], Tensor]) -> Identities:
        """The identities after an operation that only moves elements."""
        return Identities(operation(self.scale), operation(self.neuron), operation(self.role))

    def changed(self, token: Tensor) -> Identities:
        """The identities after the operation `token` has changed every element by itself."""
        return Identities(self.scale, self.neuron, mix(self.role, token))

    @staticmethod
    def pinned(shape: Sequence[int]) -> Identities:
        """Identities of something whose scale is 1 and whose elements never move, such as the network's input."""
        zero = torch.zeros((), dtype=torch.int64).expand(tuple(shape))
        return Identities(zero, zero, zero)

    @staticmethod
    def by_channel(channels: Identities, shape: Sequence[int], token: Tensor) -> Identities:
        """Identities of a (batch, channel, *space) value that the operation `token` computes channel by channel."""
        batch, space = shape[0], tuple(shape[2:])
        view = (1, -1, *[1] * len(space))
        places = torch.arange(batch * math.prod(space)).reshape(batch, 1, *space)
        role = channels.role
        spread = role.reshape(view) if role.stride(0) != 0 else role[:1].reshape(view)
        return Identities(
            channels.scale.reshape(view).expand(tuple(shape)),
            channels.neuron.reshape(view).expand(tuple(shape)),
            mix(spread, places, token).expand(tuple(shape)),
        )


def combine(operation: Callable[[list[Tensor]], Tensor], parts: Sequence[Identities]) -> Identities:
    """The identities after an operation that joins several values, such as `torch.cat`."""
    return Identities(
        operation([p.scale for p in parts]),
        operation([p.neuron for p in parts]),
        operation([p.role for p in parts]),
    )
