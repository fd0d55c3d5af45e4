"""Sealed training as a protection of a run. Who deals is `federation.dealer`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from torch import nn

from bilateral.errors import UnsupportedLayerError
from bilateral.models.layout import ModelLayout
from bilateral.models.scale_graph import ScaleGraph, traced
from bilateral.protections.base import AnyModelProtection, Rule, Vocabulary
from bilateral.protections.groundwork import ROTATING, Groundwork, Plan
from bilateral.protections.sealed.check import SealedCheck
from bilateral.protections.sealed.client import SealedClient
from bilateral.protections.sealed.dealing import SealedDealer
from bilateral.protections.sealed.guarantee import LINE, sealed_guarantee
from bilateral.protections.sealed.messages import (
    DealComplaint,
    DealRequest,
    Dealt,
    RangeLeft,
    SealedModel,
    SealedTurn,
    SealedTurnReply,
    SealedWeights,
)
from bilateral.protections.sealed.network import SealedNetwork
from bilateral.protections.sealed.server import SealedServer
from bilateral.protections.sealed.terms import SealedTerms
from bilateral.protections.sides import ClientParts, Seat, Sides
from bilateral.protections.traits import Traits
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.messages import UploadShape

LINE_OF_REFUSALS: Final = 11
"""Of the ledger: sizes that masks tell. Ring words have no range to refuse."""
NUM_REPLIES: Final = 24
"""Of a client in a round, about: what masks take, what it deals, and its turns."""
SEALED: Final = "sealed"
"""What plans call it."""


class Sealed(AnyModelProtection):
    """Gradients are computed on shares, between each client and the server; another party deals."""

    name = SEALED
    one_gradient_because = "clients are sent no model, and steps on shares would be as many sealed rounds"
    vocabulary = Vocabulary(
        "sealed training",
        to_client=(DealRequest, SealedWeights, SealedModel, SealedTurnReply),
        to_server=(Dealt, SealedTurn, DealComplaint, RangeLeft),
        stages={DealRequest: "dealing", SealedModel: "a sealed step", SealedTurnReply: "a sealed step"},
    )
    refused = (
        Rule(
            "sealed training with noise",
            lambda mix: mix.noise is not None,
            "nobody sees a gradient that could be clipped, so noise would bound nothing",
            "Use noise.mechanism = 'none', or protection = 'perturbation' or 'fedsgd' with sound noise.",
        ),
        Rule(
            "sealed training of a single client",
            lambda mix: mix.num_participants < 2,
            "the sum over one client is that client's gradient",
            "Use two clients or more a round.",
        ),
        Rule(
            "sealed training without ring masks",
            lambda mix: mix.masks != "ring",
            "the server would add its own part to each upload, and see that client's gradient",
            "Use aggregation.masks = 'ring' (or 'auto', which is that).",
        ),
        Rule(
            "sealed training of BatchNorm",
            lambda mix: mix.num_statistics > 0,
            "it trains on statistics of batches, which nobody sees",
            "Freeze the BatchNorm layers (evaluation mode, requires_grad = False), or take them out.",
        ),
    )

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits(
            computes_on_shares=True,
            model_line=LINE,
            upload_line=LINE,
            default_masks="ring",
            needs_sample_counts=True,
            replies_in_a_round=NUM_REPLIES,
        )

    def guarantee(self, around: Groundwork) -> Guarantee:
        return sealed_guarantee(around.named_dealer)

    def check_network(self, model: nn.Module, layout: ModelLayout) -> None:
        _sealed_network(model, traced(layout))

    def sides(self, around: Groundwork) -> Sides:
        built = _Built.of(around)
        return Sides(
            built.server,
            built.client,
            UploadShape(1, built.terms.gradient_words, 0),
            (self.guarantee(around),),
            covers=frozenset({LINE_OF_REFUSALS}),
            check=SealedCheck(built.network, built.terms, around.problem.examples),
            words=True,
            helpers={} if built.dealer is None else {built.dealer: built.named_dealer},
        )

    def warnings(self, plan: Plan) -> Iterator[str]:
        who = "another site" if plan.federation.dealer == ROTATING else plan.federation.dealer
        yield (
            f"In sealed training {who} deals. A site and its dealer together know the model of a round; the server and "
            "that dealer together know the site's batch (line 17)."
        )


def _sealed_network(model: nn.Module, graph: ScaleGraph) -> SealedNetwork:
    if graph.vocabulary is not None:
        raise UnsupportedLayerError(
            "This network looks its inputs up in a table (nn.Embedding), which is not done on shares.",
            remedy="Choose protection = 'perturbation', or 'masks'.",
        )
    try:
        return SealedNetwork.of(model, graph, graph.input_shape)
    except UnsupportedLayerError as error:
        raise UnsupportedLayerError(str(error), remedy="Or choose protection = 'perturbation', or 'masks'.") from error


@dataclass(frozen=True, repr=False)
class _Built:
    """What all parties compute alike, and each from it."""

    around: Groundwork
    network: SealedNetwork
    terms: SealedTerms

    @classmethod
    def of(cls, around: Groundwork) -> _Built:
        network = _sealed_network(around.model, around.graph)
        counts = dict(zip(around.names, around.sample_counts, strict=True))
        loss, batch_size = around.problem.plain_loss, around.plan.training.batch_size
        return cls(around, network, SealedTerms(network.circuit, loss, network.trains, batch_size, counts))

    @property
    def dealer(self) -> str | None:
        return self.around.named_dealer

    def server(self, model: nn.Module) -> SealedServer:
        randomness, examples = self.around.secrets.stream("sealed server"), self.around.problem.examples
        return SealedServer(model, self.network, self.terms, self.dealer, randomness, examples)

    def client(self, seat: Seat) -> ClientParts:
        half = SealedClient(seat.name, self.network, self.terms, self.dealer, self.around.secrets.stream("dealing"))
        return ClientParts(half, self.around.batch_schedule(seat), opened=half.opened, agreed=half.agreed)

    def named_dealer(self, keys: KeyRing) -> SealedDealer:
        return SealedDealer(keys, self.terms, self.around.secrets.stream("dealing"))
