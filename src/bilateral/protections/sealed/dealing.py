"""What a dealer does: a client beside its own training, or a party of its own, without data (`SealedDealer`).

It draws two seeds for each step, one in common with the server and one with the client, and computes what the server
needs of both; the client has its seed alone. Everything is drawn for one step: nothing is dealt twice, and a round is
dealt for once.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bilateral.errors import ProtocolError
from bilateral.learning.uploading import announce
from bilateral.protections.sealed.boxes import SEED_BYTES, BoxContent, seal_box
from bilateral.protections.sealed.dealers import dealers_of
from bilateral.protections.sealed.messages import DealRequest, Dealt
from bilateral.protections.sealed.terms import SealedTerms
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import MaskOpening, Roster
from bilateral.protocols.membership import KeyRequest
from bilateral.protocols.messages import Message
from bilateral.protocols.share.training.parties import as_words, deal
from bilateral.randomness import Randomness


class Dealing:
    """Deals for whom it was drawn to deal for. `randomness`: fresh in a deployment."""

    def __init__(self, name: str, terms: SealedTerms, randomness: Randomness) -> None:
        self._name = name
        self._terms = terms
        self._randomness = randomness
        self._latest = -1

    def deal(self, keys: KeyRing, request: DealRequest, clients: Sequence[str]) -> Dealt:
        """`clients`: those it may deal for in this round. A refused request changes nothing."""
        what = f"{self._name}: DealRequest from the server"
        if request.round_index <= self._latest:
            raise ProtocolError(f"{what}: round {request.round_index} was dealt for, or is over.")
        if request.terms != self._terms.digest:
            raise ProtocolError(f"{what} is about other terms.", remedy="Both sides must run the same plan.")
        if list(request.clients) != sorted(set(request.clients)) or not request.clients:
            raise ProtocolError(f"{what}: the clients are not in order, or one comes twice, or there is none.")
        if strangers := set(request.clients).difference(clients):
            raise ProtocolError(f"{what}: {self._name} does not deal for {min(strangers)!r} in this round.")
        self._latest = request.round_index
        dealt = [self._deal_for(keys, name, request.round_index) for name in request.clients]
        return Dealt(
            request.round_index,
            request.clients,
            tuple(seed for seed, _, _ in dealt),
            tuple(box for _, box, _ in dealt),
            tuple(words for _, _, words in dealt),
        )

    def _deal_for(self, keys: KeyRing, client: str, round_index: int) -> tuple[bytes, bytes, Tensor]:
        # By round and client, whoever deals: a simulation that is resumed draws other dealers, and must go on alike.
        draws = self._randomness.child("round", round_index, client)
        with_server, with_client = draws.random_bytes(SEED_BYTES), draws.random_bytes(SEED_BYTES)
        step = self._terms.step(client, round_index)
        box = seal_box(keys, client, round_index, step.digest, BoxContent(with_client))
        return with_server, box, as_words(deal(step, with_server, with_client))


class SealedDealer:
    """A named dealer: it has no data, and takes no part in rounds besides."""

    def __init__(self, keys: KeyRing, terms: SealedTerms, randomness: Randomness) -> None:
        self.name = keys.name
        self._keys = keys
        self._members = tuple(terms.num_samples)
        self._dealing = Dealing(keys.name, terms, randomness)

    def handle(self, packet: Sequence[Message]) -> Message:
        """Take the messages of a packet in order, up to the first that has an answer."""
        for message in packet:
            match message:
                case KeyRequest():
                    return announce(self._keys, message)
                case Roster():
                    self._keys.accept(message)
                case DealRequest():
                    return self._dealing.deal(self._keys, message, self._members)
                case _:
                    raise ProtocolError(f"{self.name} deals, and was sent {type(message).__name__}.")
        raise ProtocolError(f"{self.name} was sent nothing that has an answer.")


def drawn_for(name: str, keys: KeyRing, opening: MaskOpening) -> list[str]:
    """For whom a participant deals in a round without a named dealer."""
    drawn = dealers_of(opening.participants, opening.round_index, keys.roster_digest)
    return [client for client, dealer in drawn.items() if dealer == name]
