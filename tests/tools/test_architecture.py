"""The picture of the tree is the tree: floors are those of the contract, numbers are imports, and it is up to date."""

from __future__ import annotations

import re
import sys
from itertools import count
from xml.etree import ElementTree

import pytest

import draw_architecture
from draw_architecture import ROOT, draw, main
from import_tree import GROUND, Room, read_tree

CONTRACT = """
[[tool.importlinter.contracts]]
type = "forbidden"
[[tool.importlinter.contracts]]
type = "layers"
layers = ["NAME.roof", "(NAME.left) | NAME.right", "NAME.cellar", "NAME.errors"]
"""
FILES = {
    "__init__": "from NAME.cellar import wine",
    "__main__": "from NAME.roof import tiles",
    "errors": "",
    "roof/__init__": "",
    "roof/tiles": "from NAME.left import door\nfrom NAME.left.shelf import books\nimport NAME.errors",
    "left/__init__": "",
    "left/door": "from NAME.cellar import wine\nfrom NAME.cellar import beer",
    "left/shelf/__init__": "",
    "left/shelf/books": "from NAME.left import door",
    "right/__init__": "",
    "right/window": "import NAME.cellar.wine",
    "cellar/__init__": "",
    "cellar/wine": "from NAME.cellar import beer\nfrom NAME.errors import *",
    "cellar/beer": "",
}
NUMBERS = count()


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Builds a small package under a name of its own and reads its tree."""
    monkeypatch.syspath_prepend(tmp_path)

    def build(**more: str):
        name = f"house_{next(NUMBERS)}"
        for path, text in (FILES | {key.replace("__in__", "/"): value for key, value in more.items()}).items():
            file = tmp_path / name / f"{path}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("NAME", name), encoding="utf-8")
        pyproject = tmp_path / "pyproject.toml"
        pyproject.write_text(CONTRACT.replace("NAME", name), encoding="utf-8")
        return read_tree(name, pyproject)

    return build


def test_floors_are_those_of_the_contract_above_the_single_files(house):
    assert house().floors == (("roof",), ("left", "right"), ("cellar",), (GROUND,))


def test_a_package_that_the_contract_does_not_name_stands_on_top(house):
    tree = house(attic__in____init__="", attic__in__box="from NAME.roof import tiles")
    assert tree.floors[0] == ("attic",)


def test_a_room_is_a_folder_or_the_files_of_the_package_and_importers_come_first(house):
    assert house().rooms_of("left") == (Room("left", "shelf"), Room("left"))


def test_a_number_counts_pairs_of_modules_and_the_front_of_the_package_is_left_out(house):
    assert dict(house().imports) == {
        (Room("roof"), Room("left")): 1,
        (Room("roof"), Room("left", "shelf")): 1,
        (Room("roof"), Room(GROUND)): 1,
        (Room("left", "shelf"), Room("left")): 1,
        (Room("left"), Room("cellar")): 2,
        (Room("right"), Room("cellar")): 1,
        (Room("cellar"), Room(GROUND)): 1,
    }


@pytest.mark.parametrize(("importer", "imported"), [("cellar/beer", "roof.tiles"), ("right/window", "left.door")])
def test_an_import_upwards_or_across_a_floor_is_framed(house, importer, imported):
    assert 'class="wrong"' not in draw(house())
    tree = house(**{importer.replace("/", "__in__"): f"import NAME.{imported}"})
    assert draw(tree).count('class="wrong"') == 1


def test_the_picture_is_xml_that_shows_every_package_and_every_number(house):
    tree = house()
    texts = [
        "".join(element.itertext()) for element in ElementTree.fromstring(draw(tree)).iter() if "text" in element.tag
    ]
    for packages in tree.floors[:-1]:
        assert {f"{package}/" for package in packages} <= set(texts)
    shown = sorted(int(text) for text in texts if text.isdigit())
    assert shown == sorted(tree.imports.values())


def test_the_same_tree_gives_the_same_text(house):
    first, second = (re.sub(r"house_\d+", "", draw(house())) for _ in range(2))
    assert first == second


def test_the_stored_picture_shows_the_tree_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["--check"]) is None


def test_a_picture_of_another_tree_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(draw_architecture, "PICTURE", tmp_path / "architecture.svg")
    assert "make architecture" in str(main(["--check"]))
    assert main([]) is None
    assert main(["--check"]) is None
    (tmp_path / "architecture.svg").write_text("<svg/>", encoding="utf-8")
    assert "make architecture" in str(main(["--check"]))


def test_the_page_about_the_tree_names_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = read_tree("bilateral", ROOT / "pyproject.toml")
    for package in {room.package for room in tree.rooms} - {GROUND}:
        assert f"`{package}/`" in page, package
