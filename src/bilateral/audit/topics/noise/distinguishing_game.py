"""Differential privacy, played as a game: do the real noise and the claimed epsilon of a plan go together?

Many trials of two neighbouring worlds (`neighbouring_worlds`), scored by an attacker (`attacks/distinguishing`), give a
lower bound on epsilon that holds with 99 % confidence (`epsilon_bound`). The claim is broken if that is above epsilon.

| mechanism           | unit's contribution                                                              | expected   |
|---------------------|----------------------------------------------------------------------------------|------------|
| sound               | at the clipping norm (worst case); a canary through the real clipping            | within     |
| published (P2)      | a true gradient that moves by the assumed norm: the paper's own assumption       | beyond     |
| mp-dp-naive         | the same, of the perturbed gradient (as stated) and of the true one              | the latter |
| mp-cdp              | the same, for whoever sees models alone                                          | within     |
| all but sound       | one honest sample (or client): nobody clips                                      | beyond     |

Positive control: the same game against a quarter of the noise. Negative control: Gaussian noise that has exactly the
claimed epsilon and delta, and the best test against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from bilateral.audit.evidence import Evidence
from bilateral.audit.experiment import Context, Experiment
from bilateral.audit.topics.noise import neighbouring_worlds as worlds
from bilateral.audit.topics.noise.noise_game import Game, play_out
from bilateral.audit.topics.noise.published_games import central_games, naive_games, published_games
from bilateral.audit.topics.noise.sound_games import sound_games
from bilateral.engine.plan import RunPlan
from bilateral.protections.groundwork import Groundwork
from bilateral.protocols.guarantee import Guarantee, Subject

GAMES: Final[dict[str, Callable[[Context, Groundwork], list[Game]]]] = {
    "sound": sound_games,
    "published": published_games,
    "mp-dp-naive": naive_games,
    "mp-cdp": central_games,
}


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    if not plan.traits.adds_noise:
        return "the plan adds no noise, and claims no epsilon"
    return "" if plan.noise.mechanism in GAMES else "there is no game for noise of this kind"


def _run(context: Context) -> Sequence[Evidence]:
    around = worlds.groundwork_of(context)
    traits = context.plan.traits
    games = GAMES[context.plan.noise.mechanism](context, around)
    subject: Subject = "differential privacy" if traits.spends_budget else "published differential privacy"
    found: list[Evidence] = []
    for number, game in enumerate(games):
        context.on_progress(0.3 + 0.7 * number / len(games), game.attack)
        evidence = play_out(game, subject, context)
        found.append(evidence)
        if traits.noise_line is not None:
            found.append(replace(evidence, tests=traits.noise_line, curves=()))
    context.on_progress(1.0, "games played")
    return found


EXPERIMENT = Experiment(
    "distinguishing-game",
    "Differential privacy: two neighbouring worlds told apart, and the epsilon that this refutes",
    ("differential privacy", "published differential privacy", 4),
    _applies,
    _run,
    weight=60.0,
)
