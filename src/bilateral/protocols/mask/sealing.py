"""What a participant does with its secrets of a round: commit, seal shares for neighbours, put pair seeds in escrow.

Every key here is used for one message, so a fixed nonce is right: share keys are derived for one direction, round and
attempt, and an escrow key is drawn for one attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bilateral.errors import AuthenticationError, SealedShareError
from bilateral.protocols.mask.injective import Part, injective
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import MaskOpening
from bilateral.protocols.mask.shamir import SHARE_BYTES
from bilateral.protocols.mask.widths import WIDEST

TAG_BYTES = 16
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
DIGEST_BYTES = 32
SEED_BYTES = 32
_NONCE = bytes(12)


@dataclass(frozen=True)
class Occasion:
    """One attempt at one round of one run, as it was opened: what everything here is bound to.

    Clients that were shown different openings are on different occasions: nothing of one opens on the other.
    """

    run_id: bytes
    round_index: int
    attempt: int
    opening_digest: bytes

    @classmethod
    def of(cls, run_id: bytes, opening: MaskOpening) -> Occasion:
        content: tuple[Part, ...] = (opening.round_index, opening.attempt, opening.participants, opening.fraction_bits)
        if opening.width != WIDEST:
            content = (*content, opening.width)
        label = "bilateral opening v1" if opening.width == WIDEST else "bilateral opening of a width v1"
        digest = hashlib.sha256(injective(label, *content)).digest()
        return cls(run_id, opening.round_index, opening.attempt, digest)

    def bind(self, label: str, *names: str) -> bytes:
        """Bytes for this label and these names on this occasion, and for nothing else."""
        return self._prefix + injective(label, names)

    @cached_property
    def _prefix(self) -> bytes:
        return injective(self.run_id, self.round_index, self.attempt, self.opening_digest)

    def pair_secret(self, ring: KeyRing, other: str, purpose: str) -> bytes:
        """32 bytes that `other` has too, if it is on the same occasion."""
        return ring.round_secret(other, purpose, self.round_index, self.attempt, self.opening_digest)


@dataclass(frozen=True, repr=False)
class SharePair:
    """A holder's share of an owner's self seed, and of its escrow key."""

    of_self_seed: bytes
    of_escrow_key: bytes


def share_digest(occasion: Occasion, kind: str, owner: str, holder: str, share: bytes) -> bytes:
    """The owner's commitment to a share. Shares have 256 random bits, so it gives nothing away."""
    return hashlib.sha256(occasion.bind(f"bilateral share v1 {kind}", owner, holder) + share).digest()


def seed_digest(occasion: Occasion, owner: str, seed: bytes) -> bytes:
    """The owner's commitment to its self seed: shares that combine to anything else are found out."""
    return hashlib.sha256(occasion.bind("bilateral self seed v1", owner) + seed).digest()


def seal(ring: KeyRing, occasion: Occasion, recipient: str, shares: SharePair) -> bytes:
    """Shares for one neighbour, which nobody else can read, change or use in another round."""
    cipher = AESGCM(_share_key(ring, occasion, recipient, ring.name))
    associated = occasion.bind("bilateral sealed shares v1", ring.name, recipient)
    return cipher.encrypt(_NONCE, shares.of_self_seed + shares.of_escrow_key, associated)


def unseal(ring: KeyRing, occasion: Occasion, sender: str, sealed: bytes) -> SharePair:
    """The inverse, at the recipient. Refuses by the sender's name what it did not seal for this occasion."""
    cipher = AESGCM(_share_key(ring, occasion, sender, sender))
    associated = occasion.bind("bilateral sealed shares v1", sender, ring.name)
    opened = _decrypt(cipher, sealed, associated)
    if opened is None or len(opened) != 2 * SHARE_BYTES:
        raise SealedShareError(
            f"{ring.name}: the sealed shares of {sender} do not open.",
            dealer=sender,
            remedy="They were changed on their way, are of another round, or the two were shown different openings.",
        )
    return SharePair(opened[:SHARE_BYTES], opened[SHARE_BYTES:])


def make_escrow(occasion: Occasion, owner: str, key: bytes, pair_seeds: Sequence[bytes]) -> bytes:
    """The owner's pair seeds of this attempt, readable with the escrow key."""
    return AESGCM(key).encrypt(_NONCE, b"".join(pair_seeds), occasion.bind("bilateral escrow v1", owner))


def open_escrow(
    occasion: Occasion, owner: str, key: bytes, escrow: bytes, neighbours: Sequence[str]
) -> Mapping[str, bytes]:
    """Pair seed of each neighbour of `owner`. Opens the escrow of this attempt only."""
    opened = _decrypt(AESGCM(key), escrow, occasion.bind("bilateral escrow v1", owner))
    if opened is None or len(opened) != SEED_BYTES * len(neighbours):
        raise AuthenticationError(
            f"The escrow of {owner} does not open with the key that its shares give.",
            remedy="That client does not follow the protocol; leave it out of the next round.",
        )
    return {name: opened[SEED_BYTES * i : SEED_BYTES * (i + 1)] for i, name in enumerate(neighbours)}


def _share_key(ring: KeyRing, occasion: Occasion, other: str, sender: str) -> bytes:
    return occasion.pair_secret(ring, other, f"shares from {sender}")


def _decrypt(cipher: AESGCM, sealed: bytes, associated: bytes) -> bytes | None:
    if len(sealed) < TAG_BYTES:
        return None
    try:
        return cipher.decrypt(_NONCE, sealed, associated)
    except InvalidTag:
        return None
