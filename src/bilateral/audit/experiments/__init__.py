"""All experiments. What is common to several is in modules of its own, beside them."""

from __future__ import annotations

from bilateral.audit.experiment import Experiment
from bilateral.engine.hetero_plan import HeteroPlan
from bilateral.engine.plan import RunPlan


def experiments_for(plan: RunPlan | HeteroPlan) -> tuple[Experiment, ...]:
    """The experiments on plans of this kind, whether they apply to this one or not."""
    from bilateral.audit.experiments import (  # noqa: PLC0415 (slow: scipy, scikit-learn, scikit-image)
        dishonest_server,
        distinguishing_game,
        function_recovery,
        gradient_inversion,
        mask_leaks,
        membership_by_clients,
        membership_by_server,
        model_inversion,
        parameter_recovery,
        shared_prediction,
        sizes_and_presence,
        softmax_recovery,
        sum_inversion,
        swapped_uploads,
        upload_terms,
    )

    if isinstance(plan, HeteroPlan):
        return shared_prediction.EXPERIMENTS
    return (
        *gradient_inversion.EXPERIMENTS,
        sum_inversion.EXPERIMENT,
        upload_terms.EXPERIMENT,
        swapped_uploads.EXPERIMENT,
        membership_by_server.EXPERIMENT,
        membership_by_clients.EXPERIMENT,
        function_recovery.EXPERIMENT,
        model_inversion.EXPERIMENT,
        softmax_recovery.EXPERIMENT,
        parameter_recovery.EXPERIMENT,
        distinguishing_game.EXPERIMENT,
        mask_leaks.EXPERIMENT,
        *sizes_and_presence.EXPERIMENTS,
        dishonest_server.EXPERIMENT,
    )
