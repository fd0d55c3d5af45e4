"""All experiments, by topic. What is common to several of a topic is in modules of its own, beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Subject
from bilateral.runs.hetero.plan import HeteroPlan

_ON_UPLOADS: Final = ("single uploads", 0, 3, 6)
ABOUT: Final[Mapping[str, tuple[Subject | int, ...]]] = {
    "gradient-inversion": (*_ON_UPLOADS, 8, 12),
    "deep-leakage": (*_ON_UPLOADS, 8, 12),
    "sum-inversion": (12,),
    "upload-terms": (3,),
    "swapped-uploads": (*_ON_UPLOADS, "other clients' uploads"),
    "membership-by-server": (*_ON_UPLOADS, 8, 10, 12),
    "membership-by-clients": (0, 1),
    "function-recovery": (0, 1),
    "model-inversion": (0, 1),
    "softmax-recovery": (2, 8, 10),
    "parameter-recovery": (7, 9, 15),
    "recorded-noise": ("differential privacy",),
    "distinguishing-game": ("differential privacy", "published differential privacy", 4),
    "real-valued-masks": (6,),
    "sizes-from-refusals": (11,),
    "presence": (12,),
    "weights-in-sums": ("single uploads",),
    "dishonest-server": ("overlapping sums",),
    "chosen-sample": (16,),
    "shared-answers": ("signs of activations", 5, 13, 14),
    "hidden-queries": ("shared prediction, server", "shared prediction, answering party", "single answers", 5),
}
"""By experiment, the claims and ledger lines that it can test: what is left untested where it is not done."""


def experiments_for(plan: RunPlan | HeteroPlan) -> tuple[Experiment, ...]:
    """The experiments on plans of this kind, whether they apply to this one or not."""
    # ruff: noqa: PLC0415 (slow: scipy, scikit-learn, scikit-image)
    from bilateral.audit.topics.dishonest import chosen_sample, dishonest_server
    from bilateral.audit.topics.inversion import gradient_inversion, sum_inversion, upload_terms
    from bilateral.audit.topics.masks import mask_leaks, sizes_and_presence, weights_in_sums
    from bilateral.audit.topics.membership import membership_by_clients, membership_by_server
    from bilateral.audit.topics.model import function_recovery, model_inversion, parameter_recovery, softmax_recovery
    from bilateral.audit.topics.noise import distinguishing_game, recorded_noise
    from bilateral.audit.topics.shared import shared_prediction
    from bilateral.audit.topics.swapped import swapped_uploads

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
        recorded_noise.EXPERIMENT,
        mask_leaks.EXPERIMENT,
        *sizes_and_presence.EXPERIMENTS,
        weights_in_sums.EXPERIMENT,
        dishonest_server.EXPERIMENT,
        chosen_sample.EXPERIMENT,
    )
