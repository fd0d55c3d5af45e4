"""The experiments of this topic, in the order in which audits show them."""

from __future__ import annotations

from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics.membership import canaries_in_sums, membership_by_clients, membership_by_server

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    membership_by_server.EXPERIMENT,
    canaries_in_sums.EXPERIMENT,
    membership_by_clients.EXPERIMENT,
)
