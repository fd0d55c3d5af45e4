"""FedSGD by the name that plans know it by; docs/decisions/0023-fedsgd-by-name.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from torch import nn

from bilateral.learning.halves import ClientHalf, ServerHalf
from bilateral.protections.base import ModelProtection, Vocabulary
from bilateral.protections.fedavg.halves import GUARANTEE, FedAvgClient, FedAvgServer, PlainModel
from bilateral.protections.fedavg.local_steps import LOCAL_GUARANTEE, LocalRound, LocalStepsClient, LocalStepsServer
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.traits import Traits
from bilateral.protocols.class_balance import ClassTotals, CountClasses
from bilateral.protocols.guarantee import Guarantee, Leak

FEDAVG: Final = "fedavg"
"""What plans, checkpoints and tables call a training without any protection."""


_STAGES: Final = {PlainModel: "training", LocalRound: "training"}


COUNTED: Final = (
    Leak("how often each class is at each client", "server", 0),
    Leak(
        "how often each class is there at all clients together, and at one client if they are counted again without it "
        "(after a crash, or by a server that asks again)",
        "server",
        12,
    ),
    Leak("how often each class is there at all clients together", "clients", 12),
)
"""With `training.class_weights = "balanced"`."""


class FedSgd(ModelProtection):
    """Everyone sees the model."""

    name = FEDAVG
    aliases: tuple[str, ...] = ("fedsgd",)
    vocabulary = Vocabulary("FedSGD", to_client=(PlainModel, LocalRound, CountClasses, ClassTotals), stages=_STAGES)
    can_clip = True
    takes_any_objective = True
    computes_anywhere = True
    one_gradient_because = ""

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits(needs_trace=False)

    def guarantee(self, around: Groundwork) -> Guarantee:
        found = GUARANTEE if around.plan.training.local_settings is None else LOCAL_GUARANTEE
        return replace(found, leaks=found.leaks + COUNTED) if around.problem.objective.balanced else found

    def make_server(self, around: Groundwork, model: nn.Module) -> ServerHalf:
        if around.plan.training.local_settings is not None:
            return LocalStepsServer(model, around.layout)
        return FedAvgServer(model, around.layout)

    def make_client(self, basis: ClientBasis) -> ClientHalf:
        local, placement = basis.plan.training.local_settings, basis.plan.training.placement()
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
                placement=placement,
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
            placement=placement,
        )

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield "Without perturbation every site sees the whole model, every round (line 0)."
