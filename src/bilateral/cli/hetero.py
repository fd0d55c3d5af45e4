"""`bilateral hetero`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from bilateral.cli.any_kind import print_guarantee, stopped
from bilateral.cli.console import ProgressBar, interruptible, out, print_json
from bilateral.cli.flare_extra import import_flare
from bilateral.cli.options import (
    Clients,
    DataDir,
    DataName,
    Json,
    PlanArgument,
    Quiet,
    Seed,
    Settings,
    named_in,
    parse_setting,
    resumed,
    write_new_plan,
)
from bilateral.engine.kind import HETERO
from bilateral.engine.named_code import check_named, code_of
from bilateral.engine.remote.hosting import hosted_kind
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.term import IN_PROCESS
from bilateral.errors import PlanError
from bilateral.report.run_page.page import write_run_page
from bilateral.runs.hetero.in_process import run_hetero
from bilateral.runs.hetero.plan import HeteroPlan, hetero_plan_with_comments, load_hetero_plan
from bilateral.runs.hetero.result import AVERAGE, HeteroResult

FLARE_ENGINES = ("flare-sim", "flare-poc")


def hetero_command(
    plan: PlanArgument = None,
    data: DataName = None,
    models: Annotated[
        str | None, typer.Option(help="Architectures, dealt in turn: mlp-3,lenet,convnet.", show_default=False)
    ] = None,
    clients: Clients = None,
    samples: Annotated[int | None, typer.Option(help="Samples a client.", show_default=False)] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Uneven classes: Dirichlet concentration.", show_default=False)
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="Queries: mixup, cutmix, cutout, flips, gaussian or private.", show_default=False),
    ] = None,
    queries: Annotated[int | None, typer.Option(help="Queries a client and iteration.", show_default=False)] = None,
    selection: Annotated[
        str | None, typer.Option(help="random, margin, entropy, k-center or icd.", show_default=False)
    ] = None,
    fraction: Annotated[
        float | None, typer.Option(help="How many of the others answer, 0 to 1.", show_default=False)
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Times to ask and retrain.", show_default=False)] = None,
    answers: Annotated[
        str | None,
        typer.Option(help="secure (secret-shared), or plain: quick, hides nothing.", show_default=False),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            help="Who sees what of compared numbers: sealed (nobody, default), hardened (few rounds, for slow links; "
            "blurred sizes), published.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = None,
    settings: Settings = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Run directory.", show_default=False)] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a stopped run.", show_default=False)] = None,
    write_plan: Annotated[
        Path | None, typer.Option(help="Write the plan to a file and stop.", show_default=False)
    ] = None,
    engine: Annotated[
        str, typer.Option(help="in-process; flare-sim or flare-poc: sites and server as processes, secure answers.")
    ] = IN_PROCESS,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Let clients with different networks teach each other; each learns only the sum of the others' answers.

    Every client trains alone, asks the others about inputs made from its own samples, and retrains on their summed
    answers. Without a plan: six clients, three architectures, real data that come with scikit-learn, a few minutes.

    Examples:

      bilateral hetero

      bilateral hetero --answers plain --pool private

      bilateral hetero --data cifar10 --models vgg-7,resnet-8 --clients 6 --samples 500 --queries 1000

      bilateral hetero --alpha 0.5 --selection margin --fraction 0.6 --set retraining.epochs=20

      bilateral hetero --write-plan plan.toml

      bilateral hetero plan.toml --output out

      bilateral hetero --resume out

      bilateral hetero --engine flare-sim --clients 3 --output out
    """
    named = {
        "data.name": data,
        "clients.architectures": None if models is None else _architectures(models),
        "clients.number": clients,
        "data.samples_per_client": samples,
        "data.partition": None if alpha is None else "dirichlet",
        "data.alpha": alpha,
        "queries.pool": pool,
        "queries.number": queries,
        "queries.selection": selection,
        "queries.fraction": fraction,
        "iterations": iterations,
        "answers": answers,
        "style": style,
        "seed": seed,
    }
    if resume is not None:
        others = (value for key, value in named.items() if key not in ("data.name", "clients.architectures"))
        if plan is not None or settings or output or any(value is not None for value in others):
            raise PlanError("--resume goes on with the plan of that run.", remedy="Give no other settings with it.")
        chosen = resumed(resume, RunDirectory.open(resume, load_hetero_plan)[1], "hetero", data=data, models=models)
        output = resume
    else:
        chosen = _build_plan(plan, named, settings)
    if write_plan is not None:
        write_new_plan(hetero_plan_with_comments(chosen), write_plan, json=json)
        return
    with (
        ProgressBar(f"{chosen.data.name}, {chosen.clients.number} clients, %", quiet=quiet) as bar,
        interruptible("Stopping after this client's stage; once more to stop at once.") as interrupted,
    ):
        result = _runner(engine)(
            chosen,
            output=output,
            data_dir=data_dir,
            resume=resume is not None,
            on_progress=lambda progress: bar.update(int(100 * progress.share_done), 100, str(progress)),
            should_stop=lambda: bool(interrupted),
        )
    page = None if result.output is None else write_run_page(result.output)
    if json:
        print_json(result.as_dict())
    else:
        _print_result(result)
        if page is not None:
            out.print(f"Report:  {escape(str(page))}")
    if not result.finished:
        said = f"Stopped after {result.stages_done} of {result.num_stages} stages."
        raise stopped(said, "hetero", result.output, code_of(chosen), data_dir=data_dir, engine=engine)


def _runner(engine: str) -> Callable[..., HeteroResult]:
    if engine == IN_PROCESS:
        return run_hetero
    if engine not in FLARE_ENGINES:
        raise PlanError(f"There is no engine {engine!r}.", remedy=f"Choose {', '.join((IN_PROCESS, *FLARE_ENGINES))}.")
    run = import_flare("launch").run_on_flare

    def on_flare(plan: HeteroPlan, *, on_progress: Callable[[Any], None], **settings: Any) -> HeteroResult:
        result: HeteroResult = run(hosted_kind(HETERO), plan, engine, on_status=on_progress, **settings)
        return result

    return on_flare


def _architectures(text: str) -> list[dict[str, Any]]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise PlanError(
            f"Expected models such as mlp-3,lenet, got {text!r}.", remedy="Name one or more, parted by commas."
        )
    return [{"name": name} for name in names]


def _build_plan(path: Path | None, named: dict[str, Any], settings: list[str] | None) -> HeteroPlan:
    """The plan file (or the default), then named options, then `--set`, later ones winning."""
    plan = load_hetero_plan(path) if path is not None else HeteroPlan()
    changes = {key: value for key, value in named.items() if value is not None}
    changes.update(parse_setting(text) for text in settings or [])
    plan = plan.with_settings(changes) if changes else plan
    check_named(path or "The plan", plan, named_in(changes))
    return plan


def _print_result(result: HeteroResult) -> None:
    table = Table(box=None, header_style="bold")
    for name in ("architecture", "clients", "alone", "after", "gain"):
        table.add_column(name, justify="left" if name == "architecture" else "right")
    for row in result.rows():
        before, after = row["accuracy_before"], row["accuracy_after"]
        gain = "" if before is None or after is None else f"{100 * (after - before):+.1f}"
        style = "bold" if row["architecture"] == AVERAGE else None
        table.add_row(
            escape(row["architecture"]), str(row["clients"]), _percent(before), _percent(after), gain, style=style
        )
    out.print(table)
    plan, asked = result.plan, result.rows()[-1]["queries"]
    out.print(f"\nTest accuracy on {escape(result.dataset)}; {result.seconds:.0f} s.")
    if asked is not None:
        out.print(
            f"A client asked {asked} {plan.queries.pool} queries ({plan.queries.selection}) of {plan.num_answerers} "
            f"others, {plan.iterations} time(s)."
        )
    _print_guarantee(result)
    if result.output is not None:
        out.print(f"Results: {escape(str(result.output))}")


def _print_guarantee(result: HeteroResult) -> None:
    guarantee = result.guarantee
    if not guarantee.claims:
        out.print(f"With {guarantee.protection} nothing is hidden: this was for speed, not for privacy.")
        return
    print_guarantee(guarantee.as_dict())
    out.print("\nThis was a simulation: all parties ran here, with secrets drawn from the seed.")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
