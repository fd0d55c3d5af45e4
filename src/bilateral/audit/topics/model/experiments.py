"""The experiments of this topic, in the order in which audits show them."""

from __future__ import annotations

from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics.model import function_recovery, model_inversion, parameter_recovery, softmax_recovery

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    function_recovery.EXPERIMENT,
    model_inversion.EXPERIMENT,
    softmax_recovery.EXPERIMENT,
    parameter_recovery.EXPERIMENT,
)
