"""All experiments: one module each, what is common to several in the modules of `audit` above."""

from __future__ import annotations

from bilateral.audit.experiment import Experiment
from bilateral.engine.hetero_plan import HeteroPlan
from bilateral.engine.plan import RunPlan


def experiments_for(plan: RunPlan | HeteroPlan) -> tuple[Experiment, ...]:
    """The experiments on plans of this kind, whether they apply to this one or not."""
    return ()
