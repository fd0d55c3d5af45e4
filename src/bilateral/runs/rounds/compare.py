"""Protections side by side with FedSGD: same seeds, same batches, in lockstep, timed alternately."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bilateral.arguments import checked
from bilateral.engine.federation import Federation, load_federation
from bilateral.engine.plan import ONLY_WITH_LOCAL_STEPS, RunPlan, TrainingPlan
from bilateral.engine.setup import Blueprint, make_blueprints, reference_plan
from bilateral.engine.transcript import Transcript
from bilateral.errors import PlanError
from bilateral.learning.client import invited_clients
from bilateral.learning.evaluation import evaluate, main_metric
from bilateral.learning.training import relative_difference
from bilateral.protections.fedavg.protection import FEDAVG
from bilateral.protections.registry import protection_named, protection_names
from bilateral.protections.sealed.protection import SEALED

REORDERED = f"{FEDAVG}-reordered"
"""FedSGD with every batch in another order: the same mathematics, other roundings. How far may rounding carry?"""
LANES: dict[str, dict[str, Any]] = {
    "perturbation-activation": {"perturbation.noise": "activation", "aggregation.masks": "none"},
    "perturbation-offset": {"perturbation.noise": "offset", "aggregation.masks": "none"},
    "masks": {"protection": "masks", "aggregation.masks": "ring"},
    "float-masks": {"protection": FEDAVG, "aggregation.masks": "float"},
    "perturbation+masks": {"aggregation.masks": "ring"},
}
BY_NAME: dict[str, dict[str, Any]] = {SEALED: {"protection": SEALED, "aggregation.masks": "ring"}}
"""Compared only if they are asked for: they take longer by far, and not every network."""
LOCAL: dict[str, dict[str, Any]] = {
    "local-steps": {"protection": FEDAVG, "aggregation.masks": "none"},
    "masks+local-steps": {"protection": "masks", "aggregation.masks": "ring"},
}
"""FedAvg, with the plan's local steps, or one epoch. Compared if they are asked for, or the plan has local steps."""
ONE_GRADIENT: dict[str, Any] = {
    f"training.{name}": TrainingPlan.model_fields[name].default
    for name in ("local_steps", "local_epochs", *(name for name, _ in ONLY_WITH_LOCAL_STEPS))
}
"""Stacks of this package that `compare` knows, as settings on top of the plan."""


def lanes() -> dict[str, dict[str, Any]]:
    """All stacks that `compare` knows: those, and every other protection by its name, without masks."""
    known = {settings.get("protection", RunPlan().protection) for settings in (*LANES.values(), *BY_NAME.values())}
    others = [name for name in protection_names() if name not in known]
    return {**LANES, **{name: {"protection": name, "aggregation.masks": "none"} for name in others}, **BY_NAME, **LOCAL}


def _settings_of(name: str, plan: RunPlan) -> dict[str, Any]:
    """What makes the plan that of a lane: one gradient a round, but where local steps are the point."""
    if name not in LOCAL:
        return {**ONE_GRADIENT, **lanes()[name]}
    return LOCAL[name] if plan.training.takes_local_steps else {**LOCAL[name], "training.local_epochs": 1}


@dataclass
class _Lane:
    """One training of a comparison, with its clock and its traffic."""

    name: str
    blueprint: Blueprint
    reordering: int = 0
    transcript: Transcript = field(default_factory=Transcript)
    seconds: list[float] = field(default_factory=list)
    curve: dict[int, float] = field(default_factory=dict)
    """The metric after so many rounds."""

    def __post_init__(self) -> None:
        self.training = self.blueprint.server()
        self.exchange = self.blueprint.local_exchange(self.transcript.record, reordering=self.reordering)

    def advance(self, round_index: int, participants: Sequence[str]) -> None:
        started = time.perf_counter()
        self.training.advance(round_index, participants, self.exchange)
        self.seconds.append(time.perf_counter() - started)

    def evaluate(self, num_rounds: int, federation: Federation) -> dict[str, float]:
        metrics = evaluate(self.training.predict, federation.test_data, federation.problem.objective)
        self.curve[num_rounds] = main_metric(metrics)[1]
        return metrics

    @property
    def local_work(self) -> str:
        """What a client does in a round, in words."""
        training = self.blueprint.plan.training
        if training.local_epochs:
            return f"{training.local_epochs} epoch{'s' if training.local_epochs > 1 else ''}"
        return f"{training.local_steps} steps" if training.local_steps else "1 gradient"


@checked
def compare(
    plan: RunPlan,
    protections: Sequence[str] | None = None,
    *,
    stacks: Mapping[str, Mapping[str, Any]] | None = None,
    num_controls: int = 1,
    data_dir: Path | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """One row per training: FedSGD, `num_controls` reordered ones, and the protections, all measured against FedSGD.

    `protections` are names of `lanes()`, by default all that make sense (masks need two clients a round) but those that
    take much longer (`BY_NAME`) and the baselines of the papers. `stacks`: further ones, by any name, as settings on
    top of the plan.
    """
    known = lanes()
    stacks = stacks or {}
    if taken := [name for name in stacks if name in known]:
        raise PlanError(f"{taken[0]!r} is a protection that is known here.", remedy="Give the stack another name.")
    if unknown := [name for name in protections or () if name not in known]:
        raise PlanError(
            f"There is no protection {unknown[0]!r} to compare.", remedy=f"Choose among {', '.join(known)}."
        )
    if num_controls < 0:
        raise PlanError(f"Expected a number of controls of at least 0, got {num_controls}.")
    federation = load_federation(plan, data_dir)
    if protections is None:
        left_out = {*BY_NAME, *(name for name in protection_names() if protection_named(name).baseline_of)}
        alone = plan.federation.num_participants(len(federation.members)) < 2
        masked = [name for name in known if known[name]["aggregation.masks"] != "none"]
        left_out |= {*(() if plan.training.takes_local_steps else LOCAL), *(masked if alone else ())}
        protections = [name for name in known if name not in left_out]
    trained = _make_lanes(plan, federation, num_controls, protections, stacks)
    names = federation.names
    for round_index in range(plan.training.rounds):
        participants = invited_clients(names, plan.federation.participation, plan.seed, round_index)
        for lane in trained:
            lane.advance(round_index, participants)
            if (round_index + 1) % plan.training.evaluate_every == 0:
                lane.evaluate(round_index + 1, federation)
        if on_round is not None:
            on_round(round_index + 1, plan.training.rounds)
    return [_row(plan, federation, lane, trained[0]) for lane in trained]


def _rounds_to(metric: float, curve: Mapping[int, float], *, higher_is_better: bool) -> int | None:
    """The first evaluated round that is at least as good."""
    good = (rounds for rounds, value in curve.items() if (value >= metric if higher_is_better else value <= metric))
    return min(good, default=None)


def _make_lanes(
    plan: RunPlan,
    federation: Federation,
    num_controls: int,
    protections: Sequence[str],
    stacks: Mapping[str, Mapping[str, Any]],
) -> list[_Lane]:
    """FedSGD first, then its reordered controls, then the protections."""
    one_gradient = reference_plan(plan.with_settings(ONE_GRADIENT))
    chosen = {**{name: _settings_of(name, plan) for name in protections}, **stacks}
    plans = [one_gradient, *(plan.with_settings(dict(settings)) for settings in chosen.values())]
    bare, *protected = make_blueprints(plans, federation)
    controls = [_Lane(f"{REORDERED}-{number}", bare, number) for number in range(1, num_controls + 1)]
    others = [_Lane(name, blueprint) for name, blueprint in zip(chosen, protected, strict=True)]
    return [_Lane(FEDAVG, bare), *controls, *others]


def _row(plan: RunPlan, federation: Federation, lane: _Lane, base: _Lane) -> dict[str, Any]:
    metrics = lane.evaluate(plan.training.rounds, federation)
    metric, value = main_metric(metrics)
    ratios = [mine / plain for mine, plain in zip(lane.seconds, base.seconds, strict=True)]
    traffic = lane.transcript.bytes_up + lane.transcript.bytes_down
    enough = _rounds_to(base.curve[plan.training.rounds], lane.curve, higher_is_better=metric != "test_mse")
    return {
        "dataset": plan.data.name,
        "model": plan.model.name,
        "model_options": dict(plan.model.options),
        "clients": len(federation.members),
        "loss": federation.problem.loss,
        "partitions": plan.perturbation.partitions,
        "rounds": plan.training.rounds,
        "protection": lane.name,
        "seed": plan.seed,
        "metric": metric,
        "metric_value": value,
        "metrics": metrics,
        "weights_relative_difference": relative_difference(lane.training.weights(), base.training.weights()),
        "seconds_ratio": statistics.median(ratios),
        "curve": sorted(lane.curve.items()),
        "local_work": lane.local_work,
        "megabytes": traffic / 1e6,
        "rounds_to_fedsgd": enough,
        "megabytes_to_fedsgd": None if enough is None else traffic / 1e6 * enough / plan.training.rounds,
        "bytes_ratio": traffic / (base.transcript.bytes_up + base.transcript.bytes_down),
    }
