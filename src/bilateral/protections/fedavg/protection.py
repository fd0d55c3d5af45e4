"""FedSGD by the name that plans know it by; docs/decisions/0023-fedsgd-by-name.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import nn

from bilateral.protections.base import ModelProtection, Vocabulary
from bilateral.protections.fedavg.halves import GUARANTEE, FedAvgClient, FedAvgServer, PlainModel
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.traits import Traits
from bilateral.protocols.guarantee import Guarantee

FEDAVG: Final = "fedavg"
"""What plans, checkpoints and tables call a training without any protection."""


class FedSgd(ModelProtection):
    """Everyone sees the model."""

    name = FEDAVG
    aliases: tuple[str, ...] = ("fedsgd",)
    vocabulary = Vocabulary("FedSGD", to_client=(PlainModel,), stages={PlainModel: "training"})
    can_clip = True
    takes_any_objective = True

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits(needs_trace=False)

    def guarantee(self, around: Groundwork) -> Guarantee:  # noqa: ARG002
        return GUARANTEE

    def make_server(self, around: Groundwork, model: nn.Module) -> FedAvgServer:
        return FedAvgServer(model, around.layout)

    def make_client(self, basis: ClientBasis) -> FedAvgClient:
        return FedAvgClient(
            basis.name,
            basis.model,
            basis.layout,
            basis.objective,
            channels_last=basis.plan.training.channels_last,
            clip=basis.clip,
            count_clipped=basis.count_clipped,
            workspace=basis.workspace,
        )

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield "Without perturbation every site sees the whole model, every round (line 0)."
