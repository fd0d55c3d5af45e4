"""The server of sums of ciphertexts: hands boxes on, adds what it cannot read, and gets the sum opened.

Guarantees (tests/protocols/ciphers/test_halves.py): an upload of another round or key, of a stranger, or sent twice is
refused by its sender's name and changes nothing; a sum that does not open is a `LostSumError`, and never wrong numbers
(CKKS and functional encryption are opened by one party, which is believed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from bilateral.errors import ProtocolError, ThresholdError
from bilateral.protocols.ciphers.boxes import key_id
from bilateral.protocols.ciphers.cryptosystem import Cryptosystem, Opener
from bilateral.protocols.ciphers.integers import IntegerFormat
from bilateral.protocols.ciphers.messages import EncryptedUpload, KeyDelivery, KeysDealt, OpeningPart, OpeningRequest
from bilateral.protocols.messages import Aggregate


class CipherServer:
    """The server's half. `weights`: every client's weight in the average, which is public."""

    def __init__(
        self,
        run_id: bytes,
        system: Cryptosystem,
        form: IntegerFormat,
        weights: Mapping[str, int],
        shape: tuple[int, int],
        num_statistics: int,
    ) -> None:
        self._run_id = run_id
        self.system = system
        self.form = form
        self._weights = dict(weights)
        self._shape = shape
        self._num_statistics = num_statistics
        self._dealt: KeysDealt | None = None
        self._dealer = ""
        self._opener: Opener | None = None
        self._round = -1
        self._uploads: dict[str, bytes] = {}
        self._parts: dict[str, bytes] = {}
        self._request = b""

    @property
    def num_values(self) -> int:
        return self._shape[0] * self._shape[1] + self._num_statistics

    def weight_of(self, client: str) -> int:
        return self._weights[client]

    @property
    def opener(self) -> Opener:
        """What the server adds and opens by."""
        return self._expect_open()[1]

    @property
    def has_keys(self) -> bool:
        return self._dealt is not None

    @property
    def holders(self) -> tuple[str, ...]:
        """Who was dealt keys."""
        return self._dealt.clients if self._dealt is not None else ()

    def take_keys(self, dealer: str, dealt: KeysDealt, clients: Sequence[str]) -> None:
        """What the dealer has dealt to just these."""
        if dealt.run_id != self._run_id or dealt.clients != tuple(clients) or len(dealt.boxes) != len(clients):
            raise ProtocolError(f"{dealer} dealt keys for another run, or to others than it was asked to.")
        self._opener = self.system.opener(dealt.public)
        self._dealt, self._dealer = dealt, dealer

    def delivery(self, client: str) -> KeyDelivery | None:
        """The client's box; None for the dealer, who has its own keys."""
        assert self._dealt is not None
        if client == self._dealer:
            return None
        place = self._dealt.clients.index(client)
        return KeyDelivery(self._run_id, self._dealer, self._dealt.public, self._dealt.boxes[place])

    def open_round(self, round_index: int) -> None:
        self._round, self._uploads, self._parts = round_index, {}, {}

    def collect_upload(self, sender: str, upload: EncryptedUpload) -> None:
        dealt, opener = self._expect_open()
        if upload.round_index != self._round:
            raise ProtocolError(
                f"The encrypted upload from {sender} is of round {upload.round_index}, expected {self._round}.",
                remedy="It came late or was sent twice; it is not used.",
            )
        if sender not in dealt.clients:
            raise ProtocolError(f"{sender} has no keys of this run, and sent an encrypted upload.")
        if sender in self._uploads:
            raise ProtocolError(f"{sender} sent two encrypted uploads in round {self._round}.")
        if upload.key_id != key_id(dealt.public):
            raise ProtocolError(f"The upload from {sender} is under another key than the run's.")
        opener.check(upload.ciphertext, self.num_values, sender)
        self._uploads[sender] = upload.ciphertext

    def helpers(self) -> tuple[tuple[str, ...], int]:
        """Who may help to open the sum, and how many of them must."""
        dealt, _ = self._expect_open()
        if len(self._uploads) < 2:
            raise ThresholdError(
                f"Round {self._round} has {len(self._uploads)} encrypted uploads, and a sum has two or more.",
                remedy="Wait until more clients are there.",
            )
        if self.system.dealer_opens:
            return (self._dealer,), 1
        return tuple(sorted(self._uploads)), self.system.num_helpers(len(dealt.clients))

    def opening_request(self) -> OpeningRequest:
        dealt, opener = self._expect_open()
        self._request = opener.request(self._uploads)
        return OpeningRequest(self._round, key_id(dealt.public), self._request)

    def collect_part(self, sender: str, part: OpeningPart) -> None:
        dealt, opener = self._expect_open()
        if part.round_index != self._round or part.key_id != key_id(dealt.public):
            raise ProtocolError(f"What {sender} sent is no part of the sum of round {self._round}.")
        opener.check_part(part.part, self.num_values, sender)
        self._parts[sender] = part.part

    def finish(self) -> Aggregate:
        _, opener = self._expect_open()
        _, needed = self.helpers()
        if len(self._parts) < needed:
            raise ThresholdError(
                f"Round {self._round}: {len(self._parts)} helped to open the sum, and {needed} must.",
                remedy="Wait until more clients are there.",
            )
        integers = opener.open(self._uploads, self._request, self._parts, self.num_values)
        values: Tensor = self.form.decode(integers)
        count = self._shape[0] * self._shape[1]
        terms, statistics = values[:count], values[count:]
        inside = tuple(sorted(self._uploads))
        total = sum(self._weights[name] for name in inside)
        return Aggregate(self._round, total, terms.reshape(self._shape), statistics, inside)

    def _expect_open(self) -> tuple[KeysDealt, Opener]:
        if self._dealt is None or self._opener is None:
            raise ProtocolError("There are no keys for encrypted sums yet.")
        return self._dealt, self._opener
