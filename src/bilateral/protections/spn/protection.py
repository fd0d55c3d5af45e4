"""SPN: a secret loss at every client, whose gradient perturbs what it uploads. Its settings are `[spn]`.

Fan et al. train, beside the shared network, a head of the client's own that pushes what enters the last layer towards
secret codes of signs (polarisation, a hinge); the gradient that a client shares is of both losses together, so that
its perturbation is another for every weight and batch. Here the secret head is drawn once a run and not trained, as
clients keep nothing between rounds: what is public of the scheme, the shape of the perturbation, is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from bilateral.protections.base import Vocabulary
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protections.fedavg.variant import FedSgdVariant, VariantClient
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.sections import Section
from bilateral.protections.traits import Traits
from bilateral.protocols.batch_check import check_batch
from bilateral.protocols.flat_gradients import FlatGradients
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.messages import Upload

SPN: Final = "spn"


class SpnSettings(Section):
    """`strength`: of the secret loss beside the true one; `bits` of a code; `margin` of its hinge."""

    strength: float = Field(default=0.1, gt=0)
    bits: int = Field(default=32, ge=1, le=4096)
    margin: float = Field(default=1.0, gt=0)


class SpnClient(VariantClient):
    """FedSGD's client with a secret head and a secret code for every class (one for all where there are none)."""

    def __init__(self, basis: ClientBasis, settings: SpnSettings) -> None:
        super().__init__(basis)
        self._settings = settings
        own, width = basis.randomness.child("spn"), self._model.head.in_features
        self._secret_head = own.child("head").normal(settings.bits, width) / width**0.5
        self._codes = own.child("codes").signs(basis.graph.num_outputs, settings.bits)

    def train(self, message: PlainModel, inputs: Tensor, targets: Tensor, weight: int) -> Upload:
        message.expect_shape("the server", "parameters", (self.layout.num_parameters,))
        check_batch(self.name, inputs, targets, self.layout, self.objective)
        self._model.load(message.parameters)
        caught: list[Tensor] = []
        hook = self._model.head.register_forward_pre_hook(lambda _module, given: caught.append(given[0]))
        try:
            outputs = self._model.run(self.name, message.round_index, inputs)
        finally:
            hook.remove()
        lost = self.objective.of_batch(outputs, targets) + self._settings.strength * self._polarisation(
            caught[0], targets
        )
        terms = self._model.upload_rows(1, lost.dtype)
        FlatGradients(lost, self._model.parameters).write(terms[0], None, {}, last=True)
        return Upload(message.round_index, weight, terms, self._model.batch_statistics())

    def _polarisation(self, features: Tensor, targets: Tensor) -> Tensor:
        """A hinge on how far the secret head's outputs are on the side that the code of their class says."""
        classes = targets if not targets.is_floating_point() else targets.flatten(1).argmax(1)
        wanted = self._codes[classes].to(features.dtype)
        found = features.flatten(1) @ self._secret_head.to(features.dtype).t()
        return F.relu(self._settings.margin - wanted * found).mean()


class Spn(FedSgdVariant):
    """Everyone sees the model, and the server each gradient, of a loss that has a secret part."""

    name = SPN
    settings = SpnSettings
    vocabulary = Vocabulary("SPN")  # what it speaks is FedSGD's
    baseline_of = "P3, tables I to IV"
    takes_any_objective = False

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits()  # traced: what enters the head must be found

    def guarantee(self, around: Groundwork) -> Guarantee:  # noqa: ARG002
        leaks = (
            Leak("the whole model", "clients", 0),
            Leak("each client's gradient, plus that of a loss which is its secret; batch statistics bare", "server", 0),
        )
        return Guarantee("SPN", (), leaks)

    def make_client(self, basis: ClientBasis) -> SpnClient:
        return SpnClient(basis, cast("SpnSettings", basis.plan.own_settings(self.name)))

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield (
            "SPN adds the gradient of a secret loss, which does not reach the last layer: that layer's gradient, the "
            "labels in it, and the model for every site, are as in FedSGD (line 0)."
        )
