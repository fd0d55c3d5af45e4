"""`bench accuracy-over-epsilon`: what each way of adding noise leaves of a model (P2 figure 3), all in one table.

FedSGD, P2's scheme as published and its two ablations share all settings. The sound mechanism has a clipping norm that
the others do not have, and a perturbation with fewer terms (`NARROW`). The norm was chosen by hand on these data, one
for a data set and all epsilons; that choice is not paid for in epsilon. The mechanism runs twice: around the perturbed
model, and around the plain one. The plain one against FedSGD shows what clipping and noise for all rounds together cost
(clipping also changes the training, and may help it); the perturbed one against the plain one, what perturbation adds.

Epsilon is not one quantity here. P2 states it for one round and under conditions; the sound mechanism for the whole
run. Every row says which, and what the whole run adds up to (`epsilon_total`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bilateral.engine.plan import RunPlan
from bilateral.engine.privacy import privacy_of
from bilateral.errors import NumericalRangeError
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.runs.rounds.in_process import run

NO_NOISE = "no claim"
ONE_ROUND = "one round, as P2 claims"
WHOLE_RUN = "whole run"
FEDAVG = "fedavg"
MP_CDP = "mp-cdp"
PUBLISHED = "published"


@dataclass(frozen=True)
class Workload:
    """A data set, how everybody trains on it, and what the two sound lanes set otherwise.

    `seeds` are of the table alone: settings were chosen with others (0 for both sets; 3 and 4 too for CIFAR-10).
    """

    settings: Mapping[str, Any]
    epsilons: tuple[float, ...]
    seeds: tuple[int, ...]
    sound_perturbed: Mapping[str, Any]
    sound_plain: Mapping[str, Any]

    @property
    def dataset(self) -> str:
        return str(self.settings["data.name"])


@dataclass(frozen=True)
class Lane:
    """One line of the figure. `epsilon_meaning` says what the plan's epsilon is the budget of."""

    mechanism: str
    perturbed: bool
    epsilon_meaning: str
    settings: Mapping[str, Any]

    def plan(self, workload: Workload, epsilon: float | None, seed: int) -> RunPlan:
        rounds = workload.settings["training.rounds"]
        budget = {} if epsilon is None else {"noise.epsilon": epsilon}
        only_the_end = {"training.evaluate_every": rounds}
        return RunPlan(seed=seed).with_settings({**workload.settings, **only_the_end, **self.settings, **budget})


BANK = Workload(
    settings={
        "data.name": "bank-marketing",
        "data.options": {"task": "classification", "with_duration": True},
        "model.name": "mlp-3",
        "model.options": {"width": 32},
        "federation.clients": 10,
        "training.rounds": 100,
        "training.batch_size": 64,
        "training.loss": "mse",
        "training.learning_rate": 0.1,
    },
    epsilons=(0.1, 0.3, 1.0, 8.0),
    seeds=(1, 2),
    sound_perturbed={"noise.clip": 1.0},
    sound_plain={"noise.clip": 3.0},
)
CIFAR = Workload(
    settings={
        "data.name": "cifar10",
        "data.options": {"num_train": 9000, "num_test": 3000},
        "model.name": "convnet",
        "federation.clients": 10,
        "training.rounds": 120,
        "training.batch_size": 32,
        "training.loss": "mse",
        "training.optimiser": "adam",
        "training.learning_rate": 0.005,
        "training.schedule": "constant",
    },
    epsilons=(1.0, 8.0),
    seeds=(5, 6, 7),
    sound_perturbed={"noise.clip": 0.3},
    sound_plain={"noise.clip": 0.3},
)
NARROW = {"perturbation.noise": "offset", "perturbation.scale_range": [0.5, 2.0]}
"""Fewer terms and a narrower range of scale factors: recovery multiplies the sound noise by less."""
QUICK_ROUNDS = 20


def measure_accuracy_over_epsilon(quick: bool, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """Bank Marketing and a part of CIFAR-10; `quick` takes Bank Marketing alone, one seed, few rounds."""
    if not quick:
        return measure([BANK, CIFAR], progress)
    settings = {**BANK.settings, "training.rounds": QUICK_ROUNDS}
    return measure([replace(BANK, settings=settings, epsilons=(0.3, 8.0), seeds=BANK.seeds[:1])], progress)


def measure(workloads: Sequence[Workload], progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """A row for each workload, lane and epsilon, over the workload's seeds."""
    cases = [(workload, lane, epsilon) for workload in workloads for lane, epsilon in cases_of(workload)]
    total = sum(len(workload.seeds) for workload, _, _ in cases)
    done = 0
    rows = []
    for workload, lane, epsilon in cases:
        outcomes = []
        for seed in workload.seeds:
            note = lane.mechanism if epsilon is None else f"{lane.mechanism} at epsilon {epsilon:g}"
            progress(done, total, f"{workload.dataset}: {note}, seed {seed}")
            outcomes.append(_train(lane.plan(workload, epsilon, seed)))
            done += 1
        rows.append(_row(workload, lane, epsilon, outcomes))
    progress(total, total, "done")
    return _with_differences(rows)


def cases_of(workload: Workload) -> list[tuple[Lane, float | None]]:
    """Every lane at every epsilon; FedSGD, which has none, once."""
    return [
        (lane, epsilon)
        for lane in lanes_of(workload)
        for epsilon in ((None,) if lane.mechanism == FEDAVG else workload.epsilons)
    ]


def lanes_of(workload: Workload) -> list[Lane]:
    """FedSGD; published and its ablations, with FedSGD's settings; sound, perturbed and plain."""
    sound = {"noise.mechanism": "sound"}
    return [
        Lane(FEDAVG, False, NO_NOISE, {"protection": "fedavg", "aggregation.masks": "none"}),
        *[Lane(name, True, ONE_ROUND, {"noise.mechanism": name}) for name in (PUBLISHED, MP_CDP, "mp-dp-naive")],
        Lane("sound", True, WHOLE_RUN, {**sound, **NARROW, **workload.sound_perturbed}),
        Lane("sound", False, WHOLE_RUN, {**sound, "protection": "fedavg", **workload.sound_plain}),
    ]


@dataclass(frozen=True)
class _Outcome:
    """What a run spent, and how good its model is; None if noise blew the model up to NaN."""

    privacy: PrivacyReport | None
    metrics: Mapping[str, float] | None


def _train(plan: RunPlan) -> _Outcome:
    """A run that diverges is a result of this table, not a reason to lose the others."""
    try:
        result = run(plan, save=False, reference=False)
    except NumericalRangeError:
        return _Outcome(privacy_of(plan), None)  # builds the plan again: raises if the plan itself is out of range
    return _Outcome(result.privacy, result.metrics)


def _row(workload: Workload, lane: Lane, epsilon: float | None, outcomes: Sequence[_Outcome]) -> dict[str, Any]:
    privacy = outcomes[0].privacy
    spent = privacy.rows[0] if privacy is not None else None  # the same for every seed: it depends on sizes alone
    finished = [outcome.metrics for outcome in outcomes if outcome.metrics is not None]
    return {
        "dataset": workload.dataset,
        "mechanism": lane.mechanism,
        "perturbed": lane.perturbed,
        "claim": privacy.status if privacy is not None else "none",
        "epsilon": epsilon,
        "epsilon_meaning": lane.epsilon_meaning,
        "epsilon_total": spent.epsilon if spent is not None else None,
        "delta": spent.delta if spent is not None else None,
        "seeds": len(outcomes),
        "diverged": len(outcomes) - len(finished),
        **_mean_and_spread("accuracy", [metrics["test_accuracy"] for metrics in finished]),
        **_mean_and_spread("balanced_accuracy", [metrics["test_balanced_accuracy"] for metrics in finished]),
    }


def _mean_and_spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Over the runs that ended with a model; the spread is from the lowest to the highest."""
    if not values:
        return {name: None, f"{name}_spread": None}
    return {name: statistics.mean(values), f"{name}_spread": max(values) - min(values)}


def _with_differences(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their distance to FedSGD and to MP-CDP at the same epsilon, in points of accuracy.

    To MP-CDP for the published scheme alone: the others do not mean the same epsilon.
    """
    of_fedavg = {row["dataset"]: row["accuracy"] for row in rows if row["mechanism"] == FEDAVG}
    of_mp_cdp = {(row["dataset"], row["epsilon"]): row["accuracy"] for row in rows if row["mechanism"] == MP_CDP}
    return [
        {
            **row,
            "difference_to_fedavg_points": _points(row["accuracy"], of_fedavg[row["dataset"]]),
            "difference_to_mp_cdp_points": _points(row["accuracy"], of_mp_cdp[row["dataset"], row["epsilon"]])
            if row["mechanism"] == PUBLISHED
            else None,
        }
        for row in rows
    ]


def _points(accuracy: float | None, other: float | None) -> float | None:
    return None if accuracy is None or other is None else 100 * (accuracy - other)
