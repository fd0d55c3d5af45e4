"""Ledger line 15: the values of the parameters, scored as relative errors and by the factors that hide them.

| metric                   | a trial                     | negative control: who knows the range of factors alone     |
|--------------------------|-----------------------------|------------------------------------------------------------|
| relative parameter error | a part (`parameter_parts`)  | the best multiple of what it was sent                      |
| octaves of a factor      | a factor                    | the middle of the range                                    |

Who knows a factor to an octave knows its weights to a factor of 2. The true model under other factors is no negative
control: any guess of moderate size beats it.
Guesses are scored in the order in which the client received the neurons: their exchange alone costs it nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bilateral.audit.evidence import Condition, Curve, Evidence, Gate, with_controls
from bilateral.audit.recording import Recording
from bilateral.audit.scores import PARAMETER_ERROR, Metric, Scores
from bilateral.audit.topics.model.attacks.parameter_symmetry import canonical_factors
from bilateral.audit.topics.model.attacks.scale_from_size import FactorPrior, factors_from_rounds, guess_scale
from bilateral.audit.topics.model.parameter_parts import guess_by_range, part_errors
from bilateral.audit.topics.model.parameter_trials import Trial, Undefended, error_of

FACTOR_OCTAVES = Metric("error of a factor, octaves", "low", digits=2)
CURVE_ROUNDS = (1, 2, 5, 10, 20)


def as_they_come(recording: Recording, plain: Undefended, trial: Trial) -> Evidence:
    """The naive client: every factor is taken for 1."""
    ones = torch.ones(recording.graph.num_scale_classes, dtype=torch.float64)
    return _values(recording, plain, trial, ones, "parameters as they come", "one model", adaptive=False)


def from_sizes(recording: Recording, plain: Undefended, trial: Trial, when: str) -> Evidence:
    """One model, by what everybody knows of initial weights."""
    graph = recording.graph
    guess = guess_scale(graph, trial.received, FactorPrior.of_range(graph, recording.plan.perturbation.scale_range))
    seen = f"one model, {when} in training; how networks are initialised"
    return _values(recording, plain, trial, guess.scale_factors, f"factors from the sizes of weights, {when}", seen)


def from_rounds(recording: Recording, plain: Undefended, trials: Sequence[Trial]) -> list[Evidence]:
    """The last model, with the neurons of the rounds before it; without and with knowledge of initial weights."""
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
    attack, seen = f"factors from following neurons over {most} rounds", f"the models of the last {most} rounds"
    curve = Curve(title, "rounds", FACTOR_OCTAVES.name, lines)
    return [
        _values(recording, plain, last, alone[most], attack, f"{seen}; the range of factors", curves=(curve,)),
        _values(recording, plain, last, both[most], f"{attack}, and sizes", f"{seen}; how networks are initialised"),
    ]


def _values(
    recording: Recording,
    plain: Undefended,
    trial: Trial,
    factors: Tensor,
    attack: str,
    seen: str,
    *,
    adaptive: bool = True,
    curves: tuple[Curve, ...] = (),
) -> Evidence:
    """Trials share no factor, and the server draws each by itself: they are independent whatever the guesses share."""
    graph, scale_range = recording.graph, recording.plan.perturbation.scale_range
    guess = trial.received / graph.ratio(factors)
    by_range = guess_by_range(graph, trial.received, scale_range)
    middle = FactorPrior.of_range(graph, scale_range).factors()
    size, true_size = (canonical_factors(graph, one[-1]).log2() for one in (plain.received, plain.truth))
    sent = Scores(FACTOR_OCTAVES, tuple((size - true_size).abs()[1:].tolist()))

    return with_controls(
        15,
        "curious client",
        attack,
        seen,
        (Gate(PARAMETER_ERROR, 0.2), Gate(FACTOR_OCTAVES, 0.25)),
        target=Condition(
            f"the model of round {trial.kept.round_index + 1}",
            (part_errors(graph, guess, trial.truth), _octaves(recording, trial, factors)),
        ),
        positive=Condition(
            "FedSGD, whose clients are sent the parameters",
            (part_errors(graph, plain.received[-1], plain.truth[-1]), sent),
        ),
        negative=Condition(
            "who knows the range of factors alone",
            (part_errors(graph, by_range, trial.truth), _octaves(recording, trial, middle)),
        ),
        adaptive=adaptive,
        remark=f"all parameters together: relative error {error_of(guess, trial.truth):.3f}",
        curves=curves,
    )


def _octaves(recording: Recording, trial: Trial, factors: Tensor) -> Scores:
    """True factors are those of the places of the received network: what makes its weights of the true ones."""
    graph = recording.graph
    true_factors = canonical_factors(graph, trial.received) / canonical_factors(graph, trial.truth)
    errors = (factors.log2() - true_factors.log2()).abs()[1:]
    return Scores(FACTOR_OCTAVES, tuple(errors.tolist()))
