"""Ledger line 20: which classes a site keeps back, by a server that has its models measured where sites tell metrics.

A trial is a class and a site. In each round of a real run the server sends a model of its own that answers one class;
what comes back besides the (masked) upload is that site's report of it. The truth is counted in the samples.

| target    | positive control       | negative control                                                           |
|-----------|------------------------|----------------------------------------------------------------------------|
| this plan | the same, bare uploads | the same models where metrics stay: the class's share in the server's data |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line, undefended
from bilateral.audit.ledger import METRICS_LINE
from bilateral.audit.recording import record
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.threat import server_view
from bilateral.audit.topics.dishonest.attacks.told_metrics import answering, read_share
from bilateral.engine.federation import Federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import analyse, initial_model
from bilateral.errors import NotAuditableError
from bilateral.protocols.guarantee import Guarantee

COUNTED: Final = Metric("classes counted exactly", "high", is_rate=True, digits=2)
PRESENCE: Final = Metric("classes rightly said to be there or not", "high", is_rate=True, digits=2)
SHARE_ERROR: Final = Metric("error of a class's share", "low")
MOST_CLASSES: Final = 10
_RUN: Final = {
    "training.evaluate_every": 1,
    "training.class_weights": [],
    "training.augment": False,
    "federation.participation": 1.0,
}
"""Every model is measured, by all. What is trained on it decides nothing here: the next round has another model."""


def _run(context: Context) -> Sequence[Evidence]:
    stays, bare = {"evaluation.site_metrics": "stay"}, undefended(context.plan)
    plans = {
        "sites of this plan": context.plan,
        "the same, where uploads are bare": bare,
        "the same models, where metrics stay at the site": context.plan.with_settings(stays),
    }
    conditions = []
    for number, (what, plan) in enumerate(plans.items()):
        context.on_progress(number / len(plans), what)
        conditions.append(_condition(context, what, plan))
    target, positive, negative = conditions
    context.on_progress(1.0, "told metrics: done")
    return [
        with_controls(
            METRICS_LINE,
            "dishonest server",
            "models that answer one class",
            "each site's report of a model that the server chose",
            Gate(COUNTED, 0.9),
            target=target,
            positive=positive,
            negative=negative,
            remark="a trial is a class and a site; where metrics stay it guesses the share in its own test data",
        )
    ]


def _condition(context: Context, what: str, plan: RunPlan) -> Condition:
    counted: list[float] = []
    presence: list[float] = []
    errors: list[float] = []
    for number in range(context.effort.seeds):
        seeded = plan.with_settings({**_RUN, "seed": plan.seed + number})
        for found, true, size in _trials(context, seeded):
            counted.append(float(abs(found - true) * size < 0.5))
            presence.append(float((found * size >= 0.5) == (true > 0)))
            errors.append(abs(found - true))
    scores = (Scores(COUNTED, tuple(counted)), Scores(PRESENCE, tuple(presence)), Scores(SHARE_ERROR, tuple(errors)))
    return Condition(what, scores)


def _trials(context: Context, plan: RunPlan) -> list[tuple[float, float, int]]:
    """Of each class and site: the share that the server reads, the true one, and the number of samples there."""
    federation = context.federation(plan)
    problem = federation.problem
    if problem.objective.task != "classification":
        raise NotAuditableError(f"The data are for {problem.objective.task}: no model answers one class of them.")
    classes = min(problem.num_outputs, MOST_CLASSES)
    plan = plan.with_settings({"training.rounds": classes})
    network = initial_model(plan, problem, network=federation.network)
    graph = analyse(network, problem)
    if graph.head_bias is None:
        raise NotAuditableError("The network's head has no bias: this attack has no model that answers one class.")
    crafted = [answering(network, graph.head, answer) for answer in range(classes)]
    recording = record(plan, federation, before_round=_sending(crafted))
    view, guesses = server_view(recording), _shares(recording.test.targets, problem.num_outputs)
    found = []
    for answer in range(classes):
        for name, true, size in _truth(federation, answer):
            found.append((read_share(view, name, answer, float(guesses[answer])), true, size))
    return found


def _sending(crafted: Sequence[nn.Module]) -> Callable[[int, nn.Module], None]:
    def choose(round_index: int, model: nn.Module) -> None:
        model.load_state_dict(crafted[round_index].state_dict())

    return choose


def _truth(federation: Federation, answer: int) -> list[tuple[str, float, int]]:
    found = []
    for name, share in federation.shares.items():
        held = share.held
        assert held is not None, "a plan that shares metrics keeps samples back"
        found.append((name, float(_shares(held.targets, federation.problem.num_outputs)[answer]), len(held)))
    return found


def _shares(targets: Tensor, num_outputs: int) -> Tensor:
    return torch.bincount(targets, minlength=num_outputs).double() / len(targets)


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "" if has_line(guarantee, METRICS_LINE) else "what sites measure stays there"


EXPERIMENT: Final = Experiment(
    "told-metrics",
    "Classes of the samples that a site keeps back, from its metrics of models that a server chose",
    (METRICS_LINE,),
    _applies,
    _run,
    weight=15.0,
)
