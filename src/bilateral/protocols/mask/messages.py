"""The messages of secure aggregation, in the order in which they are sent.

Once a run:
a. `KeyAnnouncement`    client -> server   its key of the run, signed by its long-lived identity
b. `Roster`             server -> clients  all announcements

Every round, and every attempt at it:
1. `MaskOpening`        server -> participants
   `SealedShares`       participant -> server   its secrets, shared among its neighbours
2. `RoutedShares`       server -> sharer        the shares that its neighbours sealed for it
3. `MaskedUpload`       sharer -> server        or `RangeRefusal`, which asks for another attempt, or
                                                `ShareComplaint`: what a neighbour dealt does not open
4. `SurvivorList`       server -> survivor
   `SurvivorSignature`  survivor -> server
5. `UnmaskRequest`      server -> signer
   `RevealedShares`     signer -> server

What is secret in a message is sealed or masked, so a message may be logged; `repr` is off all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilateral.protocols.messages import Message


@dataclass(frozen=True)
class KeyAnnouncement(Message):
    """a. X25519 public key of one client for one run, and its Ed25519 identity's signature on it."""

    run_id: bytes
    client: str
    agreement_key: bytes
    identity_key: bytes
    signature: bytes


@dataclass(frozen=True)
class Roster(Message):
    """b. All announcements of a run, in the order of the names."""

    run_id: bytes
    clients: tuple[str, ...]
    agreement_keys: tuple[bytes, ...]
    identity_keys: tuple[bytes, ...]
    signatures: tuple[bytes, ...]


@dataclass(frozen=True)
class MaskOpening(Message):
    """1. Who takes part, and the fixed-point format of every row; no rows: uploads are ring words as they are.

    `width`: bits of a masked value.
    """

    round_index: int
    attempt: int
    participants: tuple[str, ...]
    fraction_bits: tuple[int, ...]
    width: int = 64


@dataclass(frozen=True, repr=False)
class SealedShares(Message):
    """1. A participant's shares of its self seed and its escrow key, sealed for each of its neighbours.

    The digests commit to every share, one for each member of its neighbourhood (itself too) in the order of the names;
    `seed_digest` commits to the self seed. `escrow` holds its pair seeds of this round, encrypted with the escrow key.
    """

    round_index: int
    attempt: int
    recipients: tuple[str, ...]
    sealed: tuple[bytes, ...]
    self_digests: tuple[bytes, ...]
    escrow_digests: tuple[bytes, ...]
    seed_digest: bytes
    escrow: bytes


@dataclass(frozen=True, repr=False)
class RoutedShares(Message):
    """2. What its neighbours sealed for one participant, and their digests of just these shares."""

    round_index: int
    attempt: int
    senders: tuple[str, ...]
    sealed: tuple[bytes, ...]
    self_digests: tuple[bytes, ...]
    escrow_digests: tuple[bytes, ...]


@dataclass(frozen=True, repr=False)
class MaskedUpload(Message):
    """3. The encoded upload plus the participant's masks, modulo 2^width, packed (`widths`)."""

    round_index: int
    attempt: int
    values: Tensor


@dataclass(frozen=True)
class RangeRefusal(Message):
    """3. Instead of an upload: these rows do not fit their bounds; bounds of 2^bound_bits would hold them."""

    round_index: int
    attempt: int
    rows: tuple[int, ...]
    bound_bits: tuple[int, ...]


@dataclass(frozen=True)
class ShareComplaint(Message):
    """3. Instead of an upload: the shares of `dealers` do not open here. The sender is out of the attempt."""

    round_index: int
    attempt: int
    dealers: tuple[str, ...]


@dataclass(frozen=True)
class SurvivorList(Message):
    """4. Who shared its secrets, and whose upload arrived: the sum will be over `survivors`."""

    round_index: int
    attempt: int
    sharers: tuple[str, ...]
    survivors: tuple[str, ...]


@dataclass(frozen=True)
class SurvivorSignature(Message):
    """4. A survivor's signature on the opening, the model and the list that it was shown."""

    round_index: int
    attempt: int
    signature: bytes


@dataclass(frozen=True)
class UnmaskRequest(Message):
    """5. All signatures: proof that a majority was shown the same opening, model and list."""

    round_index: int
    attempt: int
    signers: tuple[str, ...]
    signatures: tuple[bytes, ...]


@dataclass(frozen=True, repr=False)
class RevealedShares(Message):
    """5. One share of each owner: of its self seed if it survived, of its escrow key if it dropped. Never both."""

    round_index: int
    attempt: int
    owners: tuple[str, ...]
    shares: tuple[bytes, ...]
