"""Random symmetries of a network: which hidden channels may change places, and drawing one such exchange.

An exchange maps neurons to neurons. It leaves the network's function alone if

1. along every axis of every parameter the neurons in each role stay the same multiset (so a layer still gets all its
   inputs), and
2. grouped layers see whole groups: members of one group move together into one group.

Neurons with the same *signature* (how often they occur on which axis in which role) may be exchanged freely; this is
refined by the groups. Neurons that occur twice in one role among the outputs of one layer (tied channels) stay where
they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bilateral.models.builder import Axis, Grouping
from bilateral.randomness import Randomness

Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class NeuronCells:
    """Sets of neurons that may be exchanged, and sets of groups that may be exchanged as wholes."""

    num_neurons: int
    free_cells: tuple[Tensor, ...]
    exchangeable_groups: tuple[tuple[tuple[Tensor, ...], ...], ...]
    """Per set of like groups: for each group, its cells (aligned between the groups of the set)."""

    def draw(self, randomness: Randomness) -> Tensor:
        """A random exchange: at the place of neuron `n` the perturbed network has neuron `draw[n]`."""
        exchange = torch.arange(self.num_neurons)
        members, cell_of_member = self._free_members
        # Sorting a shuffled list by cell (stably) shuffles every cell at once.
        shuffle = randomness.permutation(len(members))
        within_cells = shuffle[torch.argsort(cell_of_member[shuffle], stable=True)]
        exchange[members] = members[within_cells]
        for groups in self.exchangeable_groups:
            targets = randomness.permutation(len(groups)).tolist()
            for group, target in zip(groups, targets, strict=True):
                for cell, target_cell in zip(group, groups[target], strict=True):
                    exchange[cell] = target_cell[randomness.permutation(len(cell))]
        return exchange

    @cached_property
    def _free_members(self) -> tuple[Tensor, Tensor]:
        """All members of free cells, cell after cell, and the number of each one's cell."""
        if not self.free_cells:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        sizes = torch.tensor([len(cell) for cell in self.free_cells])
        return torch.cat(self.free_cells), torch.repeat_interleave(torch.arange(len(sizes)), sizes)

    @property
    def num_movable(self) -> int:
        """How many neurons can end in another place."""
        free = sum(len(c) for c in self.free_cells if len(c) > 1)
        grouped = sum(
            len(cell)
            for groups in self.exchangeable_groups
            for group in groups
            for cell in group
            if len(groups) > 1 or len(cell) > 1
        )
        return free + grouped


def find_cells(
    num_neurons: int,
    axes: Sequence[Axis],
    producers: Sequence[Axis],
    groupings: Sequence[Grouping],
) -> NeuronCells:
    """Cells from the axes of parameters, the neurons that each layer makes, and groups; neuron 0 is fixed."""
    fixed = np.zeros(num_neurons, dtype=bool)
    fixed[0] = True
    for outputs in producers:
        stride = int(outputs.role.max()) + 1 if outputs.role.numel() else 1
        keys, counts = np.unique((outputs.neuron * stride + outputs.role).numpy(), return_counts=True)
        fixed[keys[counts > 1] // stride] = True
    signatures = _signatures(num_neurons, axes)
    simple, crossing = _split_crossing(_merge_groupings(groupings))
    stuck = {side for sides in crossing for side in sides}
    for number, grouping in enumerate(groupings):
        for axis in grouping.sides:
            if _groups_of(axis, grouping.num_groups) in stuck:  # groups stay in place; members move inside
                _add_groups(signatures, -1 - number, axis, grouping.num_groups)
    grouped: set[int] = set()
    exchangeable: list[tuple[tuple[Tensor, ...], ...]] = []
    for sides in simple:
        grouped.update(n for side in sides for members in side for n in members)
        exchangeable.extend(_like_groups(sides, signatures, fixed))
    free: dict[Signature, list[int]] = defaultdict(list)
    for neuron in range(num_neurons):
        if not fixed[neuron] and neuron not in grouped:
            free[signatures[neuron]].append(neuron)
    cells = tuple(torch.tensor(c) for c in free.values() if len(c) > 1)
    return NeuronCells(num_neurons, cells, tuple(exchangeable))


def _signatures(num_neurons: int, axes: Sequence[Axis]) -> list[Signature]:
    entries: list[list[tuple[int, int, int]]] = [[] for _ in range(num_neurons)]
    for number, axis in enumerate(axes):
        stride = int(axis.role.max()) + 1 if axis.role.numel() else 1
        keys, counts = np.unique((axis.neuron * stride + axis.role).numpy(), return_counts=True)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            entries[key // stride].append((number, key % stride, count))
    return [tuple(e) for e in entries]


def _add_groups(signatures: list[Signature], number: int, axis: Axis, num_groups: int) -> None:
    """Make the group that a neuron is in, in each of its roles, part of its signature."""
    size = len(axis.neuron) // num_groups
    members = zip(axis.neuron.tolist(), axis.role.tolist(), strict=True)
    for neuron, entry in sorted((n, (number, place // size, role)) for place, (n, role) in enumerate(members)):
        signatures[neuron] = (*signatures[neuron], entry)


_Side = tuple[tuple[int, ...], ...]


def _groups_of(axis: Axis, num_groups: int) -> _Side:
    return tuple(tuple(sorted(row)) for row in axis.neuron.reshape(num_groups, -1).tolist())


def _merge_groupings(groupings: Sequence[Grouping]) -> list[list[_Side]]:
    """Groupings that share a side (the same neurons in the same groups) move together: merge them."""
    merged: list[list[_Side]] = []
    for grouping in groupings:
        sides = [_groups_of(axis, grouping.num_groups) for axis in grouping.sides]
        touching = [m for m in merged if any(side in m for side in sides)]
        for m in touching:
            merged.remove(m)
            sides.extend(m)
        merged.append(list(dict.fromkeys(sides)))
    return merged


def _split_crossing(merged: list[list[_Side]]) -> tuple[list[list[_Side]], list[list[_Side]]]:
    """Groupings whose neurons lie in one group each, and those that cross with another grouping or themselves."""
    memberships = Counter(n for sides in merged for side in sides for members in side for n in members)
    simple: list[list[_Side]] = []
    crossing: list[list[_Side]] = []
    for sides in merged:
        clean = all(memberships[n] == 1 and n != 0 for side in sides for members in side for n in members)
        (simple if clean else crossing).append(sides)
    return simple, crossing


def _like_groups(
    sides: list[_Side], signatures: list[Signature], fixed: np.ndarray
) -> list[tuple[tuple[Tensor, ...], ...]]:
    """Sort the groups of one grouping by what they look like from outside; like groups may be exchanged."""
    by_look: dict[object, list[tuple[Tensor, ...]]] = defaultdict(list)
    for index in range(len(sides[0])):
        cells: dict[object, list[int]] = defaultdict(list)
        for side_number, side in enumerate(sides):
            for neuron in side[index]:
                # A fixed neuron is a look of its own: its group then has no like.
                look = neuron if fixed[neuron] else (side_number, signatures[neuron])
                cells[look].append(neuron)
        keys = sorted(cells, key=repr)
        look_of_group = tuple((key, len(cells[key])) for key in keys)
        by_look[look_of_group].append(tuple(torch.tensor(cells[key]) for key in keys))
    return [tuple(groups) for groups in by_look.values()]
