"""A game between two neighbouring worlds: played against the plan's noise, against its controls, and written down."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.audit.epsilon_bound import epsilon_lower_bound, gaussian_separation, largest_bound
from bilateral.audit.evidence import Condition, Curve, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context
from bilateral.audit.scores import EPSILON_BOUND, Scores
from bilateral.audit.topics.noise.attacks.distinguishing import gaussian_log_ratio
from bilateral.audit.views import AdversaryName
from bilateral.protocols.guarantee import Subject

QUARTER = 0.25
Outcome = tuple[Tensor, Tensor]
Play = Callable[[float], Outcome]
"""Plays the game with this fraction of the plan's noise: scores with the unit, and without it."""


@dataclass(frozen=True)
class Game:
    """One attack on one claim, ready to be played."""

    attack: str
    adaptive: bool
    adversary: AdversaryName
    seen: str
    unit: str
    """What makes the difference between the worlds, in words."""
    bound: float
    play: Play
    remark: str = ""
    curve: bool = False


def play_out(game: Game, subject: Subject, context: Context) -> Evidence:
    """The evidence of a game. Negative control: the best test against a Gaussian that just meets the claim."""
    delta = context.plan.noise.delta
    target, quarter = game.play(1.0), game.play(QUARTER)
    count = len(target[0])
    separation = torch.tensor([gaussian_separation(game.bound, delta)], dtype=torch.float64)
    noise = context.randomness("exact", game.attack).normal(1, count)
    one = torch.ones(1, dtype=torch.float64)
    exact = tuple(gaussian_log_ratio(noise + moved, separation, one) for moved in (separation[:, None], 0.0))
    curves: tuple[Curve, ...] = ()
    if game.curve:
        outcomes = {1.0: target, 0.5: game.play(0.5), QUARTER: quarter}
        points = [(fraction, _bound(outcome, delta)) for fraction, outcome in outcomes.items()]
        points.append((0.0, largest_bound(count, delta)))
        line = tuple((x, y, y, y) for x, y in sorted(points))
        claimed = tuple((x, game.bound, game.bound, game.bound) for x in (0.0, 1.0))
        title = f"{game.attack}: what {count} trials show"
        curves = (Curve(title, "fraction of the noise", EPSILON_BOUND.name, {"shown": line, "claimed": claimed}),)
    return with_controls(
        subject,
        game.adversary,
        game.attack,
        game.seen,
        Gate(EPSILON_BOUND, game.bound),
        target=_condition(f"{game.unit}; {count} trials a world", target, delta),
        positive=_condition("the same with a quarter of the noise", quarter, delta),
        negative=_condition("Gaussian noise of exactly the claimed epsilon and delta", (exact[0], exact[1]), delta),
        adaptive=game.adaptive,
        paired=False,
        bound=game.bound,
        remark=game.remark,
        curves=curves,
    )


def _condition(what: str, outcome: Outcome, delta: float) -> Condition:
    found = _bound(outcome, delta)
    return Condition(what, (Scores(EPSILON_BOUND, (found,), (found, math.inf)),))


def _bound(outcome: Outcome, delta: float) -> float:
    return epsilon_lower_bound(outcome[0].numpy(), outcome[1].numpy(), delta).epsilon
