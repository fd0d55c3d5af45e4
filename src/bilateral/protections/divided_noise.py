"""Clipping by sample, and Gaussian noise of which every client adds a part: what Truex et al. put below encryption.

The noise in a sum is as much as the stated epsilon of *one round* takes (the classic bound, as P2 has it), if as many
clients add their part as are taken to be honest. Nobody composes rounds: `noise.mechanism = "sound"` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from bilateral.errors import PlanError
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protections.fedavg.variant import VariantClient
from bilateral.protections.groundwork import ClientBasis, Groundwork
from bilateral.protocols.messages import Upload
from bilateral.protocols.noise.clipping import ClipSettings


@dataclass(frozen=True)
class DividedNoise:
    """`epsilon` None adds none. `num_honest`: clients whose noise counts, less one, as published."""

    clip: float
    epsilon: float | None
    delta: float
    num_honest: int

    def settings(self, around: Groundwork) -> ClipSettings:
        if not around.plan.training.batch_size:
            raise PlanError(
                f"{around.plan.protection} clips samples and divides by a public batch size, and batch_size is 0.",
                remedy="Set training.batch_size to the size of a batch.",
            )
        return ClipSettings(self.clip, "sample", float(around.plan.training.batch_size))

    def deviation(self, settings: ClipSettings) -> float:
        """Of one client's noise."""
        if self.epsilon is None:
            return 0.0
        of_sum = math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon * settings.sensitivity
        return of_sum / math.sqrt(max(1, self.num_honest - 1))


class DividedNoiseClient(VariantClient):
    """FedSGD's client, which clips and adds its part of the noise."""

    def __init__(self, basis: ClientBasis, clip: ClipSettings, deviation: float) -> None:
        super().__init__(basis, clip)
        self._deviation = deviation
        self._randomness = basis.randomness

    def train(self, message: PlainModel, inputs: Tensor, targets: Tensor, weight: int) -> Upload:
        upload = super().train(message, inputs, targets, weight)
        noise = self._randomness.child("divided noise", message.round_index).normal(*upload.terms.shape)
        return replace(upload, terms=upload.terms.double() + self._deviation * noise)
