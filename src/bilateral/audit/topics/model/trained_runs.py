"""A whole training of the plan, of which the first and last rounds are kept: what clients are sent, early and late."""

from __future__ import annotations

from bilateral.audit.experiment import Context
from bilateral.audit.recording import Recording, record
from bilateral.engine.plan import RunPlan

NUM_TRIALS = 10
NUM_LATE_ROUNDS = 20
NUM_EARLY_ROUNDS = 10


def trained_plan(context: Context) -> RunPlan:
    """The plan as clients see it, at its own length: what the server sends does not depend on the masks of uploads."""
    rounds = max(NUM_TRIALS, context.plan.training.rounds)
    if context.effort.most_trained_rounds is not None:
        rounds = min(rounds, context.effort.most_trained_rounds)
    # Whether a client is invited to a round changes nothing of what it is sent: here it is invited to all.
    plan = context.plan.with_settings({"training.rounds": rounds, "federation.participation": 1.0})
    bare = plan.traits.hides_model and not plan.traits.adds_noise
    return plan.with_settings({"aggregation.masks": "none"}) if bare else plan


def kept_rounds(plan: RunPlan) -> set[int]:
    """The first and the last rounds: those that experiments on a trained run look at."""
    rounds = range(plan.training.rounds)
    return {*rounds[:NUM_EARLY_ROUNDS], *rounds[-NUM_LATE_ROUNDS:]}


def recorded(context: Context, plan: RunPlan, note: str) -> Recording:
    """A run of a plan with `kept_rounds`, which says how far it is (the first half of an experiment)."""

    def on_round(done: int, rounds: int) -> None:
        if done % 10 == 0:
            context.on_progress(0.5 * done / rounds, f"round {done} of {rounds}, {note}")

    return record(plan, context.federation(plan), keep=kept_rounds(plan), on_round=on_round)
