"""The messages of sums of ciphertexts: keys that a dealer deals, encrypted uploads, and help with opening a sum."""

from __future__ import annotations

from dataclasses import dataclass

from bilateral.protocols.messages import HiddenUpload, Message


@dataclass(frozen=True)
class KeyDealRequest(Message):
    """Server to dealer, once a run: deal keys to these clients."""

    run_id: bytes
    clients: tuple[str, ...]


@dataclass(frozen=True)
class KeysDealt(Message):
    """Dealer to server: the public key, and a box for each client that it alone opens."""

    run_id: bytes
    public: bytes
    clients: tuple[str, ...]
    boxes: tuple[bytes, ...]


@dataclass(frozen=True)
class KeyDelivery(Message):
    """Server to client: its box and the public key, from this dealer."""

    run_id: bytes
    dealer: str
    public: bytes
    box: bytes


@dataclass(frozen=True)
class EncryptedUpload(HiddenUpload):
    """An upload under the run's key, whose digest is `key_id`."""

    key_id: bytes


@dataclass(frozen=True)
class OpeningRequest(Message):
    """Server to those who help: what is to be opened in this round."""

    round_index: int
    key_id: bytes
    request: bytes


@dataclass(frozen=True)
class OpeningPart(Message):
    """What one helper adds to the opening of a round's sum."""

    round_index: int
    key_id: bytes
    part: bytes
