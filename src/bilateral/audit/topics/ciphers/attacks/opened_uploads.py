"""A server that gets one client's upload opened, out of ciphertexts whose sum alone should be.

Where clients open sums, they cannot see what they open: the server asks for one upload in place of the sum, and whoever
is asked answers, as anybody does who colludes. Where an authority gives a key for sums (HybridAlpha), the server needs
to ask for nothing else: the key opens mixtures of all values, and with them the difference of any two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bilateral.learning.exchange import Exchange, Packet, Respond
from bilateral.protocols.ciphers.inner_products import key_of, logarithm, opened_values, subtract
from bilateral.protocols.ciphers.messages import EncryptedUpload, OpeningPart, OpeningRequest
from bilateral.protocols.messages import Message, RoundModel

REACH_BITS = 3
"""A difference of two values of one client may be larger than sums are expected to be."""


class AskingForOne:
    """The server's exchange, with one client's upload asked for in place of the sum (`instead`); notes of a round."""

    def __init__(self, inner: Exchange, victim: str, *, instead: bool) -> None:
        self._inner = inner
        self._victim = victim
        self._instead = instead
        self.uploads: dict[str, bytes] = {}
        self.parts: dict[str, bytes] = {}
        self.model: RoundModel | None = None

    def __call__(
        self, round_index: int, packets: Mapping[str, Packet], respond: Respond | None = None
    ) -> dict[str, Message]:
        changed = {name: tuple(self._sent(name, message) for message in packet) for name, packet in packets.items()}
        replies = self._inner(round_index, changed, respond)
        for name, reply in replies.items():
            if isinstance(reply, EncryptedUpload):
                self.uploads[name] = reply.ciphertext
            elif isinstance(reply, OpeningPart):
                self.parts[name] = reply.part
        return replies

    def _sent(self, name: str, message: Message) -> Message:
        if isinstance(message, RoundModel) and name == self._victim:
            self.model = message
        if isinstance(message, OpeningRequest) and self._instead:
            return replace(message, request=self.uploads[self._victim])
        return message


def read_by_mixing(uploads: Mapping[str, bytes], part: bytes, victim: str, num_values: int, bits: int) -> Tensor:
    """The victim's integers, less one number that is the same for all of them."""
    place = sorted(uploads).index(victim)
    padded = opened_values(uploads[victim], key_of(part, place), num_values)
    found = [logarithm(subtract(point, padded[0]), bits + REACH_BITS) for point in padded]
    return torch.from_numpy(np.array(found, dtype=np.float64))
