"""`bilateral compare`."""

from __future__ import annotations

import itertools
import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bilateral.cli.console import ProgressBar, out, print_json
from bilateral.cli.options import (
    DataDir,
    DataName,
    Json,
    PlanArgument,
    Quiet,
    Rounds,
    Settings,
    build_plan,
    check_writable,
)
from bilateral.errors import PlanError
from bilateral.protections.registry import spoken
from bilateral.runs.rounds.compare import compare, lanes


def compare_command(
    plan: PlanArgument = None,
    data: DataName = None,
    model: Annotated[list[str] | None, typer.Option(help="Model; repeat for several.", show_default=False)] = None,
    clients: Annotated[
        list[int] | None, typer.Option(help="Number of clients; repeat for several.", show_default=False)
    ] = None,
    loss: Annotated[list[str] | None, typer.Option(help="mse or ce; repeat for both.", show_default=False)] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed; repeat for several.", show_default=False)] = None,
    protection: Annotated[
        list[str] | None,
        typer.Option(help=f"Among {', '.join(lanes())}; repeat for several.", show_default="all"),
    ] = None,
    controls: Annotated[int, typer.Option(help="Number of reordered FedSGD runs.", min=0)] = 1,
    rounds: Rounds = None,
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the JSON here.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """FedSGD and the protections side by side, on the same batches.

    FedSGD-reordered is FedSGD with every batch in another order: it shows how far rounding alone carries weights.
    local-steps and masks+local-steps train on each client by itself for the plan's local steps, or for one epoch.

    Examples:

      bilateral compare --rounds 50

      bilateral compare --protection local-steps --protection masks+local-steps --rounds 30

      bilateral compare --data bank-marketing --model mlp-3 --model mlp-5 --clients 1 --clients 5 --rounds 200
    """
    unknown = [p for p in protection or [] if p not in lanes()]
    if unknown:
        raise PlanError(f"Unknown protection {unknown[0]!r}.", remedy=f"Known: {', '.join(lanes())}.")
    if output is not None and output.exists():
        raise PlanError(f"{output} already exists.", remedy="Choose another file; nothing was overwritten.")
    check_writable(output)
    choices: list[list[Any]] = [model or [None], clients or [None], loss or [None], seed or [None]]
    rows: list[dict[str, Any]] = []
    cases = list(itertools.product(*choices))
    for number, (one_model, one_clients, one_loss, one_seed) in enumerate(cases):
        named = {
            "data.name": data,
            "model.name": one_model,
            "federation.clients": one_clients,
            "training.loss": one_loss,
            "training.rounds": rounds,
            "seed": one_seed,
        }
        chosen = build_plan(plan, named, settings)
        title = f"[{number + 1}/{len(cases)}] {chosen.data.name} {chosen.model.name} K={chosen.federation.num_clients}"
        with ProgressBar(title.replace("[", r"\["), quiet=quiet) as bar:
            rows += compare(chosen, protection, num_controls=controls, data_dir=data_dir, on_round=bar.update)
        if output is not None:  # after every case: an interruption loses at most one
            _write_rows(output, rows)
    if json:
        print_json({"rows": rows})
    else:
        _print_rows(rows)


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json_module.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


def _print_rows(rows: list[dict[str, Any]]) -> None:
    case = ("dataset", "model", "clients", "loss", "rounds", "partitions", "seed")
    for _, group in itertools.groupby(rows, key=lambda row: [row[key] for key in case]):
        members = list(group)
        first = members[0]
        out.print(
            f"\n[bold]{first['dataset']}, {first['model']}[/], {first['clients']} clients, {first['loss']}, "
            f"{first['rounds']} rounds, {first['partitions']} partition(s), seed {first['seed']}"
        )
        table = Table(box=None, header_style="bold")
        local = any(row["local_work"] != members[0]["local_work"] for row in members)
        columns = ("a round", "as good at", "MB") if local else ("weights vs FedSGD",)
        for column in ("protection", first["metric"], *columns, "time", "bytes"):
            table.add_column(column, justify="left" if column == "protection" else "right")
        for row in members:
            table.add_row(
                spoken(row["protection"]),
                f"{row['metric_value']:.4f}",
                *(_local_cells(row) if local else (f"{row['weights_relative_difference']:.1e}",)),
                f"{row['seconds_ratio']:.2f}x",
                f"{row['bytes_ratio']:.2f}x",
            )
        out.print(table)
        if local:
            out.print(
                "as good at: the first evaluated round with FedSGD's last metric; MB: all that travelled till then"
            )


def _local_cells(row: dict[str, Any]) -> tuple[str, str, str]:
    """What a client does in a round, when it was as good as FedSGD in the end, and what has travelled by then."""
    if row["rounds_to_fedsgd"] is None:
        return row["local_work"], "never", f"{row['megabytes']:.3g}"
    return row["local_work"], f"round {row['rounds_to_fedsgd']}", f"{row['megabytes_to_fedsgd']:.3g}"
