"""The experiments of this topic, in the order in which audits show them."""

from __future__ import annotations

from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics.inversion import gradient_inversion, prior_inversion, sum_inversion, upload_terms

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    *gradient_inversion.EXPERIMENTS,
    prior_inversion.EXPERIMENT,
    sum_inversion.EXPERIMENT,
    upload_terms.EXPERIMENT,
)
