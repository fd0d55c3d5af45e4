"""`bilateral bench`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from bilateral.bench import BENCHMARKS
from bilateral.cli.console import ProgressBar, out, print_json
from bilateral.cli.options import Json, Quiet
from bilateral.errors import PlanError

MAX_COLUMNS = 9


def bench_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(BENCHMARKS)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and repeats.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure this installation; both sides of a ratio are measured alternately in one process.

    Examples:

      bilateral bench client-step

      bilateral bench recovery --quick --json
    """
    if name not in BENCHMARKS:
        raise PlanError(f"There is no benchmark {name!r}.", remedy=f"Known: {', '.join(BENCHMARKS)}.")
    with ProgressBar(f"bench {name}", quiet=quiet) as bar:
        rows = BENCHMARKS[name](quick, bar.update)
    if json:
        print_json({"bench": name, "rows": rows})
    else:
        _print_rows(rows)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """A table of what differs between the rows; what is the same in all of them stands above it."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    constant = [c for c in columns if len(rows) > 1 and len({str(row.get(c)) for row in rows}) == 1]
    if constant:
        out.print(", ".join(f"{c} = {_cell(rows[0].get(c))}" for c in constant))
    table = Table(box=None, header_style="bold")
    varying = [c for c in columns if c not in constant]
    if len(varying) > MAX_COLUMNS:  # the spread is in --json
        varying = [c for c in varying if not c.endswith(("_p10", "_p90"))]
    for column in varying:
        justify: Literal["left", "right"] = "left" if isinstance(rows[0].get(column), str) else "right"
        table.add_column(column.replace("_", "\n"), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*[_cell(row.get(column)) for column in varying])
    needed = out.measure(table).maximum
    out.print(table, width=max(needed, out.width), crop=False)  # a narrow terminal wraps lines; it loses nothing


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, float):
        return f"{value:.3g}" if 1e-2 < abs(value) < 1e4 else f"{value:.1e}"
    return str(value)
