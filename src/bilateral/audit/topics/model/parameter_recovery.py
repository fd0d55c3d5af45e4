"""Ledger lines 7, 9 and 15: what of the parameters a client gets (their values, line 15, in `parameter_values`).

| what                        | a trial  | negative control                                                          |
|-----------------------------|----------|---------------------------------------------------------------------------|
| the model up to its scaling | a round  | the same network with other initial weights                               |
| path products               | a round  | the same                                                                  |
| neurons followed            | a round  | the same, towards that other network: what matching gives by chance       |
| factors of known parameters | a round  | a client that takes other weights for the true ones                       |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from bilateral.audit.evidence import Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line
from bilateral.audit.recording import Recording
from bilateral.audit.scores import Metric
from bilateral.audit.topics.model.attacks.parameter_symmetry import canonical, canonical_factors, follow, unsupported
from bilateral.audit.topics.model.attacks.path_products import path_products, without_path_products
from bilateral.audit.topics.model.parameter_trials import (
    Trial,
    Undefended,
    error_of,
    make_trial,
    other_network,
    saw,
)
from bilateral.audit.topics.model.parameter_values import CURVE_ROUNDS, as_they_come, from_rounds, from_sizes
from bilateral.audit.topics.model.trained_runs import NUM_TRIALS, recorded, trained_plan
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee

CANONICAL_ERROR = Metric("relative error up to scaling", "low", digits=2)
PATH_ERROR = Metric("relative error of the path products", "low", digits=2)
FOLLOWED = Metric("neurons followed to the next round", "high")
FACTOR_ERROR = Metric("relative error of the scale factors", "low")


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_line(guarantee, 15):
        return "clients are sent the parameters as they are"
    if plan.traits.expands_network:
        return "P2's clients have another network, with transitional layers and factors of another distribution"
    return ""


def _run(context: Context) -> Sequence[Evidence]:
    plain = Undefended.of(context)
    recording = recorded(context, trained_plan(context), "with protection")
    if unsupported(recording.graph):
        return ()
    context.on_progress(0.5, "taking the noise off the head")
    trials = [make_trial(recording, kept) for kept in recording.server_rounds if saw(recording, kept)]
    late = trials[-NUM_TRIALS:]
    rows = [as_they_come(recording, plain, trials[-1])]
    context.on_progress(0.6, "factors from sizes")
    rows += [from_sizes(recording, plain, trials[0], "early"), from_sizes(recording, plain, trials[-1], "late")]
    context.on_progress(0.7, "factors from rounds")
    rows += from_rounds(recording, plain, trials[-max(CURVE_ROUNDS) :])
    context.on_progress(0.9, "neurons from round to round")
    rows += [_up_to_scaling(recording, plain, late), *_path_products(recording, plain, late)]
    rows.append(_following(recording, plain, trials[-NUM_TRIALS - 1 :]))
    rows.append(_known_parameters(recording, plain, trials))
    context.on_progress(1.0, "done")
    return rows


def _up_to_scaling(recording: Recording, plain: Undefended, trials: Sequence[Trial]) -> Evidence:
    graph = recording.graph

    def error(received: Tensor, truth: Tensor) -> float:
        return error_of(canonical(graph, received), canonical(graph, truth))

    return _evidence(
        7,
        "the model up to the scaling of neurons",
        "one model",
        [error(trial.received, trial.truth) for trial in trials],
        [error(*both) for both in zip(plain.received, plain.truth, strict=True)],
        [error(other_network(recording, trial)[trial.secrets.source], trial.truth) for trial in trials],
        "the network with other initial weights",
        Gate(CANONICAL_ERROR, 1e-3),
        remark=without_path_products(graph),
    )


def _path_products(recording: Recording, plain: Undefended, trials: Sequence[Trial]) -> list[Evidence]:
    """Computed from the received network as it stands: neither factors nor the order of neurons need be known."""
    graph = recording.graph
    if without_path_products(graph):
        return []

    def error(received: Tensor, truth: Tensor) -> float:
        return error_of(path_products(graph, received), path_products(graph, truth))

    found = _evidence(
        7,
        "path products: inputs to outputs, whatever the scaling and order",
        "one model",
        [error(trial.received, trial.kept.parameters) for trial in trials],
        [error(*both) for both in zip(plain.received, plain.truth, strict=True)],
        [error(other_network(recording, trial), trial.kept.parameters) for trial in trials],
        "the network with other initial weights",
        Gate(PATH_ERROR, 1e-3),
    )
    return [found]


def _following(recording: Recording, plain: Undefended, trials: Sequence[Trial]) -> Evidence:
    graph = recording.graph
    movable = torch.cat([torch.zeros(0, dtype=torch.int64), *graph.cells.free_cells])
    pairs = list(pairwise(trials))

    def share(found: Tensor, before: Trial, after: Trial) -> float:
        right = before.secrets.exchange[found] == after.secrets.exchange
        return float(right[movable].double().mean()) if len(movable) else 1.0

    followed = [share(follow(graph, a.received, b.received), a, b) for a, b in pairs]
    places = torch.arange(graph.cells.num_neurons)
    in_the_clear = [
        float((follow(graph, a, b) == places)[movable].double().mean()) if len(movable) else 1.0
        for a, b in pairwise(plain.received)
    ]
    by_chance = [
        share(follow(graph, a.received, other_network(recording, b)[b.secrets.source]), a, b) for a, b in pairs
    ]
    return _evidence(
        7,
        "neurons followed by the direction of their weights",
        "two models in a row",
        followed,
        in_the_clear,
        by_chance,
        "matching with a network of other initial weights",
        Gate(FOLLOWED, 0.9),
    )


def _known_parameters(recording: Recording, plain: Undefended, trials: Sequence[Trial]) -> Evidence:
    """A client that knows the true parameters of a round (in the first: the initial weights) reads its factors."""
    graph = recording.graph
    trials = trials[:NUM_TRIALS]

    def read(known: Tensor, received: Tensor) -> Tensor:
        aligned = known[graph.source(follow(graph, known, received))]
        return graph.ratio(canonical_factors(graph, received) / canonical_factors(graph, aligned))

    def error(known: Tensor, trial: Trial) -> float:
        return error_of(read(known, trial.received), trial.secrets.ratio[trial.secrets.source])

    no_factors = torch.ones(graph.num_parameters, dtype=torch.float64)
    return _evidence(
        9,
        "factors of parameters whose true values it knows",
        "one model, and the true parameters (as initial weights are to who knows the seed)",
        [error(trial.kept.parameters.double(), trial) for trial in trials],
        [error_of(read(known, sent), no_factors) for known, sent in zip(plain.truth, plain.received, strict=True)],
        [error(other_network(recording, trial), trial) for trial in trials],
        "a client that takes other weights for the true ones",
        Gate(FACTOR_ERROR, 1e-2),
    )


def _evidence(
    line: int,
    attack: str,
    seen: str,
    target: Sequence[float],
    positive: Sequence[float],
    negative: Sequence[float],
    negative_is: str,
    gate: Gate,
    remark: str = "",
) -> Evidence:
    return with_controls(
        line,
        "curious client",
        attack,
        seen,
        gate,
        target=("the perturbed models of rounds", target),
        positive=("FedSGD, whose clients are sent the parameters", positive),
        negative=(negative_is, negative),
        remark=remark,
    )


EXPERIMENT = Experiment(
    "parameter-recovery", "values of the parameters, by a client", (7, 9, 15), _applies, _run, weight=20.0
)
