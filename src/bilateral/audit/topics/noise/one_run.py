"""Epsilon from one run: many canaries at once, each in it or not by a coin, and somebody who guesses the coins.

`distinguishing_game` plays two worlds of one unit thousands of times, which no run does; here everything happens in one
run of the plan's rounds (for P2's noise and its ablations in one round, as P2 counts): m canaries, m fair coins, one
draw of the real clients' noise on m coordinates. A canary has a coordinate to itself, where it moves the sum by all
that the claim allows a unit; other data an attacker takes off, which differential privacy lets it know. Guesses and
abstentions give a lower bound on epsilon at 99 % (`audit/one_run_bound`); the claim is broken if that is above it.

Positive control: the same run with a tenth of the noise. Negative control: Gaussian noise that has exactly the claimed
epsilon and delta. The curve has half the noise and hardly any (a millionth) too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from bilateral.audit.epsilon_bound import gaussian_separation
from bilateral.audit.evidence import Condition, Curve, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment
from bilateral.audit.one_run_bound import OneRunBound, largest_one_run_bound, one_run_epsilon
from bilateral.audit.scores import EPSILON_BOUND, Scores
from bilateral.audit.topics.noise import neighbouring_worlds as worlds
from bilateral.audit.topics.noise.attacks.distinguishing import gaussian_log_ratio
from bilateral.audit.topics.noise.noise_game import Game, Outcome
from bilateral.audit.topics.noise.published_games import (
    one_run_of_central_noise,
    one_run_of_local_noise,
    one_run_of_published_noise,
)
from bilateral.audit.topics.noise.sound_games import one_run_of_sound_noise
from bilateral.engine.plan import RunPlan
from bilateral.protections.groundwork import Groundwork
from bilateral.protocols.guarantee import Guarantee, Subject

TENTH: Final = 0.1
HARDLY_ANY: Final = 1e-6
GAMES: Final[dict[str, Callable[[Context, Groundwork], list[Game]]]] = {
    "sound": one_run_of_sound_noise,
    "published": one_run_of_published_noise,
    "mp-dp-naive": one_run_of_local_noise,
    "mp-cdp": one_run_of_central_noise,
}


def play_once(game: Game, subject: Subject, context: Context) -> Evidence:
    """The evidence of one run, and of its controls with the same coins."""
    delta, draws = context.plan.noise.delta, context.randomness("one run", game.attack)
    target, tenth = game.play(1.0), game.play(TENTH)
    coins = draws.child("coins").uniform(len(target[0])) < 0.5

    def bound_of(outcome: Outcome) -> OneRunBound:
        return one_run_epsilon(seen_scores(outcome, coins).numpy(), coins.numpy(), delta)

    bounds = {1.0: bound_of(target), TENTH: bound_of(tenth)}
    exact = bound_of(_exact(game.bound, delta, draws.child("exact").normal(1, len(coins))))
    curves: tuple[Curve, ...] = ()
    if game.curve:
        bounds |= {fraction: bound_of(game.play(fraction)) for fraction in (0.5, HARDLY_ANY)}
        shown = tuple((x, found.epsilon, found.epsilon, found.epsilon) for x, found in sorted(bounds.items()))
        claimed = tuple((x, game.bound, game.bound, game.bound) for x in (0.0, 1.0))
        title = f"{game.attack}: what {len(coins)} canaries show"
        curves = (Curve(title, "fraction of the noise", EPSILON_BOUND.name, {"shown": shown, "claimed": claimed}),)
    said = f"{bounds[1.0]}; {len(coins)} canaries show at most {largest_one_run_bound(len(coins), delta):.2f}"
    return with_controls(
        subject,
        game.adversary,
        game.attack,
        game.seen,
        Gate(EPSILON_BOUND, game.bound),
        target=_condition(game.unit, bounds[1.0]),
        positive=_condition("the same with a tenth of the noise", bounds[TENTH]),
        negative=_condition("Gaussian noise of exactly the claimed epsilon and delta", exact),
        adaptive=game.adaptive,
        paired=False,
        bound=game.bound,
        remark="; ".join(filter(None, [game.remark, said])),
        curves=curves,
    )


def seen_scores(outcome: Outcome, coins: Tensor) -> Tensor:
    """One run: each canary's score is that of the one world that it is in."""
    inside, outside = outcome
    return torch.where(coins, inside, outside)


def _exact(epsilon: float, delta: float, noise: Tensor) -> Outcome:
    separation, one = torch.tensor([gaussian_separation(epsilon, delta)], dtype=torch.float64), torch.ones(1).double()
    inside, outside = (gaussian_log_ratio(noise + moved, separation, one) for moved in (separation[:, None], 0.0))
    return inside, outside


def _condition(what: str, found: OneRunBound) -> Condition:
    return Condition(what, (Scores(EPSILON_BOUND, (found.epsilon,), (found.epsilon, math.inf)),))


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    if not plan.traits.adds_noise:
        return "the plan adds no noise, and claims no epsilon"
    return "" if plan.noise.mechanism in GAMES else "there is no game for noise of this kind"


def _run(context: Context) -> Sequence[Evidence]:
    around, traits = worlds.groundwork_of(context), context.plan.traits
    subject: Subject = "differential privacy" if traits.spends_budget else "published differential privacy"
    found: list[Evidence] = []
    for game in GAMES[context.plan.noise.mechanism](context, around):
        evidence = play_once(game, subject, context)
        found.append(evidence)
        if traits.noise_line is not None:
            found.append(replace(evidence, tests=traits.noise_line, curves=()))
    context.on_progress(1.0, "one run seen")
    return found


EXPERIMENT = Experiment(
    "one-run-epsilon",
    "Differential privacy: many canaries in one run, and the epsilon that right guesses refute",
    ("differential privacy", "published differential privacy", 4),
    _applies,
    _run,
    weight=20.0,
)
