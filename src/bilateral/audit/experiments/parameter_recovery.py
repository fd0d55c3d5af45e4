"""Ledger lines 7, 9 and 15: what of the parameters a client gets.

Values are scored by the factors that hide them: who knows a factor to an octave knows its weights to a factor of 2.

| what                        | a trial  | negative control                                                          |
|-----------------------------|----------|---------------------------------------------------------------------------|
| values of the parameters    | a factor | the middle of the range: the best guess of who knows the range alone      |
| the model up to its scaling | a round  | the same network with other initial weights                               |
| neurons followed            | a round  | the same, towards that other network: what matching gives by chance       |
| factors of known parameters | a round  | a client that takes other weights for the true ones                       |

A *decoy* (the true model under other factors) says what a relative error of parameters means; it is no negative
control, since a guess of moderate size beats it without knowing anything.
Guesses are scored in the order in which the client received the neurons: their exchange alone costs it nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from bilateral.audit.attacks.parameter_symmetry import canonical, canonical_factors, follow, unsupported
from bilateral.audit.attacks.scale_from_size import FactorPrior, factors_from_rounds, guess_scale
from bilateral.audit.evidence import Condition, Curve, Evidence, Gate
from bilateral.audit.experiment import Context, Experiment, has_line
from bilateral.audit.experiments.parameter_trials import (
    Trial,
    Undefended,
    error_of,
    make_trial,
    other_network,
    saw,
)
from bilateral.audit.experiments.trained_runs import NUM_TRIALS, recorded, trained_plan
from bilateral.audit.recording import Recording
from bilateral.audit.scores import Metric, Scores
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee

CANONICAL_ERROR = Metric("relative error up to scaling", "low", digits=2)
FOLLOWED = Metric("neurons followed to the next round", "high")
FACTOR_OCTAVES = Metric("error of a factor, octaves", "low", digits=2)
FACTOR_ERROR = Metric("relative error of the scale factors", "low")
CURVE_ROUNDS = (1, 2, 5, 10, 20)


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_line(guarantee, 15):
        return "clients are sent the parameters as they are"
    if plan.noise.mechanism == "published":
        return "P2's clients have another network, with transitional layers and factors of another distribution"
    return ""


def _run(context: Context) -> Sequence[Evidence]:
    plain = Undefended.of(context)
    recording = recorded(context, trained_plan(context), "with protection")
    if unsupported(recording.graph):
        return ()
    context.on_progress(0.5, "taking the noise off the head")
    trials = [make_trial(context, recording, kept) for kept in recording.server_rounds if saw(recording, kept)]
    late = trials[-NUM_TRIALS:]
    rows = [_naive(recording, plain, trials[-1])]
    context.on_progress(0.6, "factors from sizes")
    rows += [_from_sizes(recording, plain, trials[0], "early"), _from_sizes(recording, plain, trials[-1], "late")]
    context.on_progress(0.7, "factors from rounds")
    rows.append(_from_rounds(recording, plain, trials[-max(CURVE_ROUNDS) :]))
    context.on_progress(0.9, "neurons from round to round")
    rows += [_up_to_scaling(recording, plain, late), _following(recording, plain, trials[-NUM_TRIALS - 1 :])]
    rows.append(_known_parameters(recording, plain, trials))
    context.on_progress(1.0, "done")
    return rows


def _naive(recording: Recording, plain: Undefended, trial: Trial) -> Evidence:
    """Parameters as they come: every factor is taken for 1."""
    ones = torch.ones(recording.graph.num_scale_classes, dtype=torch.float64)
    remark = _errors(recording, trial, ones)
    return _values(recording, plain, trial, ones, "parameters as they come", "one model", remark, adaptive=False)


def _from_sizes(recording: Recording, plain: Undefended, trial: Trial, when: str) -> Evidence:
    graph = recording.graph
    guess = guess_scale(graph, trial.received, FactorPrior.of_range(graph, recording.plan.perturbation.scale_range))
    seen = f"one model, {when} in training; how networks are initialised"
    remark = _errors(recording, trial, guess.scale_factors)
    return _values(
        recording, plain, trial, guess.scale_factors, f"factors from the sizes of weights, {when}", seen, remark
    )


def _from_rounds(recording: Recording, plain: Undefended, trials: Sequence[Trial]) -> Evidence:
    """The last model, with the neurons of the rounds before it."""
    graph, scale_range, last = recording.graph, recording.plan.perturbation.scale_range, trials[-1]
    counts = sorted({min(count, len(trials)) for count in CURVE_ROUNDS})
    priors = {n: factors_from_rounds(graph, [t.received for t in trials[-n:]], scale_range) for n in counts}

    def line(factors: dict[int, Tensor]) -> tuple[tuple[float, float, float, float], ...]:
        scored = {n: _octaves(recording, last, found) for n, found in factors.items()}
        return tuple((n, s.mean, *s.interval) for n, s in scored.items())

    alone = {n: prior.factors() for n, prior in priors.items()}
    both = {n: guess_scale(graph, last.received, prior).scale_factors for n, prior in priors.items()}
    lines = {"rounds alone": line(alone), "rounds and sizes": line(both)}
    title = "Factors of the last round, over the rounds that a client compares"
    most = counts[-1]
    remark = f"no knowledge of initial weights; {_errors(recording, last, alone[most])}; with sizes as well: " + (
        _errors(recording, last, both[most])
    )
    return _values(
        recording,
        plain,
        last,
        alone[most],
        f"factors from following neurons over {most} rounds",
        f"the models of the last {most} rounds; the range of factors",
        remark,
        curves=(Curve(title, "rounds", FACTOR_OCTAVES.name, lines),),
    )


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
    )


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


def _values(
    recording: Recording,
    plain: Undefended,
    trial: Trial,
    factors: Tensor,
    attack: str,
    seen: str,
    remark: str,
    *,
    adaptive: bool = True,
    curves: tuple[Curve, ...] = (),
) -> Evidence:
    """Trials are factors: the server draws each by itself, so they are independent whatever the guesses share."""
    public = FactorPrior.of_range(recording.graph, recording.plan.perturbation.scale_range).factors()
    size, true_size = (canonical_factors(recording.graph, one[-1]).log2() for one in (plain.received, plain.truth))
    sent = Scores(FACTOR_OCTAVES, tuple((size - true_size).abs()[1:].tolist()))
    return Evidence(
        15,
        "curious client",
        attack,
        adaptive,
        seen,
        Condition(f"the model of round {trial.kept.round_index + 1}", (_octaves(recording, trial, factors),)),
        Condition("FedAvg, whose clients are sent the parameters", (sent,)),
        Condition("the middle of the range, for every factor", (_octaves(recording, trial, public),)),
        (Gate(FACTOR_OCTAVES, 0.25),),
        paired=True,
        remark=remark,
        curves=curves,
    )


def _true_factors(recording: Recording, trial: Trial) -> Tensor:
    """Of the places of the received network: what makes its weights of the true ones."""
    return canonical_factors(recording.graph, trial.received) / canonical_factors(recording.graph, trial.truth)


def _octaves(recording: Recording, trial: Trial, factors: Tensor) -> Scores:
    errors = (factors.log2() - _true_factors(recording, trial).log2()).abs()[1:]
    return Scores(FACTOR_OCTAVES, tuple(errors.tolist()))


def _errors(recording: Recording, trial: Trial, factors: Tensor) -> str:
    """The guess as relative errors of the parameters, in all and layer by layer, beside a decoy's."""
    guess = trial.received / recording.graph.ratio(factors)
    layers = [p for p in recording.graph.parameters if p.binding is not None and p.binding.inputs is not None]
    by_layer = [f"{p.name} {error_of(guess[p.slice], trial.truth[p.slice]):.2f}" for p in layers]
    return (
        f"relative parameter error {error_of(guess, trial.truth):.3f} ({', '.join(by_layer)}); "
        f"of another member of the family {error_of(trial.decoy, trial.truth):.3f}"
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
) -> Evidence:
    def condition(what: str, values: Sequence[float]) -> Condition:
        return Condition(what, (Scores(gate.metric, tuple(values)),))

    return Evidence(
        line,
        "curious client",
        attack,
        True,
        seen,
        condition("the perturbed models of rounds", target),
        condition("FedAvg, whose clients are sent the parameters", positive),
        condition(negative_is, negative),
        (gate,),
        paired=True,
    )


EXPERIMENT = Experiment("parameter-recovery", "values of the parameters, by a client", _applies, _run, weight=20.0)
