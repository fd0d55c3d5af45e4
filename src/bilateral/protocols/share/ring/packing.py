"""Bits in bytes: eight of them travel in one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bilateral.errors import MalformedMessageError


def pack_bits(bits: Tensor) -> Tensor:
    """Booleans in the order of the flat tensor, the first in the lowest place; zeros fill up the last byte."""
    packed = np.packbits(bits.reshape(-1).cpu().numpy(), bitorder="little")
    return torch.from_numpy(packed).to(bits.device)


def unpack_bits(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The first bits, as booleans of that shape."""
    unpacked = np.unpackbits(packed.cpu().numpy(), count=math.prod(shape), bitorder="little")
    return torch.from_numpy(unpacked).to(torch.bool).reshape(tuple(shape)).to(packed.device)


def to_bytes(packed: Tensor) -> bytes:
    return packed.cpu().numpy().tobytes()


def from_bytes(data: bytes, device: torch.device | None) -> Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device) if data else torch.empty(0, dtype=torch.uint8)
    )


def expect_packed(sender: str, packed: bytes, count: int) -> None:
    """Refuse packed bits of another length, naming the sender."""
    if len(packed) != (count + 7) // 8:
        raise MalformedMessageError(
            f"{sender} sent {len(packed)} bytes of bits, expected {(count + 7) // 8}.",
            remedy="Both sides must run the same plan and version.",
        )
