"""All tables that are redone, by name."""

from __future__ import annotations

import difflib
import re
from typing import Final

from bilateral.errors import PlanError
from bilateral.reproduce.papers import p0, p1, p2, p3, p4, summary
from bilateral.reproduce.tables import Table

TABLES: Final[dict[str, Table]] = {
    table.name: table for table in (*p0.TABLES, *p1.TABLES, *p2.TABLES, *p3.TABLES, *p4.TABLES, *summary.TABLES)
}
_REGISTERED: Final[dict[str, Table]] = {}


def tables() -> dict[str, Table]:
    """Those of the papers, and those that `register` added."""
    return {**TABLES, **_REGISTERED}


def register(table: Table) -> None:
    """Add a table from outside of this package, for as long as the process lives."""
    if table.name in tables():
        raise PlanError(f"There is a table {table.name!r} already.", remedy="Give this one another name.")
    _REGISTERED[table.name] = table


def unregister(name: str) -> None:
    """Take back what `register` added."""
    if name not in _REGISTERED:
        raise PlanError(f"No table {name!r} was registered.", remedy="`register` adds one.")
    del _REGISTERED[name]


def table_named(name: str) -> Table:
    """By its name, however it is spelled: `p0-i`, `P0 I`, `P0 table I`."""
    known = tables()
    short = re.sub(r"[^a-z0-9]+", "-", name.lower().replace("table", " ")).strip("-")
    if short in known:
        return known[short]
    close = difflib.get_close_matches(short, known, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    raise PlanError(f"There is no table {name!r}.", remedy=f"{hint}Known: {', '.join(known)}.")
