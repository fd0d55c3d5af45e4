"""`bilateral explain`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from bilateral.cli.console import out, print_json
from bilateral.cli.options import (
    PROTECTION_HELP,
    Clients,
    DataDir,
    DataName,
    Json,
    LossName,
    ModelName,
    Rounds,
    Settings,
    budget,
    build_plan,
    with_sound_defaults,
)
from bilateral.engine.kind import ROUNDS, kind_of_plan, read_any
from bilateral.engine.plan import RunPlan
from bilateral.engine.privacy import privacy_of
from bilateral.errors import PlanError
from bilateral.protections.ladder import rung_of
from bilateral.report.run_page.questions import Answer, answers_to
from bilateral.runs.rounds.in_process import run

_ROUNDS_TRIED: Final = 2
_SIGNS: Final = {"held": "[green]✓[/]", "admitted": "[yellow]![/]", "open": "[yellow]?[/]", "broken": "[red]✗[/]"}


@dataclass(frozen=True)
class Cost:
    """Of a round; bytes are of all sites together."""

    seconds: float
    megabytes_up: float
    megabytes_down: float


def explain_command(
    plan: Annotated[
        Path | None, typer.Argument(help="Plan file (TOML) of any kind. Without one: options.", show_default=False)
    ] = None,
    data: DataName = None,
    model: ModelName = None,
    clients: Clients = None,
    rounds: Rounds = None,
    loss: LossName = None,
    protection: Annotated[str | None, typer.Option(help=PROTECTION_HELP, show_default=False)] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Sound differential privacy with this budget.", show_default=False)
    ] = None,
    settings: Settings = None,
    measure: Annotated[
        bool, typer.Option("--measure", help=f"Try {_ROUNDS_TRIED} rounds here, and say what one costs.")
    ] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Say in plain words what a plan hides from whom, what it does not, and what it costs, before anything runs.

    Examples:

      bilateral explain plan.toml

      bilateral explain --protection masks --epsilon 8 --data breast-cancer --model mlp-3 --loss mse

      bilateral explain --protection sealed --measure

      bilateral explain hetero.toml --json
    """
    named: dict[str, Any] = {
        "data.name": data,
        "model.name": model,
        "federation.clients": clients,
        "training.rounds": rounds,
        "training.loss": loss,
        "protection": protection,
    }
    if plan is not None and not isinstance(read_any(plan)[1], RunPlan):
        if measure or settings or epsilon or any(value is not None for value in named.values()):
            raise PlanError("Only plans of `bilateral run` take other settings here.", remedy="Edit the plan's file.")
        chosen: Any = read_any(plan)[1]
    else:
        asked = with_sound_defaults(plan, {**named, **budget(plan, epsilon=epsilon)}, settings)
        chosen = build_plan(plan, asked, settings)
    kind = kind_of_plan(chosen)
    guarantee = kind.guarantee(chosen, data_dir).as_dict()
    report = privacy_of(chosen, data_dir=data_dir) if isinstance(chosen, RunPlan) else None
    privacy = report.as_dict() if report else None
    found = answers_to(kind.name, guarantee, privacy, chosen.model_dump(mode="json"))
    cost = _measured(chosen, data_dir) if measure else None
    outline = kind.outline(chosen)
    if json:
        print_json(
            {
                "kind": kind.name,
                "data": outline.data,
                "model": outline.model,
                "steps": outline.num_steps,
                "questions": [asdict(one) for one in found],
                "guarantee": guarantee,
                "privacy": privacy,
                "cost_of_a_round": None if cost is None else asdict(cost),
            }
        )
        return
    title = f"{outline.data}, {outline.model}, {outline.num_steps} {outline.unit}s: {guarantee['protection']}"
    out.print(f"[bold]{escape(title)}[/]")
    for one in found:
        _print(one)
    _print_cost(chosen, cost, outline.num_steps)
    out.print(
        "\nIn the plan's own words, with every assumption: [bold]bilateral explain --json[/], or the end of a run."
    )


def _print(one: Answer) -> None:
    out.print(f"\n{_SIGNS[one.tone]} [bold]{escape(one.question)}[/] {escape(one.short)}.")
    out.print(f"  {escape(one.text)}")
    if one.rests_on:
        out.print(f"  [dim]This rests on: {escape(one.rests_on)}.[/]")


def _print_cost(plan: Any, cost: Cost | None, num_steps: int) -> None:
    if not isinstance(plan, RunPlan):
        return
    if cost is not None:
        out.print(
            f"\nCost, measured here with all sites in one process: {cost.seconds:.2g} s a round "
            f"({cost.seconds * num_steps:.0f} s in all), {cost.megabytes_up:.2g} MB up and "
            f"{cost.megabytes_down:.2g} MB down, all sites together."
        )
        return
    rung = plan.rung or rung_of(plan.protection, plan.traits.default_masks)
    if rung is not None:
        out.print(f"\nCost of a client's step, in plain steps: {rung.cost}. [dim]--measure tries it.[/]")


def _measured(plan: Any, data_dir: Path | None) -> Cost:
    """A round as it is here: the later of two, since the first compiles and agrees on keys."""
    assert kind_of_plan(plan).name == ROUNDS
    ends: list[float] = []
    trial = plan.with_settings({"training.rounds": _ROUNDS_TRIED, "training.warmup_rounds": 0})
    traffic = run(
        trial, data_dir=data_dir, reference=False, save=False, on_round=lambda _: ends.append(time.perf_counter())
    ).transcript
    return Cost(ends[-1] - ends[-2], traffic.bytes_up / 1e6 / _ROUNDS_TRIED, traffic.bytes_down / 1e6 / _ROUNDS_TRIED)
