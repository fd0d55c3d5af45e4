"""The experiments of this topic, in the order in which audits show them."""

from __future__ import annotations

from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics.sealed import crafted_models, sealed_models, sealed_worlds

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    sealed_models.EXPERIMENT,
    sealed_worlds.EXPERIMENT,
    crafted_models.EXPERIMENT,
)
