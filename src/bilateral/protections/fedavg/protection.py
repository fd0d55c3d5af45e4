"""FedSGD by the name that plans know it by; docs/decisions/0023-fedsgd-by-name.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import nn

from bilateral.learning.halves import ClientHalf, ServerHalf
from bilateral.protections.base import ModelProtection, Vocabulary
from bilateral.protections.fedavg.halves import GUARANTEE, FedAvgClient, FedAvgServer, PlainModel
from bilateral.protections.fedavg.local_steps import LOCAL_GUARANTEE, LocalRound, LocalStepsClient, LocalStepsServer
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.traits import Traits
from bilateral.protocols.guarantee import Guarantee

FEDAVG: Final = "fedavg"
"""What plans, checkpoints and tables call a training without any protection."""


_STAGES: Final = {PlainModel: "training", LocalRound: "training"}


class FedSgd(ModelProtection):
    """Everyone sees the model."""

    name = FEDAVG
    aliases: tuple[str, ...] = ("fedsgd",)
    vocabulary = Vocabulary("FedSGD", to_client=(PlainModel, LocalRound), stages=_STAGES)
    can_clip = True
    takes_any_objective = True
    one_gradient_because = ""

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits(needs_trace=False)

    def guarantee(self, around: Groundwork) -> Guarantee:
        return GUARANTEE if around.plan.training.local_settings is None else LOCAL_GUARANTEE

    def make_server(self, around: Groundwork, model: nn.Module) -> ServerHalf:
        if around.plan.training.local_settings is not None:
            return LocalStepsServer(model, around.layout)
        return FedAvgServer(model, around.layout)

    def make_client(self, basis: ClientBasis) -> ClientHalf:
        local = basis.plan.training.local_settings
        if local is not None:
            return LocalStepsClient(
                basis.name,
                basis.model,
                basis.layout,
                basis.objective,
                local,
                channels_last=basis.plan.training.channels_last,
                clip=basis.clip,
                count_clipped=basis.count_clipped,
                workspace=basis.workspace,
            )
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
