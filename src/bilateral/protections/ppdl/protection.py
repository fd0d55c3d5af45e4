"""PPDL: clients share a part of their gradient, the largest values, with noise. Its settings are `[ppdl]`.

As P3 uses it: the largest values, bounded, with Gaussian noise of a variance. With `epsilon` as Shokri and Shmatikov
have it: values are chosen by the sparse vector technique, and both the choice and the values have Laplace noise. In
both, clients get the whole model every round (the original lets them fetch a part of it as well).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, cast

from pydantic import Field
from torch import Tensor

from bilateral.protections.base import Vocabulary
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protections.fedavg.variant import FedSgdVariant, VariantClient
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.ppdl.selection import share_by_sparse_vectors, share_largest
from bilateral.protections.sections import Section
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.messages import Upload

PPDL: Final = "ppdl"


class PpdlSettings(Section):
    """`fraction` of the values is shared. `epsilon`: of one round, and one client's whole upload (as published)."""

    fraction: float = Field(default=0.1, gt=0, le=1)
    bound: float = Field(default=1.0, gt=0)
    variance: float = Field(default=1e-4, ge=0)
    epsilon: float | None = Field(default=None, gt=0)
    threshold: float = Field(default=1e-4, ge=0)


class PpdlClient(VariantClient):
    """FedSGD's client, which shares a part of its gradient."""

    def __init__(self, basis: ClientBasis, settings: PpdlSettings) -> None:
        super().__init__(basis)
        self._settings = settings
        self._randomness = basis.randomness

    def train(self, message: PlainModel, inputs: Tensor, targets: Tensor, weight: int) -> Upload:
        upload = super().train(message, inputs, targets, weight)
        chosen, draws = self._settings, self._randomness.child("ppdl", message.round_index)
        if chosen.epsilon is None:
            shared = share_largest(upload.terms[0], chosen.fraction, chosen.bound, chosen.variance, draws)
        else:
            shared = share_by_sparse_vectors(
                upload.terms[0], chosen.fraction, chosen.bound, chosen.threshold, chosen.epsilon, draws
            )
        return replace(upload, terms=shared[None])


class Ppdl(FedSgdVariant):
    """Everyone sees the model, and the server a part of each gradient."""

    name = PPDL
    settings = PpdlSettings
    vocabulary = Vocabulary("PPDL")  # what it speaks is FedSGD's
    baseline_of = "P3, tables I to IV"

    def guarantee(self, around: Groundwork) -> Guarantee:
        settings = cast("PpdlSettings", around.plan.own_settings(self.name))
        part = f"the largest {settings.fraction:.0%} of each client's gradient"
        noise = (
            f"variance {settings.variance:g}" if settings.epsilon is None else f"a stated epsilon {settings.epsilon:g}"
        )
        leaks = (
            Leak("the whole model", "clients", 0),
            Leak(f"{part}, with noise of {noise}; batch statistics bare", "server", 0),
        )
        return Guarantee("PPDL", (), leaks)

    def make_client(self, basis: ClientBasis) -> PpdlClient:
        return PpdlClient(basis, cast("PpdlSettings", basis.plan.own_settings(self.name)))

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield (
            "PPDL shows the server the largest values of every gradient, and every site the model (line 0). Its "
            "epsilon is of one round, and noise for it leaves nothing to learn from."
        )
