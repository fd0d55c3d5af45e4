"""`bilateral bench`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from bilateral.bench import BENCHMARKS
from bilateral.bench.heterogeneous import TABLES, WORKLOADS, HeteroTable, measure_heterogeneous
from bilateral.bench.round_trip import QUICK_ROUNDS, RoundTrip, measure_round_trip
from bilateral.bench.sealed_step import measure_sealed_step
from bilateral.bench.secure_prediction import measure_secure_prediction
from bilateral.bench.step_networks import NETWORKS
from bilateral.cli.console import ProgressBar, out, print_json
from bilateral.cli.flare_extra import import_flare
from bilateral.cli.options import DataDir, Json, Quiet
from bilateral.cli.sealed_step import chosen_steps, step_tables
from bilateral.cli.secure_prediction import chosen_prediction, prediction_table
from bilateral.errors import PlanError
from bilateral.protections.registry import spoken

MAX_COLUMNS = 9
WIDEST_TABLE = 1000
ROUND_TRIP = "round-trip"
HETEROGENEOUS = "heterogeneous"
SECURE_PREDICTION = "secure-prediction"
SEALED_STEP = "sealed-step"
SHARED = {
    SECURE_PREDICTION: ("models", "batch_sizes", "batch_norm", "styles", "repeats", "threads"),
    SEALED_STEP: ("models", "losses", "batch_sizes", "repeats", "threads"),
}
"""What may be said about measurements by three parties."""


def bench_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(BENCHMARKS)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and repeats.")] = False,
    engine: Annotated[str | None, typer.Option(help="round-trip: flare-sim or flare-poc.", show_default=False)] = None,
    sites: Annotated[str | None, typer.Option(help="round-trip: such as 5,20.", show_default=False)] = None,
    models: Annotated[str | None, typer.Option(help="round-trip: such as mlp-5,resnet-20.", show_default=False)] = None,
    losses: Annotated[str | None, typer.Option(help="round-trip: mse, ce or both.", show_default=False)] = None,
    rounds: Annotated[int | None, typer.Option(help="round-trip: how many are measured.", show_default=False)] = None,
    batch_size: Annotated[
        list[int] | None,
        typer.Option(
            help="round-trip, sealed-step: samples a step; secure-prediction: queries. The last two: repeatable.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help=f"heterogeneous: one of {', '.join(TABLES)}.", show_default=False)
    ] = None,
    data: Annotated[
        str | None, typer.Option(help=f"heterogeneous: {' or '.join(WORKLOADS)}.", show_default=False)
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="heterogeneous: such as 1,2.", show_default=False)] = None,
    output: Annotated[
        Path | None, typer.Option(help="heterogeneous: folder for models and cases.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help=f"secure-prediction: such as vgg-7; sealed-step: {', '.join(NETWORKS)}. Repeatable.",
            show_default=False,
        ),
    ] = None,
    loss: Annotated[
        list[str] | None, typer.Option(help="sealed-step: mse or ce, repeatable.", show_default=False)
    ] = None,
    batch_norm: Annotated[bool, typer.Option("--batch-norm", help="secure-prediction: networks with it.")] = False,
    style: Annotated[
        list[str] | None,
        typer.Option(help="secure-prediction: sealed, hardened or published, repeatable.", show_default=False),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="secure-prediction, sealed-step: timed batches.", show_default=False)
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="secure-prediction, sealed-step: of each party.", show_default=False)
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure this installation; both sides of a ratio are measured alternately in one process (or one FLARE job).

    Examples:

      bilateral bench client-step

      bilateral bench recovery --quick --json

      bilateral bench round-trip --engine flare-sim --sites 5 --models mlp-5

      bilateral bench heterogeneous --table queries --data cifar10 --data-dir DIR

      bilateral bench secure-prediction --model vgg-7 --model resnet-8 --batch-size 1

      bilateral bench sealed-step --model lenet --loss ce --batch-size 32 --repeats 3
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
            "batch_size": None if batch_size is None or name in SHARED else _only(batch_size),
        },
        quick,
    )
    if chosen and name != ROUND_TRIP:
        raise PlanError(
            f"`{name}` has no such options; they belong to {ROUND_TRIP}.", remedy="Leave them out, or measure that."
        )
    asked: dict[str, Any] = {
        "table": table,
        "data": data,
        "seeds": None if seeds is None else tuple(_whole(part) for part in _parts(seeds)),
        "output": output,
    }
    asked = {key: value for key, value in asked.items() if value is not None}
    if asked and name != HETEROGENEOUS:
        raise PlanError(
            f"`{name}` has no option --{next(iter(asked))}; it belongs to {HETEROGENEOUS}.", remedy="Leave it out."
        )
    wanted: dict[str, Any] = {
        "models": None if model is None else tuple(model),
        "losses": None if loss is None else tuple(loss),
        "batch_sizes": None if batch_size is None or name not in SHARED else tuple(batch_size),
        "batch_norm": batch_norm or None,
        "styles": None if style is None else tuple(style),
        "repeats": repeats,
        "threads": threads,
    }
    wanted = {key: value for key, value in wanted.items() if value is not None}
    _expect_own(name, wanted)
    with ProgressBar(f"bench {name}", quiet=quiet) as bar:
        if name == HETEROGENEOUS:
            rows = measure_heterogeneous(quick, bar.update, HeteroTable(**asked, data_dir=data_dir))
        elif name == ROUND_TRIP:
            import_flare("launch")  # says what to install, if FLARE is not there
            rows = measure_round_trip(quick, bar.update, chosen)
        elif name == SECURE_PREDICTION:
            rows = measure_secure_prediction(quick, bar.update, chosen_prediction(wanted, quick))
        elif name == SEALED_STEP:
            rows = measure_sealed_step(quick, bar.update, chosen_steps(wanted, quick))
        else:
            rows = BENCHMARKS[name](quick, bar.update)
    if json:
        print_json({"bench": name, "rows": rows})
    else:
        _show(name, rows)


def _expect_own(name: str, wanted: Mapping[str, Any]) -> None:
    """Refuse what belongs to another measurement by three parties."""
    if foreign := [option for option in wanted if option not in SHARED.get(name, ())]:
        owners = " and ".join(owner for owner, options in SHARED.items() if foreign[0] in options)
        raise PlanError(f"`{name}` has no option for {foreign[0]}; it belongs to {owners}.", remedy="Leave it out.")


def _show(name: str, rows: list[dict[str, Any]]) -> None:
    if name == SECURE_PREDICTION:
        _print_whole(prediction_table(rows))
    elif name == SEALED_STEP:
        for table in step_tables(rows):
            _print_whole(table)
    else:
        _print_rows(rows)


def _chosen(options: dict[str, Any], quick: bool) -> RoundTrip | None:
    """The options that were given, over the defaults; None if there were none."""
    given = {name: value for name, value in options.items() if value is not None}
    return RoundTrip(**{**({"rounds": QUICK_ROUNDS} if quick else {}), **given}) if given else None


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _only(sizes: list[int]) -> int:
    if len(sizes) != 1:
        raise PlanError(
            f"Expected one batch size, got {', '.join(map(str, sizes)) or 'none'}.", remedy="Give --batch-size once."
        )
    return sizes[0]


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise PlanError(f"Expected whole numbers such as 5,20, got {text!r}.", remedy="Part them by commas.")
    return int(text)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """A table of what differs between the rows; what is the same in all of them stands above it."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    constant = [c for c in columns if len(rows) > 1 and len({str(row.get(c)) for row in rows}) == 1]
    if constant:
        out.print(", ".join(f"{spoken(c)} = {_cell(_spoken(rows[0], c))}" for c in constant))
    table = Table(box=None, header_style="bold")
    varying = [c for c in columns if c not in constant]
    if len(varying) > MAX_COLUMNS:  # the spread is in --json
        varying = [c for c in varying if not c.endswith(("_p10", "_p90"))]
    for column in varying:
        justify: Literal["left", "right"] = "left" if isinstance(rows[0].get(column), str) else "right"
        table.add_column(spoken(column).replace("_", "\n"), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*[_cell(_spoken(row, column)) for column in varying])
    _print_whole(table)


def _spoken(row: dict[str, Any], column: str) -> Any:
    """A value as people read it; --json has the identifiers."""
    value = row.get(column)
    return spoken(value) if column in ("protection", "mechanism") and isinstance(value, str) else value


def _print_whole(table: Table) -> None:
    """As wide as it is: a narrow terminal wraps lines, and loses nothing."""
    needed = out.measure(table, options=out.options.update(width=WIDEST_TABLE)).maximum
    Console(highlight=False, soft_wrap=True, width=max(needed, out.width)).print(table, crop=False)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, float):
        return f"{value:.3g}" if 1e-2 < abs(value) < 1e4 else f"{value:.1e}"
    return str(value)
