"""`bilateral new`: a small project that runs at once."""

from __future__ import annotations

import keyword
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer
from rich.markup import escape

from bilateral.cli.console import out, print_json
from bilateral.cli.options import Json
from bilateral.errors import PlanError

_SUFFIX: Final = ".in"
_NAMED: Final = {"data.py": "{module}_data.py", "model.py": "{module}_model.py"}
"""Modules whose names must not clash with others' on the path."""


def new_command(
    name: Annotated[str, typer.Argument(help="Name of the project, and of the folder that is made for it.")],
    json: Json = False,
) -> None:
    """Make a small project: a network, data, a plan, a script and a test. It runs at once, without a network.

    Examples:

      bilateral new tumours

      cd tumours && bilateral explain plan.toml && python run.py
    """
    folder = Path(name)
    written = write_project(folder)
    if json:
        print_json({"folder": str(folder), "files": written})
        return
    out.print(f"Made {escape(str(folder))}: {', '.join(written)}.")
    out.print(f"Next: cd {escape(str(folder))} && python run.py")


def write_project(folder: Path) -> list[str]:
    """All files of a new project; never over another's."""
    name = folder.resolve().name  # of `.` and `..` too
    module = name.replace("-", "_").lower()
    if not module.isidentifier() or keyword.iskeyword(module):
        raise PlanError(
            f"{name!r} cannot be the name of Python modules.", remedy="Use letters, digits, _ and -: my-project."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PlanError(f"{folder} already exists and is not empty.", remedy="Choose another name.")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for template in sorted(files("bilateral.cli").joinpath("new_project").iterdir(), key=lambda one: one.name):
        if not template.name.endswith(_SUFFIX):
            continue
        plain = template.name.removesuffix(_SUFFIX)
        target = _NAMED.get(plain, plain).format(module=module)
        code = f"--data {module}_data:load --model {module}_model:build"
        text = Template(template.read_text(encoding="utf-8")).substitute(name=name, module=module, code=code)
        (folder / target).write_text(text, encoding="utf-8")
        written.append(target)
    return written
