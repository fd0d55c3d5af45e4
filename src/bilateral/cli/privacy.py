"""`bilateral privacy`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from bilateral.cli.console import out, print_json
from bilateral.cli.options import (
    MECHANISM_HELP,
    Clients,
    DataDir,
    DataName,
    Json,
    LossName,
    ModelName,
    PlanArgument,
    Rounds,
    Settings,
    budget,
    build_plan,
    with_sound_defaults,
)
from bilateral.engine.plan import RunPlan
from bilateral.engine.privacy import privacy_of
from bilateral.protocols.noise.privacy_report import PrivacyReport

MEANING = {
    "sound": "SOUND: holds against the stated observer, whatever it knows of the perturbation.",
    "published, conditional": "PUBLISHED, CONDITIONAL: the paper's claim, under conditions that its protocol does not "
    "meet; a server that knows its own scale factors is not bound by it (docs/leakage-ledger.md, lines 3 and 4).",
}


def privacy_command(
    plan: PlanArgument = None,
    data: DataName = None,
    model: ModelName = None,
    clients: Clients = None,
    rounds: Rounds = None,
    loss: LossName = None,
    mechanism: Annotated[str | None, typer.Option(help=MECHANISM_HELP, show_default=False)] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Solve for the noise that spends this much.", show_default=False)
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise of the sum over the sensitivity (sound).", show_default=False)
    ] = None,
    delta: Annotated[float | None, typer.Option(help="At which epsilon is stated.", show_default=False)] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Print what a plan spends, or solve for the noise that meets a budget. Nothing is trained.

    The budget is of the whole run for sound noise, and of one round, as the paper counts, for the published ones.

    Examples:

      bilateral privacy --epsilon 8     (of what `bilateral run --epsilon 8` runs)

      bilateral privacy --data breast-cancer --model mlp-3 --loss mse --epsilon 8

      bilateral privacy plan.toml --noise-multiplier 1.1

      bilateral privacy plan.toml --mechanism published --epsilon 3 --json
    """
    named = {
        "data.name": data,
        "model.name": model,
        "federation.clients": clients,
        "training.rounds": rounds,
        "training.loss": loss,
        "noise.delta": delta,
        **budget(plan, mechanism=mechanism, epsilon=epsilon, multiplier=noise_multiplier),
    }
    chosen = build_plan(plan, with_sound_defaults(plan, named, settings), settings)
    report = privacy_of(chosen, data_dir=data_dir)
    if json:
        print_json(_as_dict(chosen, report))
    elif report is None:
        out.print("This plan adds no noise. It claims no differential privacy: epsilon is infinite.")
        out.print("Solve for noise that meets a budget: bilateral privacy ... --epsilon 8")
    else:
        _print_report(chosen, report)


def _as_dict(plan: RunPlan, report: PrivacyReport | None) -> dict[str, object]:
    found = {"status": "none", "rows": []} if report is None else report.as_dict()
    return {"mechanism": plan.noise.mechanism, "rounds": plan.training.rounds, **found}


def _print_report(plan: RunPlan, report: PrivacyReport) -> None:
    out.print(f"[bold]{plan.noise.mechanism} noise[/], {plan.training.rounds} rounds, unit: one {report.unit}")
    out.print(MEANING[report.status])
    table = Table(box=None, header_style="bold")
    for column in ("against", "epsilon a round", "epsilon in total", "delta"):
        table.add_column(column, justify="left" if column == "against" else "right")
    for row in report.rows:
        table.add_row(escape(row.observer), f"{row.epsilon_per_round:.3g}", f"{row.epsilon:.3g}", f"{row.delta:g}")
    out.print(table)
    for row in report.rows:
        out.print(f"  [dim]{escape(row.observer)}: if {escape(row.assumption)}[/]")
    if report.is_conditional:
        out.print("  [dim]epsilon in total: all rounds composed, if the claim for one round held[/]")
    out.print("noise: " + ", ".join(f"{name} {value:.4g}" for name, value in report.deviations.items()))
