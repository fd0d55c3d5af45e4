"""`bilateral bench`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from bilateral.bench import BENCHMARKS
from bilateral.bench.round_trip import QUICK_ROUNDS, RoundTrip, measure_round_trip
from bilateral.cli.console import ProgressBar, out, print_json
from bilateral.cli.flare_extra import import_flare
from bilateral.cli.options import Json, Quiet
from bilateral.errors import PlanError

MAX_COLUMNS = 9
ROUND_TRIP = "round-trip"


def bench_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(BENCHMARKS)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and repeats.")] = False,
    engine: Annotated[str | None, typer.Option(help="round-trip: flare-sim or flare-poc.", show_default=False)] = None,
    sites: Annotated[str | None, typer.Option(help="round-trip: such as 5,20.", show_default=False)] = None,
    models: Annotated[str | None, typer.Option(help="round-trip: such as mlp-5,resnet-20.", show_default=False)] = None,
    losses: Annotated[str | None, typer.Option(help="round-trip: mse, ce or both.", show_default=False)] = None,
    rounds: Annotated[int | None, typer.Option(help="round-trip: how many are measured.", show_default=False)] = None,
    batch_size: Annotated[int | None, typer.Option(help="round-trip: samples a step.", show_default=False)] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure this installation; both sides of a ratio are measured alternately in one process (or one FLARE job).

    Examples:

      bilateral bench client-step

      bilateral bench recovery --quick --json

      bilateral bench round-trip --engine flare-sim --sites 5 --models mlp-5
    """
    if name not in BENCHMARKS:
        raise PlanError(f"There is no benchmark {name!r}.", remedy=f"Known: {', '.join(BENCHMARKS)}.")
    chosen = _chosen(
        {
            "engine": engine,
            "sites": None if sites is None else tuple(_whole(part) for part in _parts(sites)),
            "models": None if models is None else _parts(models),
            "losses": None if losses is None else _parts(losses),
            "rounds": rounds,
            "batch_size": batch_size,
        },
        quick,
    )
    if chosen and name != ROUND_TRIP:
        raise PlanError(f"`{name}` has no such options; they belong to {ROUND_TRIP}.")
    with ProgressBar(f"bench {name}", quiet=quiet) as bar:
        if name == ROUND_TRIP:
            import_flare("timing_run")  # says what to install, if FLARE is not there
            rows = measure_round_trip(quick, bar.update, chosen)
        else:
            rows = BENCHMARKS[name](quick, bar.update)
    if json:
        print_json({"bench": name, "rows": rows})
    else:
        _print_rows(rows)


def _chosen(options: dict[str, Any], quick: bool) -> RoundTrip | None:
    """The options that were given, over the defaults; None if there were none."""
    given = {name: value for name, value in options.items() if value is not None}
    return RoundTrip(**{**({"rounds": QUICK_ROUNDS} if quick else {}), **given}) if given else None


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise PlanError(f"Expected numbers of sites such as 5,20, got {text!r}.")
    return int(text)


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
