"""Protections side by side with FedSGD: same seeds, same batches, in lockstep, timed alternately."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bilateral.arguments import checked
from bilateral.engine.federation import Federation, load_federation
from bilateral.engine.plan import RunPlan
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
"""Stacks of this package that `compare` knows, as settings on top of the plan."""


def lanes() -> dict[str, dict[str, Any]]:
    """All stacks that `compare` knows: those, and every other protection by its name, without masks."""
    known = {settings.get("protection", RunPlan().protection) for settings in (*LANES.values(), *BY_NAME.values())}
    others = [name for name in protection_names() if name not in known]
    return {**LANES, **{name: {"protection": name, "aggregation.masks": "none"} for name in others}, **BY_NAME}


@dataclass
class _Lane:
    """One training of a comparison, with its clock and its traffic."""

    name: str
    blueprint: Blueprint
    reordering: int = 0
    transcript: Transcript = field(default_factory=Transcript)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.training = self.blueprint.server()
        self.exchange = self.blueprint.local_exchange(self.transcript.record, reordering=self.reordering)

    def advance(self, round_index: int, participants: Sequence[str]) -> None:
        started = time.perf_counter()
        self.training.advance(round_index, participants, self.exchange)
        self.seconds.append(time.perf_counter() - started)


@checked
def compare(
    plan: RunPlan,
    protections: Sequence[str] | None = None,
    *,
    num_controls: int = 1,
    data_dir: Path | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """One row per training: FedSGD, `num_controls` reordered ones, and the protections, all measured against FedSGD.

    `protections` are names of `lanes()`, by default all that make sense (masks need two clients a round) but those that
    take much longer (`BY_NAME`) and the baselines of the papers.
    """
    known = lanes()
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
        protections = [name for name in known if name not in left_out and not (alone and name in masked)]
    trained = _make_lanes(plan, federation, num_controls, protections)
    names = federation.names
    for round_index in range(plan.training.rounds):
        participants = invited_clients(names, plan.federation.participation, plan.seed, round_index)
        for lane in trained:
            lane.advance(round_index, participants)
        if on_round is not None:
            on_round(round_index + 1, plan.training.rounds)
    return [_row(plan, federation, lane, trained[0]) for lane in trained]


def _make_lanes(plan: RunPlan, federation: Federation, num_controls: int, protections: Sequence[str]) -> list[_Lane]:
    """FedSGD first, then its reordered controls, then the protections."""
    known = lanes()
    plans = [reference_plan(plan), *(plan.with_settings(known[name]) for name in protections)]
    bare, *protected = make_blueprints(plans, federation)
    controls = [_Lane(f"{REORDERED}-{number}", bare, number) for number in range(1, num_controls + 1)]
    others = [_Lane(name, blueprint) for name, blueprint in zip(protections, protected, strict=True)]
    return [_Lane(FEDAVG, bare), *controls, *others]


def _row(plan: RunPlan, federation: Federation, lane: _Lane, base: _Lane) -> dict[str, Any]:
    metrics = evaluate(lane.training.predict, federation.test_data, federation.problem.objective)
    metric, value = main_metric(metrics)
    ratios = [mine / plain for mine, plain in zip(lane.seconds, base.seconds, strict=True)]
    traffic = lane.transcript.bytes_up + lane.transcript.bytes_down
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
        "bytes_ratio": traffic / (base.transcript.bytes_up + base.transcript.bytes_down),
    }
