"""A client of sums of ciphertexts: takes its keys, encrypts its uploads, and helps to open one sum a round.

Guarantees (tests/protocols/ciphers/test_halves.py): a box of another dealer, run or public key is refused, and so are
second, other keys; what is opened is asked for in the round of its own upload, under the run's key, and once a round; a
dealer deals once a run. What a client cannot see is *what* it helps to open: a server that does not follow the protocol
may ask for a single upload (ledger, line 19).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import AuthenticationError, ProtocolError
from bilateral.protocols.ciphers.boxes import key_id, open_key, seal_key
from bilateral.protocols.ciphers.cryptosystem import Cryptosystem, KeyHolder, SumOpener
from bilateral.protocols.ciphers.integers import IntegerFormat
from bilateral.protocols.ciphers.messages import (
    EncryptedUpload,
    KeyDealRequest,
    KeyDelivery,
    KeysDealt,
    OpeningPart,
    OpeningRequest,
)
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.messages import Upload
from bilateral.randomness import Randomness


class Dealer:
    """Whoever deals: a client, or a party without data."""

    def __init__(self, ring: KeyRing, system: Cryptosystem, randomness: Randomness) -> None:
        self._ring = ring
        self._system = system
        self._randomness = randomness
        self._public: bytes | None = None
        self._master: SumOpener | None = None
        self._asked = -1
        self.own: bytes | None = None
        """Its own private key, where the dealer is a client."""

    @property
    def has_dealt(self) -> bool:
        return self._public is not None

    def deal(self, request: KeyDealRequest) -> KeysDealt:
        ring, clients = self._ring, request.clients
        if request.run_id != ring.run_id:
            raise AuthenticationError(f"{ring.name}: the server asks for keys of another run.")
        if self._public is not None:
            raise ProtocolError(f"{ring.name} has dealt keys for this run already.", remedy="Use those.")
        if list(clients) != sorted(set(clients)) or not set(clients) <= set(ring.clients) or len(clients) < 2:
            raise ProtocolError(f"{ring.name}: expected two clients of this run or more, in order, got {clients}.")
        dealt = self._system.deal(clients, self._randomness.child("deal"))
        if self._system.dealer_opens:
            self._master = self._system.master(dealt.public, dealt.master)
        self._public = dealt.public
        boxes = tuple(
            b"" if name == ring.name else seal_key(ring, name, dealt.public, dealt.private[name]) for name in clients
        )
        self.own = dealt.private.get(ring.name)
        return KeysDealt(ring.run_id, dealt.public, clients, boxes)

    def help_open(self, message: OpeningRequest) -> OpeningPart:
        if self._master is None or self._public is None:
            raise ProtocolError(f"{self._ring.name} opens nothing: it dealt no keys that it keeps.")
        if message.key_id != key_id(self._public):
            raise ProtocolError(f"{self._ring.name}: the server asks to open what is under another key.")
        if message.round_index <= self._asked:
            raise ProtocolError(
                f"{self._ring.name} was asked to open two sums of round {message.round_index}, or an old one.",
                remedy="One sum a round is opened.",
            )
        part = self._master.help_open(message.request)
        self._asked = message.round_index
        return OpeningPart(message.round_index, message.key_id, part)


@dataclass
class _Keys:
    public: bytes
    holder: KeyHolder

    @property
    def key_id(self) -> bytes:
        return key_id(self.public)


class CipherClient:
    """One client's half. It deals, if the server asks it to (`dealer` is None where another party must)."""

    def __init__(
        self,
        ring: KeyRing,
        system: Cryptosystem,
        form: IntegerFormat,
        randomness: Randomness,
        *,
        named_dealer: str | None = None,
    ) -> None:
        self._ring = ring
        self._system = system
        self._form = form
        self._randomness = randomness
        self._named = named_dealer
        self._dealer = Dealer(ring, system, randomness) if named_dealer is None else None
        self._keys: _Keys | None = None
        self._uploaded = -1
        self._opened = -1

    def deal(self, request: KeyDealRequest) -> KeysDealt:
        if self._dealer is None:
            raise ProtocolError(f"{self._ring.name} does not deal in this run: {self._named} does.")
        dealt = self._dealer.deal(request)
        if self._dealer.own is not None:
            self._take(dealt.public, self._dealer.own)
        return dealt

    def receive_keys(self, message: KeyDelivery) -> None:
        ring = self._ring
        if message.run_id != ring.run_id:
            raise AuthenticationError(f"{ring.name}: the server delivers keys of another run.")
        if self._keys is not None:
            if message.public != self._keys.public:
                raise AuthenticationError(f"{ring.name}: the server showed a second, different key for one run.")
            return
        if self._named is not None and message.dealer != self._named:
            raise AuthenticationError(f"{ring.name}: keys of {message.dealer!r}, but {self._named} deals in this run.")
        if message.dealer == ring.name:
            raise AuthenticationError(f"{ring.name}: the server delivers keys in this client's own name.")
        self._take(message.public, open_key(ring, message.dealer, message.public, message.box))

    def encrypt(self, upload: Upload) -> EncryptedUpload:
        """The upload as one vector: all terms, then the statistics."""
        keys = self._expect_keys()
        if upload.round_index <= self._uploaded:
            raise ProtocolError(f"{self._ring.name} has uploaded in round {upload.round_index} already.")
        values = self._form.encode(_as_vector(upload), upload.weight, self._ring.name)
        found = EncryptedUpload(upload.round_index, keys.holder.encrypt(values), keys.key_id)
        self._uploaded = upload.round_index
        return found

    def help_open(self, message: OpeningRequest) -> OpeningPart:
        if self._system.dealer_opens and self._dealer is not None and self._dealer.has_dealt:
            return self._dealer.help_open(message)
        keys, name = self._expect_keys(), self._ring.name
        if message.key_id != keys.key_id:
            raise ProtocolError(f"{name}: the server asks to open what is under another key.")
        if message.round_index != self._uploaded or self._opened == message.round_index:
            raise ProtocolError(
                f"{name}: asked to open a sum of round {message.round_index}, in which it has not uploaded, or a "
                "second one.",
                remedy="One sum a round is opened, by those in it.",
            )
        part = keys.holder.help_open(message.request)
        self._opened = message.round_index
        return OpeningPart(message.round_index, message.key_id, part)

    def _take(self, public: bytes, private: bytes) -> None:
        holder = self._system.holder(self._ring.name, public, private, self._randomness.child("encryption"))
        self._keys = _Keys(public, holder)

    def _expect_keys(self) -> _Keys:
        if self._keys is None:
            raise ProtocolError(
                f"{self._ring.name} has no keys of this run yet.", remedy="Both sides must run the same plan."
            )
        return self._keys


def _as_vector(upload: Upload) -> Tensor:
    return torch.cat([upload.terms.double().flatten(), upload.statistics.double().flatten()])
