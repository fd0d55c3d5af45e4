"""MP-DP-Naive, an ablation of P2 (Eq. 7): every client adds normal noise to its perturbed gradient.

The noise is what one client needs by itself (`local_sigma`), and the perturbation is the ordinary one, whose ratio is a
quotient. Recovery multiplies the noise by that ratio too (Eq. 8): too little where the ratio is small, and much too
much where it is large. The paper has it to show why its own scheme is needed.

Formal guarantee (tests/protections/test_ablations.py): the recovered mean's noise on element i has the standard
deviation ratio_i * sigma / sqrt(K), given the round's ratios.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.mp_cdp.server import trained_elements
from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.messages import Upload
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery, SoftmaxReply
from bilateral.protocols.perturb.server import guarantee as perturbation_guarantee
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import Randomness, SecureRandomness


class MpDpNaiveClient:
    """A perturbing client that adds N(0, sigma^2) to the first term of its upload, and sends it with weight 1."""

    def __init__(
        self,
        inner: PerturbClient,
        model: nn.Module,
        graph: ScaleGraph,
        sigma: float,
        randomness: Randomness | None = None,
    ) -> None:
        self.name = inner.name
        self._inner = inner
        self._sigma = sigma
        self._randomness = randomness or SecureRandomness()
        self._trained = trained_elements(model, graph)

    def train(self, message: PerturbedModel, inputs: Tensor, targets: Tensor, weight: int) -> SoftmaxQuery | Upload:  # noqa: ARG002
        """`weight`, the number of samples, is not used: P2 averages clients equally (Eq. 9)."""
        sent = self._inner.train(message, inputs, targets, 1)
        return self._add_noise(sent) if isinstance(sent, Upload) else sent

    def receive(self, message: SoftmaxReply) -> Upload:
        return self._add_noise(self._inner.receive(message))

    def _add_noise(self, upload: Upload) -> Upload:
        # Frozen layers keep their place or move among themselves: an exchange never mixes parameters.
        noise = self._randomness.child("local noise", upload.round_index).normal(len(self._trained))
        terms = upload.terms.clone()
        terms[0].index_add_(0, self._trained, (self._sigma * noise).to(terms.dtype))
        return replace(upload, terms=terms)


def guarantee(settings: PerturbationSettings, epsilon: float, delta: float) -> Guarantee:
    """What the ablation would claim, and why it does not have it."""
    perturbed = perturbation_guarantee(settings)
    claim = Claim(
        "published differential privacy",
        f"({epsilon:g}, {delta:g})-differential privacy of the first uploaded term alone, per round",
        "an observer of that term",
        "conditional: every gradient of the *perturbed* model already has a norm of at most the assumed sensitivity "
        "(nobody clips it, and the true gradient's norm says nothing about it)",
    )
    bare = Leak("the noise terms and batch statistics of each upload: they carry no noise", "server", 3)
    others = tuple(leak for leak in perturbed.leaks if leak.ledger_line != 3)
    leaks = tuple(sorted((*others, bare), key=lambda leak: leak.ledger_line))
    return Guarantee("mp-dp-naive", (*perturbed.claims, claim), leaks)
