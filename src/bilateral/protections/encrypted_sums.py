"""Sums of ciphertexts in place of masks, for protections that bring a cryptosystem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from bilateral.learning.encrypted_aggregation import DealingParty, EncryptedAggregation, EncryptingUploader
from bilateral.learning.exchange import Party
from bilateral.protections.base import Rule, Vocabulary
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.sides import Sides, Summing
from bilateral.protocols.ciphers.client import CipherClient, Dealer
from bilateral.protocols.ciphers.cryptosystem import Cryptosystem
from bilateral.protocols.ciphers.integers import IntegerFormat
from bilateral.protocols.ciphers.messages import (
    EncryptedUpload,
    KeyDealRequest,
    KeyDelivery,
    KeysDealt,
    OpeningPart,
    OpeningRequest,
)
from bilateral.protocols.ciphers.server import CipherServer
from bilateral.protocols.guarantee import Leak
from bilateral.protocols.mask.keys import KeyRing

LINE: Final = 19
"""Of the ledger: what these ciphertexts do not hide."""
NUM_REPLIES: Final = 2
"""Of a client in a round: its upload, and its help with opening."""
OF_SUMS: Final = Leak("the sum of the uploads, who takes part, and every client's number of samples", "server", 12)
ALONE: Final = Rule(
    "encrypted sums of a single client",
    lambda mix: mix.num_participants < 2,
    "the sum over one client is that client's upload",
    "Use two clients or more a round.",
)
VOCABULARY: Final = Vocabulary(
    to_client=(KeyDealRequest, KeyDelivery, OpeningRequest),
    to_server=(KeysDealt, EncryptedUpload, OpeningPart),
    stages={KeyDealRequest: "dealing keys", OpeningRequest: "opening the sum"},
)
"""What all of them speak."""


def spoken_as(name: str) -> Vocabulary:
    """The same, under a name for people."""
    return replace(VOCABULARY, spoken=name)


@dataclass(frozen=True)
class EncryptedSums:
    """How the parties of a run sum under a cryptosystem. `weights`: public, of every client."""

    around: Groundwork
    system: Cryptosystem
    form: IntegerFormat
    weights: Mapping[str, int]

    def on(self, sides: Sides) -> Sides:
        """Both sides with sums of ciphertexts."""
        dealer = self.around.named_dealer
        helpers: dict[str, Callable[[KeyRing], Party]] = {} if dealer is None else {dealer: self._dealing_party}
        return replace(sides, summing=Summing(lambda: self._aggregation(sides), self._uploader), helpers=helpers)

    def _aggregation(self, sides: Sides) -> EncryptedAggregation:
        around, shape = self.around, sides.shape
        server = CipherServer(
            around.secrets.run_id,
            self.system,
            self.form,
            self.weights,
            (shape.num_terms, shape.num_parameters),
            shape.num_statistics,
        )
        secrets = around.secrets
        return EncryptedAggregation(server, secrets.run_id, around.names, secrets.pinned(), around.named_dealer)

    def _uploader(self, name: str) -> EncryptingUploader:
        ring, randomness = self.around.secrets.key_ring(name), self.around.secrets.stream("ciphers", name)
        client = CipherClient(ring, self.system, self.form, randomness, named_dealer=self.around.named_dealer)
        return EncryptingUploader(client, ring)

    def _dealing_party(self, ring: KeyRing) -> DealingParty:
        return DealingParty(Dealer(ring, self.system, self.around.secrets.stream("ciphers", ring.name)), ring)
