"""The client's half of sealed training: it has a batch, and learns nothing of the model.

1. `opened`: who deals for it is drawn from what everybody is shown; it deals for another, unless a named party does
2. `receive(SealedWeights)`: the server's weights under a mask, and the box of its dealer, once a round
3. `train`, then `receive(SealedTurnReply)`: the second party of its step, turn by turn; in the end its part of the
   gradient, ring words that are uniform without the server's part

Formal guarantee (tests/protections/sealed/test_views.py): all that it receives is uniform to it, whatever the weights
are, as long as it and its dealer do not tell each other what they know.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import DataError, NumericalRangeError, ProtocolError, SealedShareError
from bilateral.protections.sealed.boxes import SEED_BYTES, open_box
from bilateral.protections.sealed.dealers import dealers_of
from bilateral.protections.sealed.dealing import Dealing
from bilateral.protections.sealed.messages import (
    DealComplaint,
    DealRequest,
    RangeLeft,
    SealedModel,
    SealedTurn,
    SealedTurnReply,
    SealedWeights,
)
from bilateral.protections.sealed.network import SealedNetwork
from bilateral.protections.sealed.terms import SealedTerms
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import MaskOpening
from bilateral.protocols.messages import Message, Upload
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.training.parties import SecondParty
from bilateral.protocols.transport import SERVER
from bilateral.randomness import Randomness


@dataclass(repr=False)
class _Opened:
    """A round that was opened: with which keys, who deals for this client, and for whom it deals."""

    keys: KeyRing
    round_index: int
    dealer: str
    deals_for: tuple[str, ...]
    is_agreed: bool = False
    """Others were shown the same: else each client could be told that one and the same colluder was drawn for it."""


@dataclass(repr=False)
class _Step:
    """The step of a round. Secret. `speaker` is there once it has begun, `parts` until then."""

    round_index: int
    party: SecondParty
    parts: tuple[Tensor, ...]
    weight: int = 0
    number: int = 0
    speaker: Speaker[Tensor] | None = None


class SealedClient:
    """One object a run: it remembers which rounds it must not repeat, since two steps under one mask show a difference.

    `dealer`: the party that deals for all; without one it deals for another client in every round itself, from
    `dealing`.
    """

    def __init__(
        self, name: str, network: SealedNetwork, terms: SealedTerms, dealer: str | None, dealing: Randomness
    ) -> None:
        self.name = name
        self._network = network
        self._terms = terms
        self._named_dealer = dealer
        self._dealing = Dealing(name, terms, dealing)
        self._opened: _Opened | None = None
        self._latest = -1
        self._step: _Step | None = None

    def opened(self, keys: KeyRing, opening: MaskOpening) -> None:
        """Later attempts at a round are about an upload that is there: the dealers are those of the first."""
        if opening.attempt or (self._opened is not None and opening.round_index <= self._opened.round_index):
            return
        drawn = dealers_of(opening.participants, opening.round_index, keys.roster_digest, self._named_dealer)
        deals_for = tuple(name for name, dealer in drawn.items() if dealer == self.name)
        self._opened = _Opened(keys, opening.round_index, drawn[self.name], deals_for)
        self._step = None

    def agreed(self, round_index: int) -> None:
        """Shares of the others opened, which are bound to the opening."""
        if self._opened is not None and self._opened.round_index == round_index:
            self._opened.is_agreed = True

    def receive(self, message: Message) -> Message | None:
        match message:
            case DealRequest():
                opened = self._current(message.round_index, "DealRequest")
                return self._dealing.deal(opened.keys, message, opened.deals_for)
            case SealedWeights():
                return self._take(message)
            case SealedTurnReply():
                return self._hear(message)
            case _:
                raise ProtocolError(f"{self.name} received {type(message).__name__}, which sealed training has not.")

    def train(self, message: SealedModel, inputs: Tensor, targets: Tensor, weight: int) -> Message:
        step = self._step
        if step is None or step.speaker is not None or message.round_index != step.round_index:
            raise ProtocolError(
                f"{self.name}: the server sent no weights for round {message.round_index}.",
                remedy="Both sides must run the same plan.",
            )
        if message.terms != self._terms.digest:
            raise ProtocolError(
                f"{self.name}: the server trains on other terms.", remedy="Both sides must run the same plan."
            )
        if weight != self._terms.num_samples[self.name]:
            raise DataError(f"{self.name} told {self._terms.num_samples[self.name]} samples, and has {weight}.")
        inputs = self._network.through_front(message.front, inputs)
        step.weight = weight
        step.speaker = Speaker(step.party.work(inputs, targets), SERVER)
        return self._go_on(step, step.speaker, step.parts)

    def _take(self, message: SealedWeights) -> DealComplaint | None:
        """The weights of a round, and the box: once, since a box is good for one step."""
        opened = self._current(message.round_index, "SealedWeights")
        what = f"{self.name}: SealedWeights from the server"
        if message.round_index <= self._latest:
            raise ProtocolError(f"{what}: round {message.round_index} had its weights before.")
        if not opened.is_agreed:
            raise ProtocolError(
                f"{what}: they came before the shares of the others, who might have been shown other participants.",
                remedy="Both sides must run the same version.",
            )
        if message.dealer != opened.dealer:
            raise ProtocolError(
                f"{what}: {message.dealer[:100]!r} is said to have dealt, but {opened.dealer} was drawn.",
                remedy="Both sides must run the same plan; a server cannot choose who deals.",
            )
        if len(message.seed) != SEED_BYTES:
            raise ProtocolError(f"{what}: expected a seed of {SEED_BYTES} bytes, got {len(message.seed)}.")
        self._latest = message.round_index
        terms = self._terms.step(self.name, message.round_index)
        try:
            content = open_box(opened.keys, opened.dealer, message.round_index, terms.digest, message.box)
        except SealedShareError:  # the dealer's fault or the server's; this client stays out of the round
            return DealComplaint(message.round_index, opened.dealer)
        party = SecondParty(terms, message.weights, content.seed, message.seed, first=SERVER)
        self._step = _Step(message.round_index, party, message.parts)
        return None

    def _hear(self, message: SealedTurnReply) -> Message:
        step = self._step
        speaker = None if step is None else step.speaker
        what = f"{self.name}: SealedTurnReply from the server"
        if step is None or speaker is None or message.round_index != step.round_index:
            raise ProtocolError(f"{what} is of round {message.round_index}, where no step is under way.")
        if message.number != step.number:
            raise ProtocolError(f"{what}: expected turn {step.number}, got {message.number}.")
        step.number += 1
        return self._go_on(step, speaker, message.parts)

    def _go_on(self, step: _Step, speaker: Speaker[Tensor], parts: tuple[Tensor, ...]) -> Message:
        try:
            speaker.hear(parts, must_lead=False)
        except NumericalRangeError:
            self._step = None
            return RangeLeft(step.round_index, speaker.take_told())
        told = speaker.take_told()
        if not speaker.is_done or told:
            return SealedTurn(step.round_index, step.number, told)
        self._step = None
        words = speaker.result
        return Upload(step.round_index, step.weight, words[None], torch.zeros(0, dtype=torch.float64))

    def _current(self, round_index: int, what: str) -> _Opened:
        if self._opened is None or round_index != self._opened.round_index:
            raise ProtocolError(f"{self.name}: {what} from the server is of round {round_index}, which is not open.")
        return self._opened
