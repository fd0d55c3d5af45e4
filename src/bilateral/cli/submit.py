"""`bilateral submit` and `bilateral sites`: the administrator's side of a deployment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from bilateral.cli.console import ProgressBar, err, interruptible, out, print_json
from bilateral.cli.flare_extra import import_flare
from bilateral.cli.options import Json, Quiet, check_trained, deployable_plan
from bilateral.cli.serve_over_flare import print_service
from bilateral.engine.kind import kind_of_plan
from bilateral.learning.evaluation import main_metric
from bilateral.serving.hosted.plan import ServingPlan


def submit_command(
    kit: Annotated[Path, typer.Argument(help="The administrator's kit.", show_default=False)],
    plan: Annotated[Path, typer.Argument(help="Plan file (TOML) of the deployment.", show_default=False)],
    name: Annotated[
        str | None, typer.Option(help="Name of the run; by default the time of day.", show_default=False)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of that name, or look after it.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Hand over the job and leave it alone.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a plan on a deployment and look after it: a new term begins when a site or the server comes back.

    Ctrl-C stops the run after the round at hand; a second one leaves it running. The run directory, with the model, is
    at the server, in runs/ of its kit; watch it there with `bilateral watch`.

    Examples:

      bilateral submit federation/federation/prod_00/admin@bilateral.org federation/plan.toml --name first

      bilateral submit KIT plan.toml --name first --resume

      bilateral submit KIT plan.toml --detach --json
    """
    submission = import_flare("submission")
    chosen = deployable_plan(plan)
    run = name or submission.new_run_name()
    again = shlex.join(["bilateral", "submit", str(kit), str(plan), "--name", run, "--resume"])
    try:
        with (
            ProgressBar(f"run {run}", quiet=quiet) as bar,
            interruptible("The run is asked to stop after this round; once more to leave it running.") as interrupted,
        ):
            submitted = submission.submit_run(
                kit,
                chosen,
                name=run,
                resume=resume,
                detach=detach,
                on_progress=lambda now: bar.update(now.round, now.num_rounds, _note(now.metrics)),
                on_note=bar.note,
                should_stop=lambda: bool(interrupted),
            )
    except KeyboardInterrupt:
        err.print(f"The run is left to itself. Come back with: {escape(again)}", soft_wrap=True)
        raise typer.Exit(130) from None
    if json:
        print_json(submitted.as_dict())
    elif submitted.values is None:
        out.print(f"Run {escape(run)} was handed over as job {submitted.job_id}.")
        out.print(f"Look after it with: {escape(again)}")
    elif isinstance(chosen, ServingPlan) and "questions" in submitted.values:
        print_service(submitted.values)
    elif submitted.finished:
        _print_result(run, submitted.values)
    if submitted.values is not None and not submitted.finished:
        unit = kind_of_plan(chosen).outline(chosen).unit
        err.print(f"Stopped after {unit} {submitted.rounds}. Go on with: {escape(again)}", soft_wrap=True)
        raise typer.Exit(130)
    if submitted.values is not None and not isinstance(chosen, ServingPlan):
        check_trained(submitted.values)


def sites_command(
    kit: Annotated[Path, typer.Argument(help="The administrator's kit.", show_default=False)],
    json: Json = False,
) -> None:
    """List the sites that are connected to a deployment's server, one a line.

    A site that has died is listed until it has been silent for half a minute.

    Examples:

      bilateral sites federation/federation/prod_00/admin@bilateral.org
    """
    with import_flare("admin").Admin(kit) as admin:
        connected = admin.connected_sites()
    if json:
        print_json({"sites": list(connected)})
    else:
        for site in connected:
            out.print(escape(site))


def _note(metrics: dict[str, float]) -> str:
    if not metrics:
        return "starting"
    metric, value = main_metric(metrics)
    return f"{metric} {value:.4f}"


def _print_result(run: str, values: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in values["metrics"].items():
        table.add_row(name, f"{value:.4f}")
    if values["rounds_failed"]:
        table.add_row("rounds without enough sites", f"{len(values['rounds_failed'])} (they changed nothing)")
    if incidents := values["incidents"]:
        table.add_row("messages refused", f"{len(incidents)}, the first: {escape(incidents[0]['reason'])}")
    table.add_row("sent up / down", f"{values['megabytes_up']:.1f} MB / {values['megabytes_down']:.1f} MB")
    table.add_row("rounds, time", f"{values['rounds']}, {values['seconds']:.1f} s")
    out.print(table)
    guarantee = values["guarantee"]
    out.print(f"\n[bold]What {escape(guarantee['protection'])} hides[/]")
    for claim in guarantee["claims"]:
        out.print(f"  from {claim['whom']}: {escape(claim['what'])}")
        out.print(f"    [dim]if {escape(claim['assumption'])}[/]")
    out.print("\n[bold]What it does not hide[/] (docs/leakage-ledger.md)")
    for leak in guarantee["leaks"]:
        out.print(f"  line {leak['ledger_line']}, to {leak['whom']}: {escape(leak['what'])}")
    out.print(f"\nRun {escape(run)} is at the server, in runs/ of its kit.")
