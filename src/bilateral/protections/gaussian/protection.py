"""Plain Gaussian noise on every upload, as P0's table IV has it. Its settings are `[gaussian]`.

No clipping and no budget: what P0 calls DP of a variance is noise of that variance, and no epsilon follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pydantic import Field
from torch import Tensor

from bilateral.protections.base import Vocabulary
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protections.fedavg.variant import FedSgdVariant, VariantClient
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.sections import Section
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.messages import Upload
from bilateral.randomness import Randomness

GAUSSIAN: Final = "gaussian"


class GaussianSettings(Section):
    """P0's table IV has variances from 1e-4 to 1e-1."""

    variance: float = Field(default=1e-3, gt=0)


class GaussianClient(VariantClient):
    """FedSGD's client, with noise of one size on every value of its gradient."""

    def __init__(self, basis: ClientBasis, variance: float) -> None:
        super().__init__(basis)
        self._deviation = variance**0.5
        self._randomness = basis.randomness

    def train(self, message: PlainModel, inputs: Tensor, targets: Tensor, weight: int) -> Upload:
        upload = super().train(message, inputs, targets, weight)
        noise = noise_like(upload.terms, self._randomness.child("gaussian", message.round_index))
        return replace(upload, terms=upload.terms + self._deviation * noise)


def noise_like(terms: Tensor, randomness: Randomness) -> Tensor:
    """Standard normal noise of this shape and precision."""
    return randomness.normal(*terms.shape).to(terms.dtype)


class Gaussian(FedSgdVariant):
    """Everyone sees the model, and the server each gradient under noise."""

    name = GAUSSIAN
    settings = GaussianSettings
    vocabulary = Vocabulary("Gaussian noise")  # what it speaks is FedSGD's
    baseline_of = "P0, table IV"

    def guarantee(self, around: Groundwork) -> Guarantee:
        variance = around.plan.own_settings(self.name).variance  # type: ignore[attr-defined]
        leaks = (
            Leak("the whole model", "clients", 0),
            Leak(f"each client's gradient, under noise of variance {variance:g}; batch statistics bare", "server", 0),
        )
        return Guarantee("Gaussian noise", (), leaks)

    def make_client(self, basis: ClientBasis) -> GaussianClient:
        return GaussianClient(basis, basis.plan.own_settings(self.name).variance)  # type: ignore[attr-defined]

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield "Gaussian noise without clipping bounds nothing: no epsilon holds; sites see the model (line 0)."
