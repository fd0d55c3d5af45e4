"""`bilateral --help` and `import bilateral` load nothing large, and what is loaded later is what was promised."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bilateral
from bilateral.cli import main

LARGE = {"torch", "numpy", "scipy", "sklearn", "numba", "matplotlib", "skimage", "PIL", "nvflare", "onnx"}


def imported_by(code: str) -> set[str]:
    """The packages that a fresh interpreter has loaded after `code`."""
    told = "import json, sys; sys.stderr.write(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    command = [sys.executable, "-c", f"{code}\n{told}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(ended.stderr))


def command_line(*words: str) -> str:
    return f"""
import sys
from bilateral.cli.main import main
sys.argv = ["bilateral", *{list(words)}]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended
"""


@pytest.mark.parametrize("code", [command_line("--help"), command_line("--version"), "import bilateral"])
def test_help_loads_nothing_large(code):
    found = imported_by(code) & LARGE
    assert not found


def test_that_a_large_package_is_loaded_would_be_seen():
    assert "numpy" in imported_by("import bilateral; bilateral.RunPlan") & LARGE


@pytest.mark.parametrize("name", main._COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name):
    module = importlib.import_module(f"bilateral.cli.{main._ELSEWHERE.get(name, name)}")
    function = getattr(module, f"{name.replace('-', '_')}_command")
    assert " ".join(inspect.getdoc(function).split("\n\n")[0].split()) == main._COMMANDS[name]


@pytest.mark.parametrize("name", main._COMMANDS)
def test_every_command_in_the_list_can_be_called(name):
    result = CliRunner().invoke(main.app, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"bilateral {name} [OPTIONS]" in " ".join(result.output.split())


def test_public_names_are_those_that_editors_and_type_checkers_see():
    tree = ast.parse(Path(bilateral.__file__).read_text(encoding="utf-8"))
    (seen,) = (node for node in tree.body if isinstance(node, ast.If))
    written = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in seen.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    del written["__version__"]
    assert sorted(written) == sorted(bilateral.__all__) == sorted(bilateral._FROM)
    for name, (module, called) in written.items():
        assert getattr(bilateral, name) is getattr(importlib.import_module(module), called)


def test_rooms_of_the_package_are_there_by_name_and_nothing_else_is():
    assert "bilateral" in imported_by("import bilateral; bilateral.errors.BilateralError")
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = bilateral.no_such_name
    assert {"run", "__version__", *bilateral.__all__} <= set(dir(bilateral))
