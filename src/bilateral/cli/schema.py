"""`bilateral schema`."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from typing import Annotated, Final

import typer

from bilateral.errors import PlanError

_FOLDER: Final = files("bilateral.cli").joinpath("schemas")


def schema_command(
    command: Annotated[
        str | None,
        typer.Argument(help="A command; without one: all of them.", show_default=False),
    ] = None,
) -> None:
    """Print the JSON Schema of what a command prints with `--json`.

    Nothing is printed that its schema does not name, but rows of `bench`, events of `watch` and kinds of run from other
    packages.

    Examples:

      bilateral schema run

      bilateral schema | jq 'keys'
    """
    texts = {one.name.removesuffix(".json"): one for one in _FOLDER.iterdir() if one.name.endswith(".json")}
    if command is None:
        found = {name: json.loads(texts[name].read_text(encoding="utf-8")) for name in sorted(texts)}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    if command not in texts:
        raise PlanError(
            f"There is no command {command!r} with a schema.", remedy=f"Choose among {', '.join(sorted(texts))}."
        )
    sys.stdout.write(texts[command].read_text(encoding="utf-8"))
