"""The experiments of this topic, in the order in which audits show them."""

from __future__ import annotations

from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics.masks import mask_leaks, sizes_and_presence, weights_in_sums

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    mask_leaks.EXPERIMENT,
    *sizes_and_presence.EXPERIMENTS,
    weights_in_sums.EXPERIMENT,
)
