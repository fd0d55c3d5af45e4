"""Model perturbation (protocols/perturb) as a protection of a run. Its settings are `[perturbation]`."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from bilateral.errors import ProtocolError
from bilateral.protections.base import ModelProtection, Vocabulary
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.perturbation.halves import make_perturb_client, make_perturb_server, recovery_check
from bilateral.protections.traits import Traits
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.noise.term_scales import public_term_scales
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery, SoftmaxReply
from bilateral.protocols.perturb.recovery_check import RecoveryCheck
from bilateral.protocols.perturb.scheme import term_names
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.server import guarantee as perturb_guarantee


class Perturbation(ModelProtection):
    """Clients train on a perturbed model."""

    name = "perturbation"
    one_gradient_because = (
        "a client that is sent a disguised model never has a true gradient, and a step along the gradient that it has "
        "leads to a model that is the disguise of none"
    )
    vocabulary = Vocabulary(
        to_client=(PerturbedModel, SoftmaxReply),
        to_server=(SoftmaxQuery,),
        stages={PerturbedModel: "training", SoftmaxReply: "training after the softmax answer"},
    )
    can_clip = True

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits(hides_model=True, model_line=1, upload_line=3, default_masks="ring")

    def guarantee(self, around: Groundwork) -> Guarantee:
        return perturb_guarantee(around.perturbation)

    def make_server(self, around: Groundwork, model: nn.Module) -> PerturbServer:
        return make_perturb_server(around, model, around.perturbation)

    def make_client(self, basis: ClientBasis) -> PerturbClient:
        return make_perturb_client(basis, basis.plan.perturbation.settings(basis.objective.name))

    def term_names(self, plan: Plan, loss: str) -> tuple[str, ...]:
        return term_names(plan.perturbation.settings(loss))

    def asks(self, plan: Plan, loss: str) -> bool:
        return loss == "ce" and plan.perturbation.settings(loss).has_exchange  # asked before other losses are refused

    def term_scales(self, around: Groundwork) -> tuple[float, ...]:
        """Public, from a model of the same kind and inputs of the server's.

        A site has no inputs of the server's, and is told the scales; any choice of them costs no privacy.
        """
        if told := around.problem.term_scales:
            wanted = len(self.term_names(around.plan, around.problem.loss))
            if len(told) != wanted or not all(0 < scale < float("inf") for scale in told):
                raise ProtocolError(f"Expected {wanted} scales of terms above 0 from the server, got {list(told)}.")
            return told
        return public_term_scales(around.model, around.graph, around.perturbation, around.problem.examples)

    def recovery_check(self, around: Groundwork) -> RecoveryCheck:
        return recovery_check(around)

    def warnings(self, plan: Plan) -> Iterator[str]:
        yield (
            "Perturbation misleads a site that takes the model as it comes. A site that tries gets what the model "
            "computes (line 1) and, to some percent, its parameters (line 15)."
        )
        if plan.training.loss != "mse" and plan.perturbation.softmax == "blinded":
            yield (
                "In the published exchange of cross entropy the server learns every training sample's prediction (line "
                "8), and one that chooses its blinders takes a sample's gradient out of the sum, unseen (line 16); not "
                "with softmax = 'local', nor with mse."
            )
