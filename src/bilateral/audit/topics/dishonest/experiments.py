"""The experiments of this topic, in the order in which audits show them."""

from __future__ import annotations

from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics.dishonest import chosen_sample, dishonest_server, told_metrics

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    dishonest_server.EXPERIMENT,
    chosen_sample.EXPERIMENT,
    told_metrics.EXPERIMENT,
)
