"""Boxes: the seed that a dealer has for a client, sealed from the server that carries it.

The key is one of the pair's for this run, round, direction and the step's terms (`KeyRing.round_secret`), and is used
for one box: a dealer seals one a round and client, and a client opens one a round. So a fixed nonce is right, and a box
of another run, round, client, dealer, model or batch size does not open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bilateral.errors import MalformedMessageError, SealedShareError
from bilateral.protocols.mask.injective import injective
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.messages import Message
from bilateral.protocols.wire import decode, encode

SEED_BYTES: Final = 32
TAG_BYTES: Final = 16
_NONCE: Final = bytes(12)


@dataclass(frozen=True, repr=False)
class BoxContent(Message):
    """The seed that dealer and client have in common: the client's part of all that is dealt follows from it."""

    seed: bytes


def seal_box(ring: KeyRing, client: str, round_index: int, terms: bytes, content: BoxContent) -> bytes:
    """For `client` alone, who is dealt for by the owner of `ring`. `terms`: digest of the client's step."""
    key = ring.round_secret(client, _purpose(ring.name, client), round_index, 0, terms)
    return AESGCM(key).encrypt(_NONCE, encode(content), _bound_to(ring, ring.name, client, round_index, terms))


def open_box(ring: KeyRing, dealer: str, round_index: int, terms: bytes, box: bytes) -> BoxContent:
    """The inverse, at the client. Refuses by the dealer's name what it did not seal for just this."""
    key = ring.round_secret(dealer, _purpose(dealer, ring.name), round_index, 0, terms)
    try:
        data = AESGCM(key).decrypt(_NONCE, box, _bound_to(ring, dealer, ring.name, round_index, terms))
        content = decode(bytearray(data), [BoxContent], dealer)
    except (InvalidTag, ValueError, OverflowError, MalformedMessageError) as error:
        raise SealedShareError(
            f"{ring.name}: the box that {dealer} sealed does not open, or holds something else.",
            dealer=dealer,
            remedy="It was changed on its way, or is of another round or plan.",
        ) from error
    if len(content.seed) != SEED_BYTES:
        raise SealedShareError(f"{ring.name}: the box that {dealer} sealed has no seed of 32 bytes.", dealer=dealer)
    return content


def _purpose(dealer: str, client: str) -> str:
    return f"sealed training: {len(dealer)} {dealer} deals for {client}"


def _bound_to(ring: KeyRing, dealer: str, client: str, round_index: int, terms: bytes) -> bytes:
    return injective("bilateral box v1", ring.run_id, round_index, dealer, client, terms)
