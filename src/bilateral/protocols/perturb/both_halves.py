"""Both halves of perturbation in one place: whoever writes a loop of his own tries them here before the first round."""

from __future__ import annotations

from torch import Tensor, nn

from bilateral.arguments import checked
from bilateral.errors import ArgumentError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.recovery_check import RecoveryCheck
from bilateral.protocols.perturb.recovery_trial import RecoveryReport
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import Randomness


@checked
def check_recovery(
    model: nn.Module, graph: ScaleGraph, settings: PerturbationSettings, examples: Tensor
) -> RecoveryReport:
    """Whether rounds would recover the gradient of plain training, on this very model; `RecoveryError` if not.

    `examples`: a few inputs that the model takes. A trace does not show everything that a module does when it trains,
    so `bilateral.run` does this before the first round of every run. Nothing is changed.
    """
    if examples.dim() < 2 or not len(examples):
        raise ArgumentError(
            f"check_recovery: expected `examples` to be one input or more, got shape {tuple(examples.shape)}.",
            remedy="Stack a few inputs along a first dimension, as in a batch.",
        )

    def make_halves(tried: nn.Module, inputs: Tensor, randomness: Randomness) -> tuple[PerturbServer, PerturbClient]:
        server = PerturbServer(tried, graph, settings, randomness.child("server"), inputs)
        return server, PerturbClient("the check", tried, graph, settings, randomness.child("client"))

    return RecoveryCheck(graph, settings.loss, make_halves, examples).run(model)
