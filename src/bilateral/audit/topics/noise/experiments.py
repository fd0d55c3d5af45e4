"""The experiments of this topic, in the order in which audits show them."""

from __future__ import annotations

from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics.noise import distinguishing_game, one_run, recorded_noise

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    distinguishing_game.EXPERIMENT,
    one_run.EXPERIMENT,
    recorded_noise.EXPERIMENT,
)
