"""The server's side of one federated training: its model, its optimiser and a protection."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bilateral.errors import NumericalRangeError, OutOfRangeError, ProtocolError
from bilateral.learning.aggregation import Aggregation, Incident
from bilateral.learning.exchange import Enough, Exchange, Packet, Unanswered
from bilateral.learning.halves import GradientCheck, PreparingHalf, ServerHalf
from bilateral.learning.optimiser import Optimiser
from bilateral.models.layout import ModelLayout
from bilateral.models.modes import evaluating
from bilateral.protocols.class_balance import ClassTotals, CountClasses, totals_of
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.messages import MaskedUpload
from bilateral.protocols.messages import Message, Question
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.perturb.messages import PerturbedModel
from bilateral.protocols.perturb.recovery_trial import RecoveryReport
from bilateral.protocols.placement import CPU
from bilateral.protocols.statistics import update_running_statistics

TakeStatistics = Callable[[nn.Module, ModelLayout, Tensor], None]
"""What the server's model makes of the clients' mean batch statistics."""


@dataclass
class Training:
    """The server's side of a run. `advance` runs one round with the clients behind an exchange."""

    protection: str
    model: nn.Module
    layout: ModelLayout
    server: ServerHalf
    aggregation: Aggregation
    optimiser: Optimiser
    num_rounds: int
    guarantee: Guarantee
    privacy: PrivacyReport | None = None
    check: GradientCheck | None = None
    """Before the first round."""
    counts_classes: bool = False
    """The loss has weights that follow from how often classes are there: the first round counts them."""
    class_totals: Tensor | None = None
    last_gradient: Tensor | None = None
    """As recovered from the last round's sum; with local steps, the mean change."""
    take_statistics: TakeStatistics = update_running_statistics
    device: torch.device = CPU
    """Where the model is measured; it lives on the CPU."""

    def check_recovery(self) -> RecoveryReport | None:
        """Try on the server's own inputs whether rounds would recover the gradient of plain training.

        Raises `RecoveryError` if not. Changes nothing; None where gradients are plain autograd's by themselves.
        """
        return self.check.run(self.model) if self.check is not None else None

    def disguised(self, round_index: int) -> PerturbedModel | None:
        """What clients would be sent in a round that is only looked at; None if they are sent the model itself."""
        opening = self.server.start_round(round_index)
        return opening if isinstance(opening, PerturbedModel) else None

    def advance(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> tuple[str, ...]:
        """One round; returns whose uploads are in it. The model changes only after every upload has been checked.

        1. the aggregation prepares the round (masks: clients share their seeds), then the server's half if it has to
           (sealed training: dealers deal); whom that leaves out is an incident
        2. the server sends the round's model to those who are still there
        3. each client trains; with the published cross entropy it asks the server once in between; and uploads
           (a question that makes no sense is an incident, and its sender is out of the round)
        4. the aggregation makes one sum of the uploads (masks: clients help to unmask it)
        5. the server recovers the gradient from the sum and takes a step
        """
        opened = self._prepared(round_index, self.aggregation.open(round_index, participants, exchange), exchange)
        counting = self.is_to_count
        model, beside = self._round_model(round_index)
        packets = {name: (*before, *beside, model) for name, before in opened.items()}
        replies = exchange(round_index, packets, partial(self._answer, round_index))
        answered = {name: reply for name, reply in replies.items() if not isinstance(reply, Question | Unanswered)}
        total = self.aggregation.close(round_index, answered, exchange, (*beside, model))
        if counting:
            self.class_totals, self.last_gradient = totals_of(total.terms, self.layout.num_outputs), None
            return total.contributors
        update, contributors = self.server.recover(total), total.contributors
        del total, model, packets, replies, answered  # each as large as the model, or larger
        if not bool(torch.isfinite(update.gradient).all()):
            raise NumericalRangeError(
                f"The aggregated gradient of round {round_index} holds NaN or infinite values.",
                remedy="Lower the learning rate and start anew.",
            )
        self.last_gradient = update.gradient
        self.optimiser.step(update.gradient, round_index, self.num_rounds)
        self.take_statistics(self.model, self.layout, update.statistics)
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            raise NumericalRangeError(
                f"The model's weights became NaN or infinite in round {round_index}.",
                remedy="Lower the learning rate and start anew.",
            )
        return contributors

    @property
    def is_to_count(self) -> bool:
        """Whether the next round counts classes, and trains nothing."""
        return self.counts_classes and self.class_totals is None

    def _round_model(self, round_index: int) -> tuple[Message, Packet]:
        """What clients train on, and what they are told beside it."""
        if self.is_to_count:
            return CountClasses(round_index, torch.zeros(0)), ()
        model = self.server.start_round(round_index)
        return model, (() if self.class_totals is None else (ClassTotals(round_index, self.class_totals),))

    def _prepared(self, round_index: int, opened: dict[str, Packet], exchange: Exchange) -> dict[str, Packet]:
        """What precedes the model, for each client that is still there."""
        if not isinstance(self.server, PreparingHalf):
            return opened
        told = self.aggregation.opened
        assert told is not None, "a half that prepares rounds is built under masks"
        prepared = self.server.prepare(told, tuple(opened), exchange)
        self.aggregation.incidents.extend(Incident(round_index, who, why) for who, why in prepared.incidents)
        return {name: (*opened[name], *packet) for name, packet in prepared.packets.items()}

    def _answer(self, round_index: int, sender: str, reply: Message) -> Packet:
        """Only a question of the protection is answered; uploads, masked or not, end the conversation."""
        try:
            if isinstance(reply, Question):
                return (self.server.answer(sender, reply),)
            if isinstance(self.server, PreparingHalf) and isinstance(reply, MaskedUpload):
                self.server.expect_finished(sender)
        except OutOfRangeError:
            raise
        except ProtocolError as error:
            self.aggregation.incidents.append(Incident(round_index, sender, str(error)))
            return Enough.keeping(Unanswered(round_index))
        return self.aggregation.take(round_index, sender, reply)

    def weights(self) -> Tensor:
        """All parameters as one float64 vector, those that do not travel too."""
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()]).double()

    def predict(self, inputs: Tensor) -> Tensor:
        """The true model in evaluation mode."""
        return predict_with(self.model, self.device)(inputs)


def predict_with(model: nn.Module, device: torch.device = CPU) -> Callable[[Tensor], Tensor]:
    """Inputs -> outputs of a model in evaluation mode; on another device, of a copy of it as it is now."""
    placed = model if device == CPU else copy.deepcopy(model).to(device)

    def predict(inputs: Tensor) -> Tensor:
        with evaluating(placed), torch.no_grad():
            result: Tensor = placed(inputs.to(device))
        return result.cpu()

    return predict


def relative_difference(weights: Tensor, reference: Tensor) -> float:
    """|weights - reference| / |reference| in the Euclidean norm."""
    return float((weights - reference).norm() / reference.norm().clamp_min(1e-300))
