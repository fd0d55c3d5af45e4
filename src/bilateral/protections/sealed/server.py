"""The server's half of sealed training: it has the weights, and learns the sum of the gradients.

1. `prepare`: dealers deal; each client's weights are masked, with a mask of its own
2. `answer`: turn by turn, the first party of every client's step; its parts of the gradients stay here
3. `recover`: its own parts of exactly those clients that are in the sum, and the sum, are the gradient

Formal guarantee (tests/protections/sealed/test_views.py): what comes from one client is uniform to the server, whatever
the batch is, as long as it and the client's dealer do not tell each other what they know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bilateral.errors import LostSumError, NumericalRangeError, OutOfRangeError, ProtocolError, ThresholdError
from bilateral.learning.exchange import Exchange, Packet, Unusable
from bilateral.learning.halves import OpenedRound, Preparation
from bilateral.protections.sealed.boxes import SEED_BYTES
from bilateral.protections.sealed.dealers import dealers_of
from bilateral.protections.sealed.messages import (
    DealComplaint,
    DealRequest,
    Dealt,
    RangeLeft,
    SealedModel,
    SealedTurn,
    SealedTurnReply,
    SealedWeights,
)
from bilateral.protections.sealed.network import SealedNetwork
from bilateral.protections.sealed.terms import SealedTerms
from bilateral.protocols.mask.keys import roster_digest
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate
from bilateral.protocols.share.gates.expected import expect_count
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.training.parties import FirstParty, from_words
from bilateral.protocols.share.training.roles import FirstModel
from bilateral.protocols.share.training.terms import StepTerms
from bilateral.randomness import Randomness


@dataclass(repr=False)
class _Step:
    """One client's step, as far as it is. Secret."""

    dealer: str
    speaker: Speaker[Tensor]
    number: int = 0


class _Beginning:
    """What the server has in the clear in a round: one model, with limits for each size of step."""

    def __init__(
        self, network: SealedNetwork, model: nn.Module, terms: SealedTerms, examples: Tensor, num_clients: int
    ) -> None:
        self._network, self._num_clients = network, num_clients
        self._first = network.first_model(model, terms.whole)
        self._through = network.through_front(network.front_state(model), examples)
        self._known: dict[bytes, FirstModel] = {}

    def model_for(self, step: StepTerms) -> FirstModel:
        if step.digest not in self._known:
            self._known[step.digest] = self._network.with_limits(self._first, step, self._through, self._num_clients)
        return self._known[step.digest]


@dataclass(repr=False)
class _Round:
    index: int = -1
    steps: dict[str, _Step] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class _ForClient:
    dealer: str
    seed: bytes
    """In common with the dealer."""
    box: bytes
    dealt: tuple[Tensor, ...]


class SealedServer:
    """`dealer`: a named party that deals for all; None where participants deal for each other. `examples`: a few inputs
    of the server's own, by which it sizes its limits."""

    def __init__(
        self,
        model: nn.Module,
        network: SealedNetwork,
        terms: SealedTerms,
        dealer: str | None,
        randomness: Randomness,
        examples: Tensor,
    ) -> None:
        self._model = model
        self._examples = examples
        self._own_parts: dict[str, Tensor] = {}
        self._network = network
        self._terms = terms
        self._dealer = dealer
        self._randomness = randomness.child("sealed server")
        self._round = _Round()

    def start_round(self, round_index: int) -> SealedModel:
        return SealedModel(round_index, torch.zeros(0), self._terms.digest, self._network.front_state(self._model))

    def prepare(self, opened: OpenedRound, names: tuple[str, ...], exchange: Exchange) -> Preparation:
        """Clients whose dealer is gone, or deals what cannot be used, are out of the round."""
        index, opening = opened.round_index, opened.opening
        self._round, self._own_parts = _Round(index), {}
        drawn = dealers_of(opening.participants, index, roster_digest(opened.roster), self._dealer)
        asked = defaultdict(list)
        for name in sorted(names):
            if self._dealer is not None or drawn[name] in names:
                asked[drawn[name]].append(name)
        without = [
            (name, f"{drawn[name]}, who would deal for {name}, is not there.")
            for name in names
            if name not in asked[drawn[name]]
        ]
        dealt, refused = self._ask_dealers(opened, asked, exchange)
        without += refused
        packets: dict[str, Packet] = {}
        begin = _Beginning(self._network, self._model, self._terms, self._examples, len(dealt))
        for name in names:
            if name in dealt:
                packets[name] = (self._begin(name, index, dealt[name], begin.model_for(self._terms.step(name, index))),)
        return Preparation(packets, tuple(without))

    def answer(self, sender: str, message: Message) -> SealedTurnReply:
        step = self._round.steps.get(sender)
        what = f"{type(message).__name__} from {sender}"
        if not isinstance(message, SealedTurn | DealComplaint | RangeLeft):
            raise ProtocolError(f"{what} is no message of sealed training.")
        if step is None or message.round_index != self._round.index:
            raise ProtocolError(
                f"{what} is of round {message.round_index}, and no step of {sender} is under way there.",
                remedy="It came late or was sent twice; it is not used.",
            )
        try:
            return self._turn(sender, step, message)
        except ProtocolError:
            del self._round.steps[sender]  # what comes after it is refused
            raise

    def expect_finished(self, sender: str) -> None:
        step = self._round.steps.get(sender)
        if step is None or not step.speaker.is_done:
            raise ProtocolError(f"{sender} sent its upload before its step was done; it is not used.")

    def recover(self, total: Aggregate) -> RecoveredUpdate:
        """The gradient, decoded once. The round is over afterwards."""
        steps, self._round = self._round.steps, _Round()
        self._own_parts = {name: steps[name].speaker.result for name in total.contributors}
        told = sum(self._terms.num_samples[name] for name in total.contributors)
        if total.total_weight != told:
            raise LostSumError(
                f"The weights in the sum are {total.total_weight}, and its clients have told {told} samples.",
                remedy="One of them does not follow the protocol. The sum of this round is lost; go on with the next.",
            )
        return self.recover_one(total)

    def recover_one(self, total: Aggregate) -> RecoveredUpdate:
        """Of any sum of words of the last round, also of one upload alone, with its parts of whoever is in it."""
        words = total.terms[0].clone()
        for name in total.contributors:
            words += self._own_parts[name]
        told = sum(self._terms.num_samples[name] for name in total.contributors)
        factor = self._terms.largest_weight(total.round_index) / told
        gradient = factor * self._network.gradient(self._model, self._terms.whole, words)
        return RecoveredUpdate(gradient, torch.zeros(0, dtype=torch.float64))

    @property
    def secrets(self) -> None:
        """Clients are sent no model, so there is none that would be disguised."""

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Nothing is kept between rounds but the model."""

    def _ask_dealers(
        self, opened: OpenedRound, asked: Mapping[str, Sequence[str]], exchange: Exchange
    ) -> tuple[dict[str, _ForClient], list[tuple[str, str]]]:
        """What was dealt for each client; and incidents: (who, why)."""
        index = opened.round_index
        # A named dealer has seen no opening, which the roster travels with. The same one again is no matter.
        first: Packet = () if self._dealer is None else (opened.roster,)
        packets = {
            dealer: (*first, DealRequest(index, tuple(clients), self._terms.digest))
            for dealer, clients in asked.items()
            if clients
        }
        replies = exchange(index, packets)
        dealt: dict[str, _ForClient] = {}
        refused: list[tuple[str, str]] = []
        for dealer, clients in asked.items():
            if not clients:
                continue
            try:
                found = _checked(dealer, clients, index, replies.get(dealer), self._terms)
            except ProtocolError as error:
                if self._dealer is not None:
                    raise ThresholdError(
                        f"Round {index + 1} cannot be dealt for: {error}",
                        remedy=f"Bring {dealer} back; the model is as it was.",
                    ) from error
                refused += [(dealer, str(error)), *((name, f"{dealer} did not deal for {name}.") for name in clients)]
            else:
                dealt.update(found)
        return dealt, refused

    def _begin(self, name: str, index: int, dealt: _ForClient, model: FirstModel) -> SealedWeights:
        seed = self._randomness.child("round", index, name).random_bytes(SEED_BYTES)
        terms = self._terms.step(name, index)
        first = FirstParty(terms, model, dealt.dealt, dealt.seed, seed, dealer=dealt.dealer)
        speaker = Speaker(first.work(), name)
        self._round.steps[name] = _Step(dealt.dealer, speaker)
        return SealedWeights(index, dealt.dealer, first.masked_weights(), dealt.box, seed, speaker.take_told())

    def _see_for_itself(self, sender: str, step: _Step, message: RangeLeft) -> None:
        """Ends the run if numbers of the step left their range: one client's word alone does not."""
        try:
            step.speaker.hear(message.parts, must_lead=False)
        except NumericalRangeError as error:
            raise _out_of_range(sender, message.round_index) from error

    def _turn(self, sender: str, step: _Step, message: SealedTurn | DealComplaint | RangeLeft) -> SealedTurnReply:
        if isinstance(message, DealComplaint):
            raise ProtocolError(f"{sender} cannot use what {step.dealer} dealt for it; it is out of the round.")
        if isinstance(message, RangeLeft):
            self._see_for_itself(sender, step, message)
            raise ProtocolError(f"{sender} says that numbers of its batch are out of range; it is out of the round.")
        if message.number != step.number:
            raise ProtocolError(
                f"SealedTurn from {sender}: expected turn {step.number} of its step, got {message.number}."
            )
        step.number += 1
        try:
            step.speaker.hear(message.parts)
        except NumericalRangeError as error:
            raise _out_of_range(sender, message.round_index) from error
        return SealedTurnReply(message.round_index, message.number, step.speaker.take_told())


def _checked(
    dealer: str, clients: Sequence[str], round_index: int, reply: Message | None, terms: SealedTerms
) -> dict[str, _ForClient]:
    if reply is None:
        raise ProtocolError(f"{dealer}, who deals, did not answer.")
    if isinstance(reply, Unusable):
        raise ProtocolError(reply.reason)
    if not isinstance(reply, Dealt):
        raise ProtocolError(f"{dealer} sent {type(reply).__name__}, expected Dealt.")
    if reply.round_index != round_index or list(reply.clients) != list(clients):
        raise ProtocolError(f"Dealt from {dealer} is of another round, or for others than it was asked for.")
    if not len(reply.seeds) == len(reply.boxes) == len(clients) or any(len(s) != SEED_BYTES for s in reply.seeds):
        raise ProtocolError(f"Dealt from {dealer}: expected a seed of {SEED_BYTES} bytes and a box for each client.")
    expect_count(dealer, "words", len(reply.words), len(clients))
    columns = zip(clients, reply.seeds, reply.boxes, reply.words, strict=True)
    return {
        name: _ForClient(dealer, seed, box, from_words(terms.step(name, round_index), words, dealer))
        for name, seed, box, words in columns
    }


def _out_of_range(sender: str, round_index: int) -> OutOfRangeError:
    return OutOfRangeError(
        f"Round {round_index + 1}: a number of {sender}'s sealed step left its range; nothing was learned from this "
        "round, and the model is as it was before.",
        remedy="Normalise the inputs, lower the learning rate, or use weight decay; then start anew.",
    )
