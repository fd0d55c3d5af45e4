"""`bilateral run`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, get_args

import typer
from rich.markup import escape
from rich.table import Table

from bilateral.cli.any_kind import from_outside, print_guarantee, run_any_kind, stopped
from bilateral.cli.console import ProgressBar, interruptible, out, print_json
from bilateral.cli.flare_extra import import_flare
from bilateral.cli.hetero import hetero_command
from bilateral.cli.options import (
    PROTECTION_HELP,
    Clients,
    DataDir,
    DataName,
    Json,
    LossName,
    ModelName,
    PlanArgument,
    Quiet,
    Rounds,
    Seed,
    Settings,
    budget,
    build_plan,
    check_trained,
    parse_setting,
    resumed,
    write_new_plan,
)
from bilateral.engine.kind import ROUNDS, RunKind, kind_of_plan
from bilateral.engine.named_code import code_of
from bilateral.engine.plan import RunPlan, dump_plan, load_plan
from bilateral.engine.remote.hosting import hosted_kind
from bilateral.engine.run_directory import RunDirectory, plan_at
from bilateral.engine.run_status import RunStatus
from bilateral.engine.run_story import SiteState
from bilateral.engine.term import IN_PROCESS
from bilateral.errors import PlanError
from bilateral.learning.evaluation import main_metric
from bilateral.protections.groundwork import ROTATING
from bilateral.protections.sealed.protection import SEALED
from bilateral.report.run_page.page import write_run_page
from bilateral.runs.rounds.in_process import run

FIRST_RUN: Final = {"protection": SEALED, "model.name": "mlp-3"}
"""What `bilateral run` does if nothing is said of data, model or protection (docs/decisions/0031-the-first-run.md)."""
_SAYS_MORE: Final = ("data", "model", "protection", "perturbation", "aggregation", "noise")


def run_command(
    plan: PlanArgument = None,
    data: DataName = None,
    model: ModelName = None,
    clients: Clients = None,
    rounds: Rounds = None,
    loss: LossName = None,
    noise: Annotated[str | None, typer.Option(help="activation or offset.", show_default=False)] = None,
    partitions: Annotated[int | None, typer.Option(help="Output groups with own secrets.", show_default=False)] = None,
    protection: Annotated[str | None, typer.Option(help=PROTECTION_HELP, show_default=False)] = None,
    masks: Annotated[str | None, typer.Option(help="ring, float or none.", show_default=False)] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Sound differential privacy with this budget.", show_default=False)
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Simulate clients that die: chance a round.", show_default=False)
    ] = None,
    dealer: Annotated[
        str | None,
        typer.Option(help="Sealed training: a party without data that deals; by default rotating.", show_default=False),
    ] = None,
    seed: Seed = None,
    settings: Settings = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Run directory.", show_default=False)] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a stopped run.", show_default=False)] = None,
    engine: Annotated[
        str, typer.Option(help="in-process, flare-sim or flare-poc: NVIDIA FLARE, a process a site.")
    ] = IN_PROCESS,
    reference: Annotated[
        bool | None,
        typer.Option(
            "--reference/--no-reference",
            help="Train FedSGD beside it and compare; by default yes, except with sound noise.",
            show_default=False,
        ),
    ] = None,
    write_plan: Annotated[
        Path | None, typer.Option(help="Write the plan to a file and stop.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model with clients and a server that do not see each other's side; `--protection` says how far.

    Without a plan: five clients, real data that come with scikit-learn, under a minute. If nothing is said of data,
    model or protection, it is sealed: clients train a model that none of them has. Otherwise it is perturbation.

    Examples:

      bilateral run

      bilateral run --protection perturbation

      bilateral run --data breast-cancer --model mlp-5 --clients 3 --noise offset

      bilateral run plan.toml --output out --set training.learning_rate=0.05

      bilateral run --clients 8 --dropout 0.1

      bilateral run --protection sealed --data breast-cancer --model mlp-3 --loss mse --dealer auditor --rounds 30

      bilateral run --data breast-cancer --model mlp-3 --loss mse --noise offset --epsilon 8 --rounds 30

      bilateral run --resume out

      bilateral run --engine flare-poc --clients 3 --rounds 50 --output out     (elsewhere: bilateral watch out)
    """
    named = {
        "data.name": data,
        "model.name": model,
        "federation.clients": clients,
        "training.rounds": rounds,
        "training.loss": loss,
        "perturbation.noise": noise,
        "perturbation.partitions": partitions,
        "protection": protection,
        "aggregation.masks": masks,
        "federation.dropout": dropout,
        "federation.dealer": dealer,
        "seed": seed,
    }
    other = _other_kind(plan, resume)
    if other is not None and other[0].command == "hetero":
        hetero_command(resume=resume, data=data, models=model, engine=engine, data_dir=data_dir, json=json, quiet=quiet)
        return
    if other is not None:
        given = settings or epsilon or reference or write_plan or engine != IN_PROCESS
        if given or (resume and (plan or output)) or any(value is not None for value in named.values()):
            raise PlanError(f"Plans of kind {other[0].name!r} are run as they are.", remedy="Give no other settings.")
        run_any_kind(
            *other, output=resume or output, resume=resume is not None, data_dir=data_dir, json=json, quiet=quiet
        )
        return
    if resume is not None:
        others = (value for key, value in named.items() if key not in ("data.name", "model.name"))
        if plan is not None or settings or output or epsilon or any(value is not None for value in others):
            raise PlanError("--resume goes on with the plan of that run.", remedy="Give no other settings with it.")
        chosen, output = resumed(resume, RunDirectory.open(resume, load_plan)[1], "run", data=data, model=model), resume
    else:
        asked: dict[str, Any] = {**named, **budget(plan, epsilon=epsilon)}
        is_first = plan is None and not _says_more(asked, settings)
        chosen = build_plan(plan, asked | FIRST_RUN if is_first else asked, settings)
    if write_plan is not None:
        write_new_plan(dump_plan(chosen), write_plan, json=json)
        return
    title = f"{chosen.data.name} / {chosen.model.name}"
    with (
        ProgressBar(title, quiet=quiet) as bar,
        interruptible("Stopping after this round; once more to stop at once.") as interrupted,
    ):
        result = _run(chosen, engine, output, data_dir, resume is not None, reference, bar, interrupted)
    page = None if result.output is None else write_run_page(result.output)
    if json:
        print_json(result.as_dict())
    else:
        _print_result(result.as_dict())
        if page is not None:
            out.print(f"Report:  {escape(str(page))}")
    if not result.finished:
        said = f"Stopped after round {result.rounds}."
        raise stopped(said, "run", result.output, code_of(chosen), data_dir=data_dir, engine=engine)
    check_trained(result.as_dict())


def _says_more(named: Mapping[str, Any], settings: list[str] | None) -> bool:
    """Whether options or settings say what is learned, or how it is protected."""
    keys = [key for key, value in named.items() if value is not None]
    keys += [parse_setting(text)[0] for text in settings or ()]
    return any(key.split(".")[0] in _SAYS_MORE for key in keys)


def _other_kind(plan: Path | None, resume: Path | None) -> tuple[RunKind[Any], Any] | None:
    """The kind and the plan, if they are not for this command: one without a command, or any kind that is resumed."""
    if resume is not None:
        found = RunDirectory.open(resume, plan_at)[1]
        kind = kind_of_plan(found)
        return None if kind.name == ROUNDS else (kind, found)
    return from_outside(plan)


class _Result(Protocol):
    """What every engine returns."""

    @property
    def output(self) -> Path | None: ...

    @property
    def finished(self) -> bool: ...

    @property
    def rounds(self) -> int: ...

    def as_dict(self) -> dict[str, Any]: ...


def _run(
    plan: RunPlan,
    engine: str,
    output: Path | None,
    data_dir: Path | None,
    resume: bool,
    reference: bool | None,
    bar: ProgressBar,
    interrupted: list[int],
) -> _Result:
    if engine == IN_PROCESS:
        return run(
            plan,
            output=output,
            data_dir=data_dir,
            resume=resume,
            reference=reference,
            on_round=lambda report: bar.update(report.round_index, report.num_rounds, str(report)),
            should_stop=lambda: bool(interrupted),
        )
    launch = import_flare("launch")
    if engine not in get_args(launch.FlareEngine):
        raise PlanError(
            f"There is no engine {engine!r}.",
            remedy=f"Choose {', '.join((IN_PROCESS, *get_args(launch.FlareEngine)))}.",
        )
    result: _Result = launch.run_on_flare(
        hosted_kind(ROUNDS),
        plan,
        engine,
        output=output,
        data_dir=data_dir,
        resume=resume,
        options={"reference": reference},
        on_status=lambda status: bar.update(status.round, status.num_rounds, _status_note(status)),
        on_note=bar.note,
        should_stop=lambda: bool(interrupted),
    )
    return result


def _status_note(status: RunStatus) -> str:
    if not status.metrics:
        return "starting"
    metric, value = main_metric(status.metrics)
    away = [site.name for site in status.sites if site.state is SiteState.MISSED]
    return f"{metric} {value:.4f}" + (f"  without {', '.join(away)}" if away else "")


def _print_result(values: dict[str, Any]) -> None:
    metric, metrics = values["metric"], values["metrics"]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row(metric, f"{values['metric_value']:.4f}")
    for name, other in metrics.items():
        if name != metric:
            table.add_row(name, f"{other:.4f}")
    if values["metrics_of_fedavg"] is not None:
        table.add_row(f"{metric} of FedSGD, same seed", f"{main_metric(values['metrics_of_fedavg'])[1]:.4f}")
        table.add_row(
            "largest difference of weights to FedSGD",
            f"{values['difference_to_fedavg']:.1e} (relative, all rounds)",
        )
    if values.get("recovery_error") is not None:
        table.add_row("recovery checked before round 1", f"{values['recovery_error']:.0e} against plain autograd")
    if values["rounds_failed"]:
        table.add_row("rounds without enough clients", f"{len(values['rounds_failed'])} (they changed nothing)")
    if incidents := values["incidents"]:
        table.add_row("messages refused", f"{len(incidents)}, the first in round {incidents[0]['round_index']}:")
        table.add_row("", escape(incidents[0]["reason"]))
    table.add_row("sent up / down", f"{values['megabytes_up']:.1f} MB / {values['megabytes_down']:.1f} MB")
    table.add_row("rounds, time", f"{values['rounds']}, {values['seconds']:.1f} s")
    if (dealer := values.get("dealer")) is not None:
        who = "another client, drawn anew in every round" if dealer == ROTATING else f"{escape(dealer)}, without data"
        table.add_row("what a client saw", "nothing of the model: words that are uniform to it")
        table.add_row("who dealt for it", who)
    if (view := values["client_view"]) is not None:
        off = 100 * view["weights_relative_difference"]
        table.add_row("what a client saw", f"weights {off:.0f} % off the true ones")
        table.add_row("", f"{100 * view['fraction_clear']:.2f} % of the parameters in the clear")
        seen, true = view["metric_as_seen"], view["metric_of_true_model"]
        told = "without the noise that it was told" if view["noise_is_told"] else "true"
        table.add_row("", f"{view['metric']} {seen:.4f} if it takes outputs as they come ({told}: {true:.4f})")
    out.print(table)
    print_guarantee(values["guarantee"])
    if values["output"] is not None:
        out.print("\nThis was a simulation: all parties ran here, with secrets drawn from the seed.")
        out.print(f"Results: {escape(values['output'])}")
