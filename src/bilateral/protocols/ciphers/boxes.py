"""Private keys from their dealer to one client, by way of a server that cannot read them."""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bilateral.errors import AuthenticationError
from bilateral.protocols.mask.injective import injective
from bilateral.protocols.mask.keys import NO_OPENING, KeyRing

_NONCE = bytes(12)
_ROUND = 0
"""Keys are dealt once a run, so one key of a pair seals one box, and a fixed nonce is right."""


def key_id(public: bytes) -> bytes:
    """What names a key of the run in messages."""
    return hashlib.sha256(injective("bilateral cipher key v1", public)).digest()


def seal_key(ring: KeyRing, client: str, public: bytes, private: bytes) -> bytes:
    """A box for one client, bound to the run, the dealer, and the public key that belongs to what is in it."""
    return AESGCM(_secret(ring, client, ring.name)).encrypt(_NONCE, private, _context(ring, ring.name, client, public))


def open_key(ring: KeyRing, dealer: str, public: bytes, box: bytes) -> bytes:
    """The inverse. What this dealer did not seal for this client, run and public key is refused."""
    try:
        cipher = AESGCM(_secret(ring, dealer, dealer))
        return cipher.decrypt(_NONCE, box, _context(ring, dealer, ring.name, public))
    except (InvalidTag, ValueError) as error:
        raise AuthenticationError(
            f"{ring.name}: the box with the keys of this run, from {dealer}, does not open.",
            remedy="It was changed on its way, is of another run, or belongs to another public key.",
        ) from error


def _secret(ring: KeyRing, other: str, dealer: str) -> bytes:
    return ring.round_secret(other, f"cipher keys from {dealer}", _ROUND, 0, NO_OPENING)


def _context(ring: KeyRing, dealer: str, client: str, public: bytes) -> bytes:
    return injective("bilateral cipher box v1", ring.run_id, ring.roster_digest, dealer, client, key_id(public))
