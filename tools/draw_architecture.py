"""Draw docs/architecture.svg from the import graph: `make architecture`; with `--check` only say whether it is true.

Rows are rooms of the tree, floors from top to bottom; a number counts the pairs of modules of which the one, in the
row's room, imports the other, in the column's. Left of the diagonal's blocks an import would point upwards.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from import_tree import GROUND, ImportTree, Room, read_tree

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"

CELL = 30
MARGIN = 24
NAME_WIDTH = 140  # of a package
ROOM_WIDTH = 132
HEAD = 150  # above the matrix: its title and the names of columns
FLOOR_GAP = 8
FOOT = 64
SLANT = 100  # what the last column's name needs on the right
DARKEST = 64  # imports: from here on a cell has its full colour

STYLE = """
  svg { --ground: #fbfaf7; --floor: #f0ede5; --card: #ffffff; --line: #d8d3c6; --ink: #23282f; --soft: #6a707a;
        --hue: 36, 94, 141; --wrong: #c2352b; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #14171c; --floor: #1d2229; --card: #272d36; --line: #3a424e; --ink: #e8e6e1; --soft: #9aa2ad;
          --hue: 107, 174, 230; --wrong: #ff7a6e; }
  }
  text { font-family: ui-sans-serif, system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
  .title { font-size: 20px; font-weight: 650; }
  .said { font-size: 13px; fill: var(--soft); }
  .package { font-size: 15px; font-weight: 650; }
  .room { font-size: 13px; }
  .files { font-size: 13px; fill: var(--soft); font-style: italic; }
  .column { font-size: 12.5px; }
  .count { font-size: 11.5px; text-anchor: middle; font-variant-numeric: tabular-nums; }
  .paper { fill: var(--ground); }
  .floor { fill: var(--floor); }
  .card { fill: var(--card); stroke: var(--line); }
  .own { fill: var(--card); stroke: var(--line); }
  .same { fill: var(--soft); fill-opacity: 0.35; }
  .wrong { fill: none; stroke: var(--wrong); stroke-width: 2; }
"""


class Layout:
    """Where rooms stand: each a row and, at the same distance, a column; a gap between floors."""

    def __init__(self, tree: ImportTree) -> None:
        self.offsets: dict[Room, int] = {}
        at = 0
        for packages in tree.floors:
            for package in packages:
                for room in tree.rooms_of(package):
                    self.offsets[room] = at
                    at += CELL
            at += FLOOR_GAP
        self.side = at - FLOOR_GAP
        self.left = MARGIN + NAME_WIDTH + ROOM_WIDTH + 2 * FLOOR_GAP
        self.top = MARGIN + HEAD
        self.width = self.left + self.side + SLANT + MARGIN
        self.height = self.top + self.side + FOOT

    def x(self, room: Room) -> int:
        return self.left + self.offsets[room]

    def y(self, room: Room) -> int:
        return self.top + self.offsets[room]


def draw(tree: ImportTree) -> str:
    """The picture; the same tree gives the same text."""
    layout = Layout(tree)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width} {layout.height}" '
        f'width="{layout.width}" height="{layout.height}" role="img" aria-label="The tree and its imports">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{layout.width}" height="{layout.height}" rx="14"/>',
        *_heading(),
        *(line for packages in tree.floors for line in _floor(tree, layout, packages)),
        *(line for room in tree.rooms for line in _column(layout, room)),
        *(line for (importer, imported) in sorted(tree.imports) for line in _cell(tree, layout, importer, imported)),
        *_legend(tree, layout),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _heading() -> Iterator[str]:
    yield _text(MARGIN, MARGIN + 22, "The house, and who imports whom", "title")
    yield _text(MARGIN, MARGIN + 46, "Floors from top to bottom, as lint-imports", "said")
    yield _text(MARGIN, MARGIN + 64, "checks them: imports point down.", "said")


def _floor(tree: ImportTree, layout: Layout, packages: tuple[str, ...]) -> Iterator[str]:
    rooms = [room for package in packages for room in tree.rooms_of(package)]
    top, height = layout.y(rooms[0]), CELL * len(rooms)
    width = layout.left + layout.side - MARGIN + FLOOR_GAP
    yield _box(MARGIN - FLOOR_GAP // 2, top - 2, width, height + 4, "floor", radius=8)
    for package in packages:
        yield from _package(tree, layout, package)


def _package(tree: ImportTree, layout: Layout, package: str) -> Iterator[str]:
    rooms = tree.rooms_of(package)
    top, height = layout.y(rooms[0]), CELL * len(rooms)
    yield _box(MARGIN, top + 1, NAME_WIDTH + ROOM_WIDTH, height - 2, "card", radius=6)
    yield _box(layout.x(rooms[0]), top, height, height, "own", radius=3)
    yield _text(MARGIN + 12, top + CELL * 0.66, "single files" if package == GROUND else f"{package}/", "package")
    for room in rooms:
        yield _box(layout.x(room) + 11, layout.y(room) + 11, CELL - 22, CELL - 22, "same", radius=4)
        if len(rooms) > 1:
            words, style = (f"{room.folder}/", "room") if room.folder else ("its own files", "files")
            yield _text(MARGIN + NAME_WIDTH, layout.y(room) + CELL * 0.66, words, style)


def _column(layout: Layout, room: Room) -> Iterator[str]:
    x, y = layout.x(room) + CELL * 0.62, layout.top - 10
    name = "single files" if room.package == GROUND else f"{room.package}/{room.folder}"
    yield f'<text class="column" transform="translate({x:g} {y:g}) rotate(-50)">{escape(name)}</text>'


def _cell(tree: ImportTree, layout: Layout, importer: Room, imported: Room) -> Iterator[str]:
    count = tree.imports[importer, imported]
    strength = 0.09 + 0.51 * min(1.0, math.log(count) / math.log(DARKEST))
    x, y = layout.x(imported), layout.y(importer)
    yield (
        f'<rect x="{x + 2}" y="{y + 2}" width="{CELL - 4}" height="{CELL - 4}" rx="4" '
        f'style="fill: rgba(var(--hue), {strength:.2f})"/>'
    )
    if tree.is_upward(importer, imported):
        yield _box(x + 2, y + 2, CELL - 4, CELL - 4, "wrong", radius=4)
    yield _text(x + CELL / 2, y + CELL * 0.63, str(count), "count")


def _legend(tree: ImportTree, layout: Layout) -> Iterator[str]:
    y = layout.top + layout.side + 30
    number = "A number: so many pairs of modules, one of the row's room importing one of the column's."
    yield _text(MARGIN, y, number, "said")
    words = f"Single files: {', '.join(tree.ground)}." if tree.ground else ""
    if any(tree.is_upward(*pair) for pair in tree.imports):
        words = f"{words} Framed: against the direction, by an exception that the contract names.".strip()
    yield _text(MARGIN, y + 19, words, "said")


def _box(x: float, y: float, width: float, height: float, style: str, *, radius: int) -> str:
    return f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>'


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def main(arguments: list[str]) -> str | None:
    """Write the picture, or with `--check` compare it; what is wrong with it, if anything is."""
    sys.path.insert(0, str(ROOT / "src"))
    picture = draw(read_tree("bilateral", ROOT / "pyproject.toml"))
    if "--check" not in arguments:
        PICTURE.write_text(picture, encoding="utf-8")
        return None
    if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == picture:
        return None
    return "docs/architecture.svg does not show the imports as they are. Run `make architecture` and look at it."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
