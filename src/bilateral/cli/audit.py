"""`bilateral audit` and `bilateral leakage-page`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.markup import escape

from bilateral.audit.audit_directory import AuditDirectory
from bilateral.audit.auditor import AuditProgress, AuditResult, audit, stored_plan, stored_result
from bilateral.audit.effort import EffortName
from bilateral.audit.evidence import Evidence
from bilateral.audit.experiment import AnyPlan
from bilateral.audit.topics.registry import experiments_for
from bilateral.cli.any_kind import from_outside, stopped
from bilateral.cli.console import ProgressBar, err, interruptible, out, print_json
from bilateral.cli.options import (
    MECHANISM_HELP,
    PROTECTION_HELP,
    Clients,
    DataDir,
    DataName,
    Json,
    LossName,
    PlanArgument,
    Quiet,
    Rounds,
    Seed,
    Settings,
    budget,
    build_plan,
    check_writable,
    named_in,
    parse_setting,
    resumed,
    with_sound_defaults,
)
from bilateral.engine.kind import kind_of_plan
from bilateral.engine.named_code import check_named, code_of
from bilateral.engine.plan import RunPlan
from bilateral.errors import PlanError
from bilateral.protocols.share.gates.styles import StyleName
from bilateral.report.audit_html import write_html
from bilateral.report.audit_pictures import write_pictures
from bilateral.report.audit_table import audit_tables
from bilateral.report.leakage_page import leakage_page, pictures_beside
from bilateral.runs.hetero.plan import HeteroPlan, load_hetero_plan

BROKEN_CLAIM = 3
"""Exit code of `--strict` unless the plan claims something, and every claim holds."""


def audit_command(
    plan: PlanArgument = None,
    data: DataName = None,
    model: Annotated[
        str | None, typer.Option("--model", "--models", help="Model, e.g. mlp-5, resnet-20.", show_default=False)
    ] = None,
    clients: Clients = None,
    rounds: Rounds = None,
    loss: LossName = None,
    protection: Annotated[str | None, typer.Option(help=PROTECTION_HELP, show_default=False)] = None,
    masks: Annotated[str | None, typer.Option(help="ring, float or none.", show_default=False)] = None,
    mechanism: Annotated[str | None, typer.Option(help=f"Noise: {MECHANISM_HELP}", show_default=False)] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget of the noise.", show_default=False)] = None,
    hetero: Annotated[
        bool, typer.Option("--hetero", help="The plan is one of `bilateral hetero`: audit secret-shared prediction.")
    ] = False,
    style: Annotated[
        str | None,
        typer.Option(
            help="With --hetero: sealed, hardened, or published as in the paper, if not as the plan says.",
            show_default=False,
        ),
    ] = None,
    effort: Annotated[
        str | None, typer.Option(help="smoke (quick, proves little), standard (default), thorough.", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this experiment; may be repeated.", show_default=False)
    ] = None,
    list_experiments: Annotated[bool, typer.Option("--list", help="List the experiments and stop.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes; by default one a core, at most two.", min=1, show_default=False)
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 3 unless the plan claims something, and all of it holds.")
    ] = False,
    details: Annotated[bool, typer.Option("--details", help="Say what each control was, with intervals.")] = False,
    show: Annotated[
        Path | None, typer.Option(help="Print a stored audit (its folder or audit.json) and stop.", show_default=False)
    ] = None,
    seed: Seed = None,
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The audit's folder.", show_default=False)
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a stopped audit.", show_default=False)] = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Attack a plan from the place of each of its parties, and say which of its claims were not broken.

    Every attack is also tried where nothing defends (plain FedSGD, mostly), where it must succeed, and where there is
    nothing to find, where it must fail; otherwise it proves nothing, and the audit says so. Without a plan: the default
    of `bilateral run`, in a few minutes. Figures, pictures and a page for the browser go to a folder.

    Examples:

      bilateral audit

      bilateral audit plan.toml --output out --strict

      bilateral audit --masks none --only gradient-inversion

      bilateral audit --data breast-cancer --model mlp-3 --loss mse --mechanism published --epsilon 3

      bilateral audit --hetero

      bilateral audit --show out
    """
    if show is not None:
        stored = stored_result(_stored_file(show))
        _print(stored, details=details, json=json)
        _exit_if(strict and not stored.all_claims_hold)
        return
    named = {
        "data.name": data,
        "model.name": model,
        "federation.clients": clients,
        "training.rounds": rounds,
        "training.loss": loss,
        "protection": protection,
        "aggregation.masks": masks,
        "seed": seed,
    }
    _check_choice("effort", effort, get_args(EffortName))
    _check_choice("style", style, get_args(StyleName) if hetero else ())
    chosen: AnyPlan
    if resume is not None:
        others = [value for key, value in named.items() if key not in ("data.name", "model.name", "training.loss")]
        given = (plan, settings, output, only, epsilon, mechanism, effort, style, hetero or None, *others)
        if any(value is not None for value in given):
            raise PlanError("--resume goes on with the plan of that audit.", remedy="Give no other settings with it.")
        task = AuditDirectory.open(resume).task()
        chosen = stored_plan(task)
        effort, style, only = task["effort"], task["style"], task["only"]
        chosen = _resumed(resume, chosen, data, model, loss)
    elif (outside := from_outside(plan)) is not None:
        if settings or hetero or any(value is not None for value in (epsilon, mechanism, *named.values())):
            raise PlanError(f"Plans of kind {outside[0].name!r} are audited as they are.", remedy="Give no settings.")
        chosen = outside[1]
    elif hetero:
        chosen = _hetero_plan(plan, named, settings)
    else:
        asked = {**named, **budget(plan, mechanism=mechanism, epsilon=epsilon)}
        chosen = build_plan(plan, with_sound_defaults(plan, asked, settings), settings)
    if list_experiments:
        _list(chosen, json=json)
        return
    with (
        ProgressBar(f"audit of {_title(chosen)}", quiet=quiet) as bar,
        interruptible("Stopping; what is done is kept. Once more to stop at once.") as interrupted,
    ):
        result = audit(
            chosen,
            effort=effort or "standard",  # type: ignore[arg-type]
            style=style,  # type: ignore[arg-type]
            only=only or (),
            data_dir=data_dir,
            output=resume or output,
            resume=resume is not None,
            num_workers=workers,
            on_progress=lambda progress: bar.update(round(100 * progress.fraction), 100, _note(progress)),
            on_evidence=_write_pictures,
            on_bug=lambda trace: err.print(escape(trace)),
            should_stop=lambda: bool(interrupted),
        )
    if result.output is not None:
        write_html(result, AuditDirectory(result.output).pictures, result.output / "audit.html")
    _print(result, details=details, json=json)
    if not result.finished:
        code = code_of(chosen) if isinstance(chosen, RunPlan | HeteroPlan) else {}
        raise stopped("Stopped.", "audit", result.output, code, data_dir=data_dir)
    _exit_if(strict and not result.all_claims_hold)


def _exit_if(broken: bool) -> None:
    if broken:
        err.print("Not every claim of this plan holds, or it makes none (--strict); the verdicts above say why.")
        raise typer.Exit(BROKEN_CLAIM)


def leakage_page_command(
    stored: Annotated[list[Path], typer.Argument(help="Stored audits: their folders or audit.json files.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Write the page on what leaks, from stored audits: what the papers claim, what attackers got, what closes it.

    Example:

      bilateral leakage-page docs/audits/*/audit.json --output docs/leakage.md
    """
    check_writable(output)
    results = [(_stored_name(path), stored_result(_stored_file(path))) for path in stored]
    page = leakage_page(results, {_stored_name(path): pictures_beside(_stored_file(path)) for path in stored})
    if output is not None:
        output.write_text(page, encoding="utf-8")
    if json:
        told = {"audits": [name for name, _ in results], "output": None if output is None else str(output)}
        print_json({**told, "page": page if output is None else None})
    elif output is None:
        out.print(page, markup=False)


def _check_choice(what: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        remedy = f"Choose {', '.join(choices)}." if choices else "It belongs to --hetero."
        raise PlanError(f"There is no {what} {value!r} here.", remedy=remedy)


def _stored_file(path: Path) -> Path:
    return path / "audit.json" if path.is_dir() else path


def _stored_name(path: Path) -> str:
    return path.name if path.is_dir() else path.parent.name


def _hetero_plan(path: Path | None, named: dict[str, Any], settings: list[str] | None) -> HeteroPlan:
    taken = {"data.name", "seed"}
    given = {key: value for key, value in named.items() if value is not None}
    if strangers := sorted(set(given) - taken):
        raise PlanError(
            f"{', '.join(strangers)}: no setting of a heterogeneous plan.", remedy="Use --set, or a plan file."
        )
    plan = load_hetero_plan(path) if path is not None else HeteroPlan()
    changes = {**given, **dict(parse_setting(text) for text in settings or [])}
    plan = plan.with_settings(changes) if changes else plan
    check_named(path or "The plan", plan, named_in(changes))
    return plan


def _resumed(source: Path, plan: AnyPlan, data: str | None, model: str | None, loss: str | None) -> AnyPlan:
    """The plan of a stored audit to go on with; code that it names is named again."""
    if isinstance(plan, RunPlan):
        return resumed(source, plan, "audit", data=data, model=model, loss=loss)
    if isinstance(plan, HeteroPlan):
        return resumed(source, plan, "audit", data=data, models=model)
    if data is not None or model is not None:
        raise PlanError("--resume goes on with the plan of that audit.", remedy="Give no other settings with it.")
    return plan


def _write_pictures(directory: AuditDirectory | None, evidence: Sequence[Evidence]) -> None:
    if directory is not None:
        write_pictures(evidence, directory.pictures)


def _title(plan: AnyPlan) -> str:
    outline = kind_of_plan(plan).outline(plan)
    return f"{outline.data} / {outline.model}"


def _note(progress: AuditProgress) -> str:
    return f"{progress.experiment}: {progress.note}"


def _list(plan: AnyPlan, *, json: bool) -> None:
    experiments = experiments_for(plan)
    if json:
        print_json({"experiments": [{"name": one.name, "title": one.title} for one in experiments]})
        return
    for one in experiments:
        out.print(f"{one.name:28} {one.title}")


def _print(result: AuditResult, *, details: bool, json: bool) -> None:
    if json:
        print_json(result.as_dict())
        return
    for part in audit_tables(result, details=details):
        out.print(part)
    if result.output is not None:
        out.print(f"\nFigures, pictures and audit.html: {escape(str(result.output))}")
