"""What `bilateral run` prints of a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from bilateral.cli.any_kind import print_guarantee
from bilateral.cli.console import out
from bilateral.engine.plan import RunPlan
from bilateral.learning.evaluation import main_metric
from bilateral.protections.groundwork import ROTATING
from bilateral.protections.ladder import Rung, who_sees_what
from bilateral.protections.registry import word_of

_WORTH_A_WORD = 1e-3
"""Of the difference to FedSGD: where one would ask."""


def print_result(values: Mapping[str, Any], plan: RunPlan) -> None:
    """For people: figures first, then what is hidden from whom, and where the results lie."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, said in (*_quality(values, plan), *_course(values), *_seen_by_clients(values)):
        table.add_row(name, said)
    out.print(table)
    for warning in values.get("warnings", ()):
        out.print(f"\n[yellow]{escape(warning)}[/]")
    if values["ladder"] is not None:
        rung = Rung(**values["ladder"])
        out.print(f"\n[bold]{word_of(rung.protection)}[/], of four protections (bilateral ladder)")
        for title, cell in who_sees_what(rung).items():
            out.print(f"  {title}: {cell}")
    print_guarantee(values["guarantee"])
    if values["output"] is not None:
        out.print("\nThis was a simulation: all parties ran here, with secrets drawn from the seed.")
        out.print(f"Results: {escape(values['output'])}")


def _quality(values: Mapping[str, Any], plan: RunPlan) -> Iterator[tuple[str, str]]:
    metric = values["metric"]
    yield metric, f"{values['metric_value']:.4f}"
    for name, other in values["metrics"].items():
        if name != metric:
            yield name, f"{other:.4f}"
    if values["metrics_of_fedavg"] is not None:
        yield f"{metric} of {values['yardstick']}, same seed", f"{main_metric(values['metrics_of_fedavg'])[1]:.4f}"
        difference = f"{values['difference_to_fedavg']:.1e} (relative, all rounds)"
        yield f"largest difference of weights to {values['yardstick']}", difference
        if values["difference_to_fedavg"] > _WORTH_A_WORD and (why := _why_it_differs(plan)):
            yield "", why
    if values.get("recovery_error") is not None:
        yield "recovery checked before round 1", f"{values['recovery_error']:.0e} against plain autograd"
    if values.get("best_round") is not None:
        yield "best on validation data", f"after round {values['best_round']}; that model is the result"


def _why_it_differs(plan: RunPlan) -> str:
    """What a difference to FedSGD under perturbation comes of, and what takes it away; of sealed training, its ring."""
    if plan.traits.computes_on_shares:
        return "fixed point: sums of 64-bit words"
    if plan.traits.hides_model and plan.perturbation.norm_inputs == "scaled":
        return "norms: eps acts as eps / factor^2; not so with perturbation.norm_inputs = exact, or a smaller eps"
    if plan.training.dtype == "float32":
        return "rounding, which norms and many rounds magnify; training.dtype = float64 takes it away"
    return ""


def _course(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if values["rounds_failed"]:
        yield "rounds without enough clients", f"{len(values['rounds_failed'])} (they changed nothing)"
    if incidents := values["incidents"]:
        yield "messages refused", f"{len(incidents)}, the first in round {incidents[0]['round_index']}:"
        yield "", escape(incidents[0]["reason"])
    for site, told in sorted(values.get("told_by_sites", {}).items()):
        said = ", ".join(f"{name.removeprefix('site_')} {value:.4g}" for name, value in told.items() if name != "round")
        yield f"told by {escape(site)}", f"after round {told['round']:.0f}: {said}"
    yield "sent up / down", f"{values['megabytes_up']:.1f} MB / {values['megabytes_down']:.1f} MB"
    yield "rounds, time", f"{values['rounds']}, {values['seconds']:.1f} s"


def _seen_by_clients(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if (dealer := values.get("dealer")) is not None:
        who = "another client, drawn anew in every round" if dealer == ROTATING else f"{escape(dealer)}, without data"
        yield "what a client saw", "nothing of the model: words that are uniform to it"
        yield "who dealt for it", who
    if (view := values["client_view"]) is not None:
        yield "what a client saw", f"weights {100 * view['weights_relative_difference']:.0f} % off the true ones"
        yield "", f"{100 * view['fraction_clear']:.2f} % of the parameters in the clear"
        seen, true = view["metric_as_seen"], view["metric_of_true_model"]
        told = "without the noise that it was told" if view["noise_is_told"] else "true"
        yield "", f"{view['metric']} {seen:.4f} if it takes outputs as they come ({told}: {true:.4f})"
