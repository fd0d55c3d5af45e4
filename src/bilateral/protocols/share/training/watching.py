"""Random sums of what must stay small: how a value is cut into groups, and added up with random signs.

A group is of one channel, or of several small ones as a whole; it has one sum for each bit of the words of signs, which
are the same for all groups of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.protocols.share.gates.arrays import rows
from bilateral.protocols.share.ring.threads import in_parts

GROUP: Final = 32768
"""So many numbers are added up, with random signs, to be watched together."""
NUM_SUMS: Final = 64
"""Random sums of each group (`bounds` has what they show)."""


@dataclass(frozen=True)
class Groups:
    """How a value (batch, channels, ...) is cut: `count` groups of `size` numbers, the last of them filled with zeros.

    `together`: whole channels in a group; 0 where a channel has groups of its own.
    """

    count: int
    size: int
    together: int


def group_size(channels: int, length: int) -> int:
    """Of channels of so many numbers. A large channel has groups of its own, small ones share theirs as a whole."""
    if length >= GROUP // 2:
        return min(GROUP, length)
    return min(channels, GROUP // length) * length


def groups_of(x: Tensor) -> Groups:
    """Shapes are enough."""
    channels, length = x.shape[1], x.numel() // x.shape[1]
    size = group_size(channels, length)
    if size <= length:
        return Groups(channels * -(-length // size), size, 0)
    return Groups(-(-channels // (size // length)), size, size // length)


def in_groups(x: Tensor) -> Tensor:
    """A row a group; zeros fill up the last."""
    channels = x.transpose(0, 1).reshape(x.shape[1], -1)
    size = group_size(*channels.shape)
    if size <= channels.shape[1]:
        return F.pad(channels, (0, -channels.shape[1] % size)).reshape(-1, size)
    together = size // channels.shape[1]
    return F.pad(channels, (0, 0, 0, -len(channels) % together)).reshape(-1, size)


def signed_sums(x: Tensor, signs: Tensor) -> Tensor:
    """Each group of x with `NUM_SUMS` choices of signs: a 1 in bit k of a place's word is a minus in sum k."""
    if not x.is_cpu:
        return signed_sums_by_tensors(in_groups(x), signs)
    from bilateral.protocols.share.training import sum_kernels  # noqa: PLC0415 (imports numba)

    cut = groups_of(x)
    out = x.new_empty(cut.count, NUM_SUMS)
    numbers, words, sums = rows(x.reshape(x.shape[0], x.shape[1], -1)), rows(signs), rows(out)

    def run(begin: int, end: int) -> None:
        sum_kernels.signed_sums(numbers, words, cut.together, begin, end, sums)

    in_parts(cut.count, 1, NUM_SUMS * x.numel(), run)
    return out


def signed_sums_by_tensors(groups: Tensor, signs: Tensor) -> Tensor:
    """`signed_sums`, of `in_groups`."""
    return groups @ (1 - 2 * ((signs[:, None] >> torch.arange(NUM_SUMS, device=signs.device)) & 1))
