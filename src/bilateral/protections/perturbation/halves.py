"""Both halves of model perturbation for a run, and the check of what they recover."""

from __future__ import annotations

from torch import Tensor, nn

from bilateral.protections.groundwork import ClientBasis, Groundwork
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.recovery_check import RecoveryCheck
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import Randomness


def make_perturb_server(around: Groundwork, model: nn.Module, settings: PerturbationSettings) -> PerturbServer:
    """The server's half of perturbation; it sizes its noise by a few inputs of its own."""
    problem = around.problem
    return PerturbServer(model, around.graph, settings, around.secrets.stream("server"), problem.examples)


def make_perturb_client(basis: ClientBasis, settings: PerturbationSettings) -> PerturbClient:
    """A client's half."""
    return PerturbClient(
        basis.name,
        basis.model,
        basis.graph,
        settings,
        basis.randomness,
        channels_last=basis.plan.training.channels_last,
        clip=basis.clip,
        count_clipped=basis.count_clipped,
        workspace=basis.workspace,
    )


def recovery_check(around: Groundwork) -> RecoveryCheck:
    """Both halves of perturbation against plain autograd, on the server's own inputs."""
    graph, settings, problem = around.graph, around.perturbation, around.problem

    def make_halves(model: nn.Module, inputs: Tensor, randomness: Randomness) -> tuple[PerturbServer, PerturbClient]:
        server = PerturbServer(model, graph, settings, randomness.child("server"), inputs)
        own, channels_last = randomness.child("client"), around.plan.training.channels_last
        return server, PerturbClient("the check", model, graph, settings, own, channels_last=channels_last)

    return RecoveryCheck(graph, settings.loss, make_halves, problem.examples)
