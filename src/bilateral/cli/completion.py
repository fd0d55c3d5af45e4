"""What the shell offers after a Tab, without importing what a command stands on.

A Tab that takes as long as torch needs to load is none. So the options of every command, and the names that they take,
stand in a table (`completions.json`, written by `tools/write_package_data.py`, held to the commands by a test). While
the shell asks, commands are made of that table, and not of their modules. Protections, data sets and models that other
packages bring are not in it.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import typer
import typer.main

VARIABLE: Final = "_BILATERAL_COMPLETE"
"""Set by the scripts that `--install-completion` writes, when they ask."""
_FILE: Final = "completions.json"


def is_asked() -> bool:
    """Whether this process was started by a Tab, or to show or write a script."""
    return VARIABLE in os.environ


@cache
def table() -> dict[str, Any]:
    """`commands`: their parameters. `values`: kinds of names, each with a word of help."""
    found: dict[str, Any] = json.loads(files("bilateral.cli").joinpath(_FILE).read_text(encoding="utf-8"))
    return found


def light_command(name: str, loaded: Callable[[], Any]) -> Any:
    """A command with the options and names of the table and nothing behind it; `loaded()` if it is not in there."""
    if name not in table()["commands"]:
        return loaded()

    def nothing(**_: Any) -> None:
        """Never called: the shell only asks what could be said."""

    nothing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(one) for one in table()["commands"][name]]
    )
    nothing.__annotations__ = {one["name"]: _kind_of(one) for one in table()["commands"][name]}
    alone = typer.Typer(add_completion=False)
    alone.command(name)(nothing)
    return typer.main.get_command(alone)


def _kind_of(one: Mapping[str, Any]) -> Any:
    if one["flag"]:
        return bool
    kind: Any = Path if one["path"] else str
    return list[kind] | None if one["multiple"] else kind | None


def _parameter(one: Mapping[str, Any]) -> inspect.Parameter:
    offered = None if one["values"] is None else _offering(one["values"])
    default = (
        typer.Option(False if one["flag"] else None, *one["options"], help=one["help"], autocompletion=offered)
        if one["options"]
        else typer.Argument(None, help=one["help"], autocompletion=offered)
    )
    return inspect.Parameter(one["name"], inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_kind_of(one))


def _offering(kind: str) -> Callable[[str], list[tuple[str, str]]]:
    """Of a list such as `mlp-3,lenet` the last name is completed."""

    def offer(incomplete: str) -> list[tuple[str, str]]:
        before, comma, begun = incomplete.rpartition(",")
        return [(f"{before}{comma}{word}", said) for word, said in table()["values"][kind] if word.startswith(begun)]

    return offer
