"""MP_Server and MU_Server, the server's half of P2's scheme (Algorithms 1 and 3).

1. `start_round` draws scale factors by Eq. (13) and sends the expanded, perturbed model (Eq. 15)
2. clients answer with noisy uploads (`published.py`)
3. `recover` undoes the perturbation of their mean (Eq. 22) and returns the gradient in the original model's order

Formal guarantee (tests/protocols/noise/test_published.py): without noise, the recovered gradient is the mean of the
clients' plain gradients, up to rounding.
"""

from __future__ import annotations

from torch import Tensor

from bilateral.errors import ProtocolError, ThresholdError
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate
from bilateral.protocols.noise.published_model import PublishedModel, published_settings
from bilateral.protocols.perturb.messages import PerturbedModel
from bilateral.protocols.perturb.secrets import RoundSecrets
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.randomness import Randomness


class PublishedServer:
    """Owns the true model and the secrets. Clients see the expanded network, the optimiser the original one.

    `num_clients` is the number of a round's participants; set it anew where that changes.
    """

    def __init__(
        self,
        model: PublishedModel,
        num_clients: int,
        num_partitions: int = 1,
        randomness: Randomness | None = None,
        calibration_inputs: Tensor | None = None,
    ) -> None:
        self._model = model
        self.num_clients = num_clients
        self._inner = PerturbServer(
            model.model,
            model.graph,
            published_settings(num_partitions, model.graph.norm_inputs),
            randomness,
            calibration_inputs,
            draw_factors=model.factors.draw,
        )

    def recover_one(self, total: Aggregate) -> RecoveredUpdate:
        """What recovery makes of a sum that still carries pairwise noise, such as one upload alone (ledger line 4)."""
        update = self._inner.recover(total)
        return RecoveredUpdate(self._model.to_original(update.gradient), update.statistics)

    @property
    def secrets(self) -> RoundSecrets:
        """The current round's, for their owner."""
        return self._inner.secrets

    def start_round(self, round_index: int) -> PerturbedModel:
        return self._inner.start_round(round_index)

    def answer(self, sender: str, message: Message) -> Message:
        raise ProtocolError(f"{sender} sent {type(message).__name__}, but P2's scheme has no exchange inside a round.")

    def recover(self, total: Aggregate) -> RecoveredUpdate:
        """Refuses a sum that is not of all clients, with weight 1 each: the pairwise noise would still be in it."""
        if total.total_weight != self.num_clients:
            raise ThresholdError(
                f"The sum of round {total.round_index} has weight {total.total_weight}, expected {self.num_clients}: "
                "every participant once, with weight 1.",
                remedy="P2's noise survives no dropout; repeat the round with those who are there.",
            )
        return self.recover_one(total)

    def state_tensors(self) -> dict[str, Tensor]:
        return self._inner.state_tensors()

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._inner.load_state_tensors(tensors)
