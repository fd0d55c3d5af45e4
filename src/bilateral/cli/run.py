"""`bilateral run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, get_args

import typer
from rich.markup import escape

from bilateral.cli.any_kind import from_outside, run_any_kind, stopped
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
    is_bare_budget,
    parse_setting,
    resumed,
    with_sound_defaults,
    write_new_plan,
)
from bilateral.cli.run_result import print_result
from bilateral.engine.kind import ROUNDS, RunKind, kind_of_plan
from bilateral.engine.named_code import code_of
from bilateral.engine.plan import RunPlan, load_plan, plan_with_comments
from bilateral.engine.remote.hosting import hosted_kind
from bilateral.engine.run_directory import RunDirectory, plan_at
from bilateral.engine.run_status import RunStatus
from bilateral.engine.run_story import SiteState
from bilateral.engine.term import IN_PROCESS
from bilateral.errors import PlanError
from bilateral.learning.evaluation import main_metric
from bilateral.protections.sealed.protection import SEALED
from bilateral.report.run_page.page import write_run_page
from bilateral.report.tracking import trackers
from bilateral.runs.rounds.callbacks import Callback
from bilateral.runs.rounds.extend import extend_run
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
        float | None,
        typer.Option(help="Sound differential privacy with this budget for the whole run.", show_default=False),
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Simulate clients that die: chance a round.", show_default=False)
    ] = None,
    dealer: Annotated[
        str | None,
        typer.Option(help="Sealed training: a party without data that deals; by default rotating.", show_default=False),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, mps, or auto: what is there.", show_default=False)
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
    track: Annotated[
        list[str] | None,
        typer.Option(help="tensorboard, mlflow or wandb (offline); may be repeated.", show_default=False),
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

      bilateral run --epsilon 8     (sound differential privacy: FedSGD under masks, beside FedSGD without noise)

      bilateral run --data breast-cancer --model mlp-3 --loss mse --noise offset --epsilon 8 --rounds 30

      bilateral run --resume out

      bilateral run --resume out --rounds 300     (so many in all)

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
        "training.device": device,
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
        if plan is not None or settings or output or epsilon:
            raise PlanError("--resume goes on with the plan of that run.", remedy="Give no other settings with it.")
        chosen, output = _resumed_plan(resume, named, engine), resume
    else:
        chosen, reference = _new_plan(plan, named, settings, epsilon, reference)
    if write_plan is not None:
        write_new_plan(plan_with_comments(chosen), write_plan, json=json)
        return
    title = f"{chosen.data.name} / {chosen.model.name}"
    with (
        ProgressBar(title, quiet=quiet) as bar,
        interruptible("Stopping after this round; once more to stop at once.") as interrupted,
    ):
        told = trackers(track or ())
        result = _run(chosen, engine, output, data_dir, resume is not None, reference, bar, interrupted, told)
    page = None if result.output is None else write_run_page(result.output)
    if json:
        print_json(result.as_dict())
    else:
        print_result(result.as_dict(), chosen)
        if page is not None:
            out.print(f"Report:  {escape(str(page))}")
    if not result.finished:
        said = f"Stopped after round {result.rounds}."
        raise stopped(said, "run", result.output, code_of(chosen), data_dir=data_dir, engine=engine)
    check_trained(result.as_dict())


def _resumed_plan(run_directory: Path, named: Mapping[str, Any], engine: str) -> RunPlan:
    """The plan of a stored run; of more rounds, if they are named."""
    given_again = ("data.name", "model.name", "training.loss", "training.rounds")
    if any(value is not None for key, value in named.items() if key not in given_again):
        raise PlanError("--resume goes on with the plan of that run.", remedy="Give no other settings with it.")
    data, model, loss, rounds = (named[key] for key in given_again)
    if rounds is not None and engine != IN_PROCESS:
        raise PlanError(
            "Only runs of one process are extended: sites accept a plan with its number of rounds.",
            remedy="Start a run of more rounds there.",
        )
    stored = RunDirectory.open(run_directory, load_plan)[1]
    chosen = resumed(run_directory, stored, "run", data=data, model=model, loss=loss)
    return chosen if rounds is None else extend_run(run_directory, rounds)


def _new_plan(
    plan: Path | None,
    named: Mapping[str, Any],
    settings: list[str] | None,
    epsilon: float | None,
    reference: bool | None,
) -> tuple[RunPlan, bool | None]:
    """The plan that options and a file say; and whether FedSGD is trained beside it, if they say that."""
    asked: dict[str, Any] = {**named, **budget(plan, epsilon=epsilon)}
    if reference is None and named.get("data.name") is None and is_bare_budget(plan, asked, settings):
        reference = True  # on data that are nobody's secret: what noise costs is the first question
    asked = with_sound_defaults(plan, asked, settings)
    is_first = plan is None and not _says_more(asked, settings)
    return build_plan(plan, asked | FIRST_RUN if is_first else asked, settings), reference


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
    callbacks: Sequence[Callback],
) -> _Result:
    if callbacks and engine != IN_PROCESS:
        raise PlanError("--track is for runs in one process.", remedy="Elsewhere: bilateral watch, and metrics.csv.")
    if engine == IN_PROCESS:
        return run(
            plan,
            output=output,
            data_dir=data_dir,
            resume=resume,
            reference=reference,
            on_round=lambda report: bar.update(report.round_index, report.num_rounds, str(report)),
            callbacks=callbacks,
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
