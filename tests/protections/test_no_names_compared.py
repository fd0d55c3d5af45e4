"""What a protection is like is asked of it (`plan.traits`, `plan.chosen`); its name decides nothing anywhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bilateral
from bilateral.protections.registry import NO_NOISE, everyone

SOURCE = Path(bilateral.__file__).parent
NAMES = {name for one in everyone() for name in (one.name, *one.aliases)}
CONSTANTS = {"FEDAVG", "SOUND", "NO_NOISE", "REFERENCE"}
"""Where such a name has a name."""
SETTINGS = {"protection", "mechanism"}
"""Whatever `plan.protection` and `plan.noise.mechanism` are compared with, `none` too."""
ALLOWED = {
    # Games are written for one kind of noise each; one that nobody wrote a game for is told so.
    ("audit/topics/noise/distinguishing_game.py", "plan.noise.mechanism in GAMES"),
    ("audit/topics/noise/one_run.py", "plan.noise.mechanism in GAMES"),
}


def parts_of(node):
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for part in node.elts:
            yield from parts_of(part)
    else:
        yield node


def is_a_name(node):
    match node:
        case ast.Constant(value=str(text)):
            return text in NAMES
        case ast.Name(id=name):
            return name in CONSTANTS
        case ast.Attribute(attr=attribute):
            return attribute in SETTINGS
        case ast.MatchValue(value=value):
            return is_a_name(value)
    return False


def comparisons(tree):
    """Everything in a module that decides something by the name of a protection."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others) if any(
                is_a_name(part) for side in (left, *others) for part in parts_of(side)
            ):
                yield ast.unparse(node)
            case ast.MatchValue() if is_a_name(node):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith"), args=[given, *_]) if is_a_name(given):
                yield ast.unparse(node)


def found():
    files = [path for path in SOURCE.rglob("*.py") if "protections" not in path.relative_to(SOURCE).parts]
    assert len(files) > 300
    return {
        (path.relative_to(SOURCE).as_posix(), text)
        for path in files
        for text in comparisons(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_nobody_outside_of_protections_compares_their_names():
    assert found() == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "x = plan.noise.mechanism != 'none'",
        "x = 'fedsgd' == name",
        "x = name in ('published', 'mp-cdp')",
        "x = name == FEDAVG",
        "match name:\n    case 'sound':\n        pass",
    ],
)
def test_such_a_comparison_is_found(line):
    assert len(list(comparisons(ast.parse(line)))) == 1


def test_what_a_plan_is_set_to_is_no_comparison():
    assert NO_NOISE == "none"
    assert not list(comparisons(ast.parse("plan.with_settings({'protection': 'fedavg', 'noise.mechanism': 'none'})")))
