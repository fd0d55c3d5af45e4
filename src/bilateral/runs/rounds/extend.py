"""A run that goes on for longer than its plan said.

The rounds that are done stay as they are. Those that come are what they would be in a run of so many rounds from the
start: the learning rate of a round is a function of its index and of the number of rounds, and the schedule is that of
the longer run from here on.

Formal guarantee (tests/runs/rounds/test_early_stopping.py): with `training.schedule = "constant"` the extended run ends
with the model of a run that was planned for so many rounds, bit for bit. With any other schedule the rounds before had
the rates of the shorter run, and it does not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bilateral.arguments import checked
from bilateral.engine.checkpoint import load_checkpoint, save_checkpoint
from bilateral.engine.plan import RunPlan, dump_plan, load_plan
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import CheckpointError, PlanError


@checked
def extend_run(path: str | Path, rounds: int) -> RunPlan:
    """Give the run of a directory so many rounds in all; then resume it with the plan that is returned.

    Refused where a budget was measured out for the rounds of the plan. Interrupted, it is done again.
    """
    directory, plan = RunDirectory.open(Path(path), load_plan)
    if plan.traits.spends_budget or plan.traits.adds_noise:
        raise PlanError(
            f"The noise of this run was measured out for {plan.training.rounds} rounds, and more of them spend more.",
            remedy="Start a new run, whose plan has all its rounds.",
        )
    with directory.locked():
        checkpoint, longer = load_checkpoint(directory.checkpoint), plan.with_settings({"training.rounds": rounds})
        if checkpoint.plan_digest not in (plan.digest(), longer.digest()):
            raise CheckpointError(
                f"{directory.checkpoint} was made with another plan.", remedy="Put the run's own plan.toml back."
            )
        if rounds < max(checkpoint.next_round, plan.training.rounds):
            raise PlanError(
                f"Expected at least the {max(checkpoint.next_round, plan.training.rounds)} rounds that the run has, "
                f"got {rounds}.",
                remedy="Give the number of rounds in all, those that are done among them.",
            )
        save_checkpoint(replace(checkpoint, plan_digest=longer.digest()), directory.checkpoint)
        partial = directory.path / "plan.partial"
        partial.write_text(dump_plan(longer), encoding="utf-8")
        partial.replace(directory.path / "plan.toml")
    return longer
