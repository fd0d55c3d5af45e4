"""DBCL: clients train on random sketches of the weights, drawn anew every round. Its settings are `[dbcl]`.

Wang et al. send W S and the seed of S; a client sketches what enters the layer by the same S, which computes what the
weights W S S^T would, and uploads G S, which the server takes back by S^T. Here messages carry W S S^T and G S S^T: the
same information and the same training, and no fewer bytes than FedSGD (theirs are `ratio` times as many).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from pydantic import Field
from torch import Tensor, nn

from bilateral.errors import ProtocolError
from bilateral.models.layout import ModelLayout
from bilateral.protections.base import Vocabulary
from bilateral.protections.dbcl.sketch import SEED_BYTES, sketched
from bilateral.protections.fedavg.halves import FedAvgServer, PlainModel
from bilateral.protections.fedavg.variant import FedSgdVariant, VariantClient
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.sections import Section
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.messages import RoundModel, Upload
from bilateral.randomness import Randomness

DBCL: Final = "dbcl"


class DbclSettings(Section):
    """`ratio`: columns of a sketch over inputs of its layer."""

    ratio: float = Field(default=1.0, gt=0, le=1)


@dataclass(frozen=True)
class SketchedModel(RoundModel):
    """The weights as the sketches of this seed have them."""

    seed: bytes


class DbclServer(FedAvgServer):
    """Sends a sketch of the model, and takes a step along the sketch of the gradient."""

    def __init__(self, model: nn.Module, layout: ModelLayout, ratio: float, randomness: Randomness) -> None:
        super().__init__(model, layout)
        self._ratio = ratio
        self._randomness = randomness

    def start_round(self, round_index: int) -> SketchedModel:  # type: ignore[override]
        seed = self._randomness.child("sketch", round_index).random_bytes(SEED_BYTES)
        plain = super().start_round(round_index).parameters
        return SketchedModel(round_index, sketched(plain, self.layout, self._ratio, seed), seed)


class DbclClient(VariantClient):
    """FedSGD's client on a sketch, whose gradient it sketches as well."""

    def __init__(self, basis: ClientBasis, ratio: float) -> None:
        super().__init__(basis)
        self._ratio = ratio

    def train(self, message: SketchedModel, inputs: Tensor, targets: Tensor, weight: int) -> Upload:  # type: ignore[override]
        if not isinstance(message, SketchedModel) or len(message.seed) != SEED_BYTES:
            raise ProtocolError(
                f"{self.name}: expected a sketched model with a seed of {SEED_BYTES} bytes from the server.",
                remedy="Both sides must run the same plan.",
            )
        plain = PlainModel(message.round_index, message.parameters)
        upload = super().train(plain, inputs, targets, weight)
        return replace(upload, terms=sketched(upload.terms[0], self.layout, self._ratio, message.seed)[None])


class Dbcl(FedSgdVariant):
    """Clients see sketches of the model, and the server a sketch of each gradient."""

    name = DBCL
    settings = DbclSettings
    vocabulary = Vocabulary("DBCL", to_client=(SketchedModel,), stages={SketchedModel: "training"})
    baseline_of = "P3, tables I to IV"

    def guarantee(self, around: Groundwork) -> Guarantee:  # noqa: ARG002
        leaks = (
            Leak("a sketch of the model each round, and over rounds the model: sketches average out", "clients", 0),
            Leak("the sketch of each client's gradient, whose seed is the server's own", "server", 0),
        )
        return Guarantee("DBCL", (), leaks)

    def make_server(self, around: Groundwork, model: nn.Module) -> DbclServer:
        ratio = around.plan.own_settings(self.name).ratio  # type: ignore[attr-defined]
        return DbclServer(model, around.layout, ratio, around.secrets.stream("server"))

    def make_client(self, basis: ClientBasis) -> DbclClient:
        return DbclClient(basis, basis.plan.own_settings(self.name).ratio)  # type: ignore[attr-defined]

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield (
            "DBCL's sketches are drawn anew every round, so a site that keeps them gets the model over some rounds; "
            "the server sees every gradient, sketched by itself (line 0)."
        )
