"""The experiments of this topic, in the order in which audits show them."""

from __future__ import annotations

from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics.shared import shared_prediction

EXPERIMENTS: Final[tuple[Experiment, ...]] = (*shared_prediction.EXPERIMENTS,)
