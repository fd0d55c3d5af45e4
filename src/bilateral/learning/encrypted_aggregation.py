"""Sums of ciphertexts as a round has them: keys once a run, encrypted uploads, and help with opening the sum.

    0. once a run: key request -> announcements, as under masks; then one party deals keys: deal request -> boxes
    1. a client's box travels before its first model
    2. the model -> encrypted uploads
    3. the sum goes to as many as must help -> parts

A message that is refused counts as no message, and its sender is out of the round; helpers that do not answer are
replaced by others that uploaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from bilateral.errors import ProtocolError, ThresholdError
from bilateral.learning.aggregation import Incident, expect
from bilateral.learning.exchange import Exchange, Packet
from bilateral.learning.halves import OpenedRound
from bilateral.learning.masked_aggregation import KeyAgreement
from bilateral.learning.uploading import announce
from bilateral.protocols.ciphers.client import CipherClient, Dealer
from bilateral.protocols.ciphers.messages import (
    EncryptedUpload,
    KeyDealRequest,
    KeyDelivery,
    KeysDealt,
    OpeningPart,
    OpeningRequest,
)
from bilateral.protocols.ciphers.server import CipherServer
from bilateral.protocols.mask.keys import KeyDirectory, KeyRing
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.membership import KeyRequest, RoundMembers
from bilateral.protocols.messages import Aggregate, Message, RoundModel, Upload


class EncryptedAggregation:
    """The server's side. `dealer`: a party without data that deals; None has the first client of the roster do it."""

    def __init__(
        self,
        server: CipherServer,
        run_id: bytes,
        names: Sequence[str],
        pinned: Mapping[str, bytes],
        dealer: str | None = None,
    ) -> None:
        self.server = server
        self._run_id = run_id
        self._dealer = dealer
        self.incidents: list[Incident] = []
        self.opened: OpenedRound | None = None
        everyone = [*names, *(() if dealer is None else (dealer,))]
        self._directory = KeyDirectory(run_id, everyone, pinned)
        needed = () if dealer is None else (dealer,)
        self._keys = KeyAgreement(run_id, everyone, self._directory.register, self.incidents, needed)
        self._delivered: set[str] = set()

    def open(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> dict[str, Packet]:
        known = self._keys.members(participants, exchange, self._directory.roster)
        if not self.server.has_keys:
            self._deal(round_index, known, exchange)
        self.server.open_round(round_index)
        return {name: self._packet(round_index, name) for name in known if name in self.server.holders}

    def take(self, round_index: int, sender: str, reply: Message) -> Packet:  # noqa: ARG002
        """Uploads are added when all are there."""
        return ()

    def close(
        self,
        round_index: int,
        replies: Mapping[str, Message],
        exchange: Exchange,
        sent: Packet,  # noqa: ARG002
    ) -> Aggregate:
        self._delivered.update(replies)
        self._keys.informed(list(replies))
        self._collect(round_index, replies, EncryptedUpload, self.server.collect_upload)
        waiting, needed = list(self.server.helpers()[0]), self.server.helpers()[1]
        request = self.server.opening_request()
        while needed and waiting:  # each that fails is replaced
            asked, waiting = waiting[:needed], waiting[needed:]
            found = exchange(round_index, dict.fromkeys(asked, (request,)))
            needed -= self._collect(round_index, found, OpeningPart, self.server.collect_part)
        return self.server.finish()

    def outsiders(self) -> frozenset[str]:
        return self._keys.outsiders()

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Keys are of a term; sums are the same under any."""

    def _deal(self, round_index: int, known: Sequence[str], exchange: Exchange) -> None:
        """Keys for everybody on the roster, by the dealer, or the first client that is there."""
        roster = self._directory.roster()
        clients = tuple(name for name in roster.clients if name != self._dealer)
        for dealer in (self._dealer,) if self._dealer is not None else known:
            request = KeyDealRequest(self._run_id, clients)
            replies = exchange(round_index, {dealer: self._keys.packet(dealer, request)})
            self._keys.informed(list(replies))
            dealt = self._collect(
                round_index, replies, KeysDealt, lambda sender, reply: self.server.take_keys(sender, reply, clients)
            )
            if dealt:
                return
        raise ThresholdError(
            f"Round {round_index}: nobody dealt keys for encrypted sums.", remedy="Wait until the dealer is there."
        )

    def _packet(self, round_index: int, name: str) -> Packet:
        """The roster and the box of a client that has not answered since it was first sent them."""
        if name in self._delivered:
            return ()
        delivery: Message | None = self.server.delivery(name)
        return self._keys.packet(name, delivery or RoundMembers(round_index, self.server.holders))

    def _collect(
        self,
        round_index: int,
        replies: Mapping[str, Message],
        kind: type[Message],
        collect: Callable[[str, Any], None],
    ) -> int:
        """How many of the replies were taken."""
        taken = 0
        for sender, reply in replies.items():
            try:
                collect(sender, expect(reply, kind, sender))
            except ThresholdError:
                raise
            except ProtocolError as error:
                self.incidents.append(Incident(round_index, sender, str(error)))
            else:
                taken += 1
        return taken


class EncryptingUploader:
    """The client's side."""

    accepts: tuple[type[Message], ...] = (KeyRequest, Roster, RoundMembers, KeyDealRequest, KeyDelivery, OpeningRequest)

    def __init__(self, client: CipherClient, keys: KeyRing) -> None:
        self._client = client
        self._keys = keys

    def handle(self, message: Message) -> Message | None:
        match message:
            case KeyRequest():
                return announce(self._keys, message)
            case Roster():
                self._keys.accept(message)
            case RoundMembers():
                pass  # follows the roster to the dealer, who has no box to be sent
            case KeyDealRequest():
                return self._client.deal(message)
            case KeyDelivery():
                self._client.receive_keys(message)
            case OpeningRequest():
                return self._client.help_open(message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is no message of encrypted sums.")
        return None

    def bind(self, model: RoundModel, *beside: Message) -> None:
        """Ciphertexts as published are not bound to the model."""

    def finish(self, upload: Upload) -> Message:
        return self._client.encrypt(upload)


class DealingParty:
    """A party without data that deals, and opens where dealers do."""

    def __init__(self, dealer: Dealer, keys: KeyRing) -> None:
        self._dealer = dealer
        self._keys = keys

    def handle(self, packet: Packet) -> Message:
        for message in packet:
            match message:
                case KeyRequest():
                    return announce(self._keys, message)
                case Roster():
                    self._keys.accept(message)
                case KeyDealRequest():
                    return self._dealer.deal(message)
                case OpeningRequest():
                    return self._dealer.help_open(message)
                case _:
                    raise ProtocolError(f"{self._keys.name} was sent {type(message).__name__}, and deals keys alone.")
        raise ProtocolError(f"{self._keys.name} was sent nothing that has an answer.")
