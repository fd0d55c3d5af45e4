"""The experiments of this topic, in the order in which audits show them."""

from __future__ import annotations

from typing import Final

from bilateral.audit.experiment import Experiment
from bilateral.audit.topics.ciphers import opened_uploads

EXPERIMENTS: Final[tuple[Experiment, ...]] = (opened_uploads.EXPERIMENT,)
