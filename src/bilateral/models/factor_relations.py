"""Scale classes that are products of others: where two activations are multiplied, their factors are multiplied.

A class stands for a secret factor. Beside "these two classes are one", which a union-find forest keeps, products give
relations between logarithms of factors:

    z = x * y, elementwise            log z = log x + log y
    sum_d q[i, d] * k[j, d]           log c = log q_d + log k_d, for every d
    z = x / y                         log z = log x - log y

With `c` pinned to 1 by a softmax, `k_d` is the inverse of `q_d`. All relations are homogeneous, so all factors 1 is
always a solution, and pinning any of them never makes it impossible. `settle` solves them at the end of a walk.

Formal guarantee (tests/models/test_factor_relations.py): factors completed by the solution fulfil every relation, and
the free classes may be drawn as one likes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import torch
from torch import Tensor

from bilateral.models.identities import UnionFind

LARGEST_POWER: Final = 4
"""Of free factors together in one product; what would have more is pinned, so that factors stay near their range."""

_Row = dict[int, Fraction]


@dataclass(frozen=True)
class Derived:
    """Classes whose factor is a product of powers of others: three lists side by side."""

    target: Tensor
    source: Tensor
    power: Tensor

    @staticmethod
    def none() -> Derived:
        empty = torch.zeros(0, dtype=torch.int64)
        return Derived(empty, empty, torch.zeros(0, dtype=torch.float64))

    @staticmethod
    def of(powers: list[tuple[int, int, float]]) -> Derived:
        """From (target, source, power)."""
        if not powers:
            return Derived.none()
        target, source = (torch.tensor([row[place] for row in powers]) for place in (0, 1))
        return Derived(target, source, torch.tensor([row[2] for row in powers], dtype=torch.float64))

    @property
    def targets(self) -> Tensor:
        found: Tensor = torch.unique(self.target)
        return found

    def complete(self, factors: Tensor) -> Tensor:
        """`factors` with those of derived classes computed from the free ones."""
        if not len(self.target):
            return factors
        logarithms = torch.zeros(len(factors), dtype=torch.float64)
        logarithms.index_add_(0, self.target, self.power * factors.double().log()[self.source])
        result = factors.clone()
        result[self.targets] = logarithms[self.targets].exp().to(factors.dtype)
        return result


class ScaleClasses(UnionFind):
    """A union-find forest with products."""

    def __init__(self) -> None:
        super().__init__()
        self._relations: list[tuple[int, int, int, int, str]] = []
        self._known: dict[tuple[int, int, int], int] = {}
        self._derived: dict[int, _Row] = {}
        self._users: defaultdict[int, set[int]] = defaultdict(set)

    def product(self, left: Tensor, right: Tensor, reason: str, power: int = 1) -> Tensor:
        """The classes of `left * right ** power`, elementwise; power is 1 or -1."""
        shape = np.broadcast_shapes(left.shape, right.shape)
        left, right = self.narrowed(left, len(shape)), self.narrowed(right, len(shape))
        count = len(self._parent)
        pairs, places = torch.unique((left * count + right).contiguous(), return_inverse=True)
        found = [self._product(pair // count, pair % count, power, reason) for pair in pairs.tolist()]
        return torch.tensor(found, dtype=torch.int64)[places].expand(shape)

    def _product(self, left: int, right: int, power: int, reason: str) -> int:
        if right == 0:
            return left
        if left == 0 and power == 1:
            return right
        if power == 1:
            left, right = min(left, right), max(left, right)
        key = (left, right, power)
        if key not in self._known:
            made = int(self.fresh(1))
            self._known[key] = made
            self._relations.append((made, left, right, power, reason))
        return self._known[key]

    def settle(self, kept_free: Tensor | None = None) -> None:
        """Solve the relations: merge and pin what they force, and find the derived classes.

        `kept_free`: classes whose factor must not be a product of others; they are pinned if they would be.
        """
        for made, left, right, power, reason in self._relations:
            row: _Row = {}
            for item, coefficient in ((made, -1), (left, 1), (right, power)):
                self._add(row, item, Fraction(coefficient))
            self._solve(row, reason)
        for item in [] if kept_free is None else torch.unique(kept_free).tolist():
            root = self.find(item)
            for free in list(self._derived.get(root, ())):
                self._pin_free(free, "normalised, and would be a product of other factors")

    def derived(self) -> dict[int, dict[int, Fraction]]:
        """After `settle`: representative -> powers of free representatives."""
        return {item: dict(row) for item, row in self._derived.items()}

    def _add(self, row: _Row, item: int, coefficient: Fraction) -> None:
        """Add a multiple of a class to a row, in terms of free classes."""
        item = self.find(item)
        if item == 0 or coefficient == 0:
            return
        terms = self._derived.get(item, {item: Fraction(1)})
        for place, power in terms.items():
            free = self.find(place)
            if free == 0:
                continue
            row[free] = row.get(free, Fraction(0)) + coefficient * power
            if row[free] == 0:
                del row[free]

    def _solve(self, row: _Row, reason: str) -> None:
        """Make a product of powers of free classes 1."""
        if not row:
            return
        if len(row) == 1 or sum(abs(c) for c in row.values()) > LARGEST_POWER + 1:
            for item in list(row):
                self._pin_free(item, reason)
            return
        pivot = max(row, key=lambda item: (abs(row[item]) == 1, item))
        expression = {item: -c / row[pivot] for item, c in row.items() if item != pivot}
        self._replace(pivot, expression, reason)

    def _pin_free(self, item: int, reason: str) -> None:
        if item in self._derived or self.find(item) != item:
            return  # it was settled meanwhile
        self._replace(item, {}, reason)

    def _replace(self, item: int, expression: _Row, reason: str) -> None:
        """A free class becomes a product of other free ones (the empty product is 1)."""
        affected = self._users.pop(item, set())
        self._settle_one(item, expression, reason)
        for other in sorted(affected):
            old = self._derived.pop(other, None)
            if old is None:
                continue
            for free in old:
                self._users[free].discard(other)
            row: _Row = {}
            for free, power in old.items():
                if free == item:
                    for inner, inner_power in expression.items():
                        self._add(row, inner, power * inner_power)
                else:
                    self._add(row, free, power)
            self._settle_one(other, row, reason)

    def _settle_one(self, item: int, expression: _Row, reason: str) -> None:
        if not expression:
            self.pin(torch.tensor([item]), reason)
        elif len(expression) == 1 and next(iter(expression.values())) == 1:
            self._merge(item, next(iter(expression)), reason)
        else:
            self._derived[item] = expression
            for free in expression:
                self._users[free].add(item)
            if sum(abs(c) for c in expression.values()) > LARGEST_POWER:
                for free in list(expression):
                    self._pin_free(free, reason)

    def _merge(self, item: int, free: int, reason: str) -> None:
        """Of two equal free classes the forest keeps the lower number as representative."""
        self.union(torch.tensor([item]), torch.tensor([free]), reason)
        root = self.find(item)
        if root == free:
            return
        affected = self._users.pop(free, set())
        for other in affected:
            row = self._derived[other]
            row[root] = row.pop(free)
            self._users[root].add(other)
