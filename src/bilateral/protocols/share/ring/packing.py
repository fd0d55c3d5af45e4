"""Bits in bytes: eight of them travel in one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def pack_bits(bits: Tensor) -> Tensor:
    """Booleans in the order of the flat tensor, the first in the lowest place; zeros fill up the last byte."""
    packed = np.packbits(bits.reshape(-1).cpu().numpy(), bitorder="little")
    return torch.from_numpy(packed).to(bits.device)


def unpack_bits(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The first bits, as booleans of that shape."""
    unpacked = np.unpackbits(packed.cpu().numpy(), count=math.prod(shape), bitorder="little")
    return torch.from_numpy(unpacked).to(torch.bool).reshape(tuple(shape)).to(packed.device)


def num_words(count: int) -> int:
    """64-bit words that so many bits take."""
    return (count + 63) // 64


def to_words(packed: Tensor) -> Tensor:
    """Packed bits as whole 64-bit words, which is how they travel; zeros fill up the last one."""
    words = torch.zeros(num_words(8 * packed.numel()), dtype=torch.int64, device=packed.device)
    words.view(torch.uint8)[: packed.numel()] = packed
    return words


def from_words(words: Tensor, count: int) -> Tensor:
    """The inverse, for `count` bits. What another party put behind them is cut off."""
    packed = words.contiguous().view(torch.uint8)[: (count + 7) // 8].clone()
    if count % 8:
        packed[-1] &= (1 << (count % 8)) - 1
    return packed
