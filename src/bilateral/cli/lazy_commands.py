"""Commands whose modules are imported when they are run, and not when they are listed.

`bilateral --help` shows what a table says of each command; torch and all that stands on it take seconds to import.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import typer
import typer.core
import typer.main

from bilateral.cli.completion import is_asked, light_command


class LazyCommands(typer.core.TyperGroup):
    """A group whose commands are names and a line of help until one of them is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the words name, itself and not its line of help."""
        name, listed, rest = super().resolve_command(ctx, args)
        if name is None or listed is None or listed.callback is None:
            return name, listed, rest
        load = partial(_load, name, listed.callback)
        return name, light_command(name, load) if is_asked() else load(), rest


def imported(app: typer.Typer) -> dict[str, Any]:
    """Every command itself, by name, with its own options: for tests and for the reference pages."""
    listed: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {name: _loaded(name, one.callback()) for name, one in listed.items()}


def add_lazily(app: typer.Typer, name: str, module: str, line: str) -> None:
    """List a command `name`, the function `NAME_command` of `module`, with `line` as its help."""

    def import_command() -> Any:
        return getattr(importlib.import_module(module), f"{name.replace('-', '_')}_command")

    app.command(name, help=line)(import_command)


def _load(name: str, import_command: Callable[[], Any]) -> Any:
    return _loaded(name, import_command())


def _loaded(name: str, function: Any) -> Any:
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    alone.command(name)(function)
    return typer.main.get_command(alone)
