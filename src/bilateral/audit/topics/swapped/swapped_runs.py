"""All runs of the game of swapped batches: the plan's, its controls', and those that attackers play by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bilateral.audit.evidence import Condition
from bilateral.audit.experiment import Context, undefended
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.topics.swapped.swapped_rounds import Match, Table, Worlds, play
from bilateral.engine.plan import RunPlan
from bilateral.randomness import Randomness

SUCCESS: Final = 0.9
NUM_OWN: Final = 3
"""Runs that the attacker plays by itself: what differs from model to model must not be taken for the world."""
FEWEST_OWN: Final = 8
BARE_IS_FASTER: Final = 6
COINS_A_VIEW: Final = 10
"""In the negative control: each is a fair guess of its own, and more of them sharpen the comparison."""
PLAYING: Final = 0.8
"""Of the experiment's time."""


@dataclass(frozen=True)
class Runs:
    """All that was played: the plan, the attacker's own runs of it, and a run without swaps; and FedSGD."""

    real: Match
    own: tuple[Match, ...]
    same: Match
    bare: Match
    own_bare: tuple[Match, ...]


def play_all(context: Context, table: Table) -> Runs:
    """All runs; FedSGD has the seeds and the coins of the plan's own runs."""
    trials = context.effort.swapped_rounds
    few = max(FEWEST_OWN, trials // (2 * NUM_OWN))
    plan, bare = table.plan, undefended(table.plan)
    player = _Player(context, table)
    player.total_work = player.work(plan, trials + (NUM_OWN + 1) * few) + player.work(bare, trials + NUM_OWN * few)
    own_roles = range(1, NUM_OWN + 1)
    return Runs(
        real=player.play(plan, 0, trials),
        own=tuple(player.play(plan, role, few) for role in own_roles),
        same=player.play(plan, NUM_OWN + 1, few, swap=False),
        bare=player.play(bare, 0, trials),
        own_bare=tuple(player.play(bare, role, few) for role in own_roles),
    )


@dataclass
class _Player:
    """Plays one run after the other, and says how far it is."""

    context: Context
    table: Table
    total_work: int = 1
    done: int = 0

    def work(self, plan: RunPlan, num_trials: int) -> int:
        return num_trials * (1 if plan == undefended(plan) else BARE_IS_FASTER)

    def play(self, plan: RunPlan, role: int, num_trials: int, *, swap: bool = True) -> Match:
        """`role` gives the run a seed (and so a model and keys) and coins of its own."""
        work = self.work(plan, num_trials)

        def tell(finished: int, total: int) -> None:
            share = (self.done + work * finished / total) / self.total_work
            self.context.on_progress(PLAYING * share, "swapped uploads: playing")

        seeded = plan.with_settings({"seed": (plan.seed + 1 + role) % 2**63})
        coins = _coins(self.context.randomness("swapped uploads", role), num_trials)
        match = play(seeded, self.table, coins, tell, swap=swap)
        self.done += work
        return match


def more_coins(context: Context, match: Match) -> list[Worlds]:
    """For the negative control: what coins that have nothing to do with the run say of its rounds."""
    draws = context.randomness("swapped uploads", "coins")
    rounds = list(match.worlds)
    return [dict(zip(rounds, _coins(draws.child(number), len(rounds)), strict=True)) for number in range(COINS_A_VIEW)]


def condition_of(what: str, right: dict[Metric, list[float]]) -> Condition:
    return Condition(what, tuple(Scores(metric, tuple(values)) for metric, values in right.items()))


def _coins(randomness: Randomness, count: int) -> list[int]:
    return [int(value) for value in randomness.uniform(count) < 0.5]
