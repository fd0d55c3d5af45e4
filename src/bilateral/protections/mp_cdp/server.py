"""MP-CDP, an ablation of P2: perturbed models as usual, and noise that a trusted server adds to the recovered mean.

The yardstick for the published noise: `central_sigma` takes the same condition (P2 Eq. 23) at the same (epsilon,
delta), so that the published scheme's mean carries the same noise but for the pairwise noise's share of theta.

Formal guarantee (tests/protections/test_ablations.py): the recovered mean has normal noise of standard deviation
`central_sigma` on every trained element, fresh every round, and none on frozen ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bilateral.errors import ThresholdError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.messages import Aggregate, RecoveredUpdate
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery, SoftmaxReply
from bilateral.protocols.perturb.secrets import RoundSecrets
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.server import guarantee as perturbation_guarantee
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import Randomness, SecureRandomness


class MpCdpServer:
    """A perturbing server that adds N(0, sigma^2) to the recovered mean gradient.

    `sigma` is the noise on the mean (`published_accounting.central_sigma`); `num_clients` the number of a round's
    participants, each of weight 1, for which it was computed.
    """

    def __init__(
        self,
        inner: PerturbServer,
        model: nn.Module,
        graph: ScaleGraph,
        sigma: float,
        num_clients: int,
        randomness: Randomness | None = None,
    ) -> None:
        self._inner = inner
        self._sigma = sigma
        self.num_clients = num_clients
        self._randomness = randomness or SecureRandomness()
        self._trained = trained_elements(model, graph)

    def recover_one(self, total: Aggregate) -> RecoveredUpdate:
        """What the server holds before it adds its noise, of any sum: also of one upload alone."""
        return self._inner.recover(total)

    @property
    def secrets(self) -> RoundSecrets:
        """The current round's, for their owner."""
        return self._inner.secrets

    def start_round(self, round_index: int) -> PerturbedModel:
        return self._inner.start_round(round_index)

    def answer(self, sender: str, message: SoftmaxQuery) -> SoftmaxReply:
        return self._inner.answer(sender, message)

    def recover(self, total: Aggregate) -> RecoveredUpdate:
        if total.total_weight != self.num_clients:
            raise ThresholdError(
                f"The sum of round {total.round_index} has weight {total.total_weight}, expected {self.num_clients}: "
                "the noise is sized for clients of weight 1.",
                remedy="Give every client weight 1, and set num_clients to the round's participants.",
            )
        update = self._inner.recover(total)
        noise = self._randomness.child("central noise", total.round_index).normal(len(self._trained))
        gradient = update.gradient.index_add(0, self._trained, self._sigma * noise)
        return RecoveredUpdate(gradient, update.statistics)

    def state_tensors(self) -> dict[str, Tensor]:
        return self._inner.state_tensors()

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._inner.load_state_tensors(tensors)


def trained_elements(model: nn.Module, graph: ScaleGraph) -> Tensor:
    """Indices, in the flat vector, of all elements of trained parameters that the network uses."""
    own = dict(model.named_parameters())
    kept = [
        torch.arange(p.slice.start, p.slice.stop)
        for p in graph.parameters
        if own[p.name].requires_grad and p.binding is not None
    ]
    return torch.cat(kept) if kept else torch.zeros(0, dtype=torch.int64)


def guarantee(settings: PerturbationSettings, epsilon: float, delta: float) -> Guarantee:
    """Central differential privacy: of what the server publishes, not against the server."""
    perturbed = perturbation_guarantee(settings)
    claim = Claim(
        "published differential privacy",
        f"({epsilon:g}, {delta:g})-differential privacy of the round's mean gradient, per round",
        "whoever sees only models, not uploads",
        "the server is trusted; every true gradient already has a norm of at most the assumed sensitivity (nobody "
        "clips it)",
    )
    open_to_server = Leak("each client's upload: the server adds its noise only after it has seen the sum", "server", 3)
    others = tuple(leak for leak in perturbed.leaks if leak.ledger_line != 3)
    leaks = tuple(sorted((*others, open_to_server), key=lambda leak: leak.ledger_line))
    return Guarantee("mp-cdp", (*perturbed.claims, claim), leaks)
