"""The tree of a package as its imports see it: floors from the layers contract, rooms within them, imports counted.

The graph is grimp's, the one that `lint-imports` checks; the floors are those that it checks them against.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grimp

GROUND = "ground"  # the single files beside the packages: errors, randomness, ...


@dataclass(frozen=True, order=True)
class Room:
    """A folder of a package (`protocols/share`), or the files that stand in the package itself (no `folder`)."""

    package: str
    folder: str = ""


@dataclass(frozen=True)
class ImportTree:
    """Rooms from the top floor down, and how many pairs of modules import across each pair of rooms."""

    floors: tuple[tuple[str, ...], ...]  # packages, top floor first; those of one floor do not import each other
    rooms: tuple[Room, ...]
    ground: tuple[str, ...]  # what stands in the ground floor's one room
    imports: Mapping[tuple[Room, Room], int]

    def rooms_of(self, package: str) -> tuple[Room, ...]:
        return tuple(room for room in self.rooms if room.package == package)

    def is_upward(self, importer: Room, imported: Room) -> bool:
        """Whether an import points to a floor above, or across one."""
        if importer.package == imported.package:
            return False
        return self._floor(importer) >= self._floor(imported)

    def _floor(self, room: Room) -> int:
        return next(number for number, packages in enumerate(self.floors) if room.package in packages)


def read_tree(package: str, pyproject: Path) -> ImportTree:
    """The tree of the importable `package`, whose layers contract is in `pyproject`."""
    graph = grimp.build_graph(package, cache_dir=None)
    counted = Counter(
        (_room(graph, importer), _room(graph, imported))
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if _is_inside(importer, package) and _is_inside(imported, package)
    )
    inside = sorted(module for module in graph.modules if _is_inside(module, package))
    rooms = {_room(graph, module) for module in inside}
    across = {pair: count for pair, count in counted.items() if pair[0] != pair[1]}
    floors = _floors(package, pyproject, {room.package for room in rooms})
    ordered = [room for names in floors for name in names for room in _from_top(name, rooms, across)]
    ground = tuple(module.split(".")[1] for module in inside if _room(graph, module).package == GROUND)
    return ImportTree(floors, tuple(ordered), ground, across)


def _is_inside(module: str, package: str) -> bool:
    """All but the package's own front: `package/__init__.py` and `__main__.py` may import everything."""
    return module.startswith(f"{package}.") and module != f"{package}.__main__"


def _room(graph: grimp.ImportGraph, module: str) -> Room:
    _, top, *below = module.split(".")
    if not below and not graph.find_children(module):
        return Room(GROUND)
    folder = ".".join(module.split(".")[:3])
    return Room(top, below[0]) if below and graph.find_children(folder) else Room(top)


def _floors(package: str, pyproject: Path, found: set[str]) -> tuple[tuple[str, ...], ...]:
    """Those of the first contract of layers, top first; above them what it does not name, below them the ground."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = [[part.strip(" ()").removeprefix(f"{package}.") for part in re.split(r"[|:]", layer)] for layer in layers]
    placed = [tuple(name for name in floor if name in found) for floor in named]
    unplaced = sorted(found - {GROUND} - {name for floor in placed for name in floor})
    ground = [(GROUND,)] if GROUND in found else []
    return tuple(floor for floor in [tuple(unplaced), *placed, *ground] if floor)


def _from_top(package: str, rooms: set[Room], imports: Mapping[tuple[Room, Room], int]) -> list[Room]:
    """A package's rooms: before the others the one that they import least; by name where that is equal."""
    left = {room for room in rooms if room.package == package}
    ordered: list[Room] = []
    while left:
        top = min(left, key=lambda room: (sum(imports.get((other, room), 0) for other in left), room))
        ordered.append(top)
        left.remove(top)
    return ordered
