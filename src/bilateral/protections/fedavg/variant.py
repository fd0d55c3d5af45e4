"""FedSGD with something else at its clients: what the baselines that build on it have in common."""

from __future__ import annotations

from torch import nn

from bilateral.learning.halves import ServerHalf
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protections.fedavg.protection import FedSgd
from bilateral.protections.groundwork import ClientBasis, Groundwork
from bilateral.protocols.noise.clipping import ClipSettings


class FedSgdVariant(FedSgd):
    """One gradient a client and round, as FedSGD has it; what is done to it is the variant's."""

    aliases: tuple[str, ...] = ()
    can_clip = False
    one_gradient_because = "its clients do with one gradient what its authors do with an update"

    def make_server(self, around: Groundwork, model: nn.Module) -> ServerHalf:
        return FedAvgServer(model, around.layout)


class VariantClient(FedAvgClient):
    """FedSGD's client, from a basis."""

    def __init__(self, basis: ClientBasis, clip: ClipSettings | None = None) -> None:
        super().__init__(
            basis.name,
            basis.model,
            basis.layout,
            basis.objective,
            channels_last=basis.plan.training.channels_last,
            clip=clip,
            workspace=basis.workspace,
        )
