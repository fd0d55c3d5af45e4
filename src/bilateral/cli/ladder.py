"""`bilateral ladder`."""

from __future__ import annotations

from rich.table import Table

from bilateral.cli.console import out, print_json
from bilateral.cli.options import Json
from bilateral.protections.ladder import LADDER, TITLES, as_dicts
from bilateral.protections.registry import word_of


def ladder_command(json: Json = False) -> None:
    """Which protections there are, from none to both directions: who sees what, and at what cost.

    `bilateral run --protection NAME` takes each. What a plan claims and admits in full, a run prints.

    Examples:

      bilateral ladder

      bilateral ladder --json
    """
    if json:
        print_json({"ladder": as_dicts()})
        return
    for rung in LADDER:
        table = Table(show_header=False, box=None, pad_edge=False, title=word_of(rung.protection), title_justify="left")
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, title in TITLES.items():
            if name != "protection":
                table.add_row(title, getattr(rung, name))
        out.print(table)
        out.print()
