"""Truncation of a shared product back to fewer fraction bits: never wrong, one unit in the last place at most.

A linear layer leaves the answering party with `y0`, the server with `y1`, and `y0 + y1 = y` modulo 2^64. With `Y0 =
y0 + 2^62` and |y| < 2^62 the sum is in [0, 2^63), so as whole numbers `Y0 + y1` wraps around unless both top bits are
zero. Each party shifts its share; what is missing is `2^(64 - m)` times the product of two bits, each known to one:

    t  =  (Y0 >> m) + (y1 >> m) + 1 - 2^(62 - m) - 2^(64 - m) * (1 - p * q)
    p = top bit of Y0 is zero,  q = top bit of y1 is zero

t is `y >> m` or one more: two shifts round down, and the 1 makes up for one of them. Since `y1` is uniform, t is
y / 2^m rounded up or down at random, with the right mean.

The querying party deals the product: bits `alpha` to the answering party, `beta` to the server (both from seeds), and
shares of `alpha * beta`. They tell each other `delta = p xor alpha` and `epsilon = q xor beta`, which are uniform,
and p * q is linear in what they hold. That product counts modulo 2^m only, so 32-bit shares do for m <= 32. The
server's `y1` does not depend on the query, so `epsilon` is sent offline. (P4 does not say how it truncates. Local
truncation errs by 2^(64 - m) with probability |y| / 2^63 an element.)
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from bilateral.protocols.share.gates.arrays import fused, halves, words
from bilateral.protocols.share.ring.packing import pack_bits, unpack_bits

MAX_SHIFT: Final = 32
_OFFSET: Final = 1 << 62


def logical_shift(x: Tensor, shift: int) -> Tensor:
    """x >> shift of the unsigned number."""
    return (x >> shift) & ((1 << (64 - shift)) - 1)


def first_bit(y0: Tensor) -> Tensor:
    """p, as booleans."""
    return y0 + _OFFSET >= 0


def second_bit(y1: Tensor) -> Tensor:
    """q, as booleans."""
    return y1 >= 0


def dealt_share(alpha: Tensor, beta: Tensor, share: Tensor) -> Tensor:
    """The querying party: the server's share of alpha * beta, modulo 2^32."""
    return (alpha & beta).to(torch.int32) - share


def first_share(y0: Tensor, shift: int, alpha: Tensor, product: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
    """The answering party's share of y >> shift, and its delta."""
    p = first_bit(y0)
    delta = p ^ alpha
    d, e = delta.to(torch.int64), epsilon.to(torch.int64)
    correction = d * e + e * (1 - 2 * d) * alpha + (1 - 2 * d) * (1 - 2 * e) * product
    shifted = logical_shift(y0 + _OFFSET, shift) + 1 - (1 << (62 - shift)) - (1 << (64 - shift))
    return shifted + (correction << (64 - shift)), delta


def second_share(y1: Tensor, shift: int, beta: Tensor, product: Tensor, delta: Tensor, epsilon: Tensor) -> Tensor:
    """The server's share of y >> shift."""
    d, e = delta.to(torch.int64), epsilon.to(torch.int64)
    correction = d * (1 - 2 * e) * beta + (1 - 2 * d) * (1 - 2 * e) * product
    return logical_shift(y1, shift) + (correction << (64 - shift))


# What the parties call: bits come and go packed, and on the CPU each is one compiled pass over memory.


def deal(alpha: Tensor, beta: Tensor, share: Tensor) -> Tensor:
    """The querying party: `dealt_share` of packed bits."""
    if share.device.type == "cpu":
        out = torch.empty_like(share)
        fused().deal_carries(alpha.numpy(), beta.numpy(), halves(share), halves(out))
        return out
    return dealt_share(unpack_bits(alpha, share.shape), unpack_bits(beta, share.shape), share)


def finish_first(
    y: Tensor, mask: Tensor, bias: Tensor, shift: int, alpha: Tensor, product: Tensor, epsilon: Tensor
) -> tuple[Tensor, Tensor]:
    """The answering party: its share of (y - mask + bias) >> shift, and delta, packed. `bias`: one for each channel."""
    if y.device.type == "cpu":
        share, delta = torch.empty_like(y), torch.empty((y.numel() + 7) // 8, dtype=torch.uint8)
        repeat = y[0, 0].numel() if y.numel() else 1
        fused().truncate_first(
            words(y), words(mask), words(bias), repeat, shift,
            alpha.numpy(), halves(product), epsilon.numpy(), words(share), delta.numpy(),
        )  # fmt: skip
        return share, delta
    y = y - mask + bias.reshape(-1, *(1 for _ in y.shape[2:]))
    share, delta = first_share(y, shift, unpack_bits(alpha, y.shape), product, unpack_bits(epsilon, y.shape))
    return share, pack_bits(delta)


def start_second(y: Tensor, dealt: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The server, offline: y - dealt (in place), and epsilon, packed."""
    if y.device.type == "cpu":
        epsilon = torch.empty_like(beta)
        fused().open_second(words(y), words(dealt), beta.numpy(), epsilon.numpy())
        return y, epsilon
    y -= dealt
    return y, pack_bits(second_bit(y) ^ unpack_bits(beta, y.shape))


def finish_second(y: Tensor, shift: int, beta: Tensor, product: Tensor, delta: Tensor, epsilon: Tensor) -> Tensor:
    """The server, online: `second_share` of packed bits."""
    if y.device.type == "cpu":
        share = torch.empty_like(y)
        fused().truncate_second(
            words(y), shift, beta.numpy(), halves(product), delta.numpy(), epsilon.numpy(), words(share)
        )
        return share
    bits = (unpack_bits(packed, y.shape) for packed in (beta, delta, epsilon))
    unpacked_beta, unpacked_delta, unpacked_epsilon = bits
    return second_share(y, shift, unpacked_beta, product, unpacked_delta, unpacked_epsilon)
