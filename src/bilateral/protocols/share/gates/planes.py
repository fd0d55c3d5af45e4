"""Bits of many numbers side by side: what the sealed comparison computes between its messages.

Plane p has bit p of every number, 64 numbers to a word: bit i of word w is that of number 64 * w + i. The unused high
bits of the last word may be anything. A group of planes is an int64 tensor (planes, words), so that one instruction
works on a few hundred numbers. Shares of bits are xor shares.

A comparison [y < r] of a public y with the dealer's r goes digit by digit, four bits each. For a digit the dealer
shares its *thermometer*, the 15 bits [r_j > v]. With the digit c of y in hand [c < r_j] is bit c of it, [c <= r_j] is
bit c - 1, and [c = r_j] is the difference of the two: no message. A tree then joins the digits in pairs, a low and a
high one:

    lt  =  lt_hi xor eq_hi * lt_lo        eq  =  eq_hi * eq_lo

Each product takes dealt masks a, b and a share of c = a * b: with d = u xor a and f = v xor b opened, a share of u * v
is `d f (first party only) xor d b xor f a xor c`. Nobody asks whether the lowest digits are equal, so the eq of the
lowest pair is never computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from bilateral.protocols.share.gates.arrays import planes_fused, rows

DIGIT_BITS: Final = 4
ENTRIES: Final = 15
"""Of a thermometer: nothing is above 15."""


def num_words(count: int) -> int:
    """Words of a plane."""
    return (count + 63) // 64


@dataclass(frozen=True)
class Level:
    """A step of the tree: neighbours (2i, 2i + 1) become one, low digits first; an odd one at the end goes up as it is.

    Opened planes, and their masks, stand in this order: eq of the upper one of each pair, lt of the lower one of each
    pair, eq of the lower one of each pair but the lowest. Products: eq_hi * lt_lo of each pair, then eq_hi * eq_lo of
    each pair but the lowest.
    """

    num_groups: int

    @property
    def num_pairs(self) -> int:
        return self.num_groups // 2

    @property
    def num_next(self) -> int:
        """Groups that are left."""
        return (self.num_groups + 1) // 2

    @property
    def num_opened(self) -> int:
        return 3 * self.num_pairs - 1

    @property
    def num_products(self) -> int:
        return 2 * self.num_pairs - 1


@cache
def levels(num_digits: int) -> tuple[Level, ...]:
    """The steps that join the digits; none for one digit."""
    found = []
    while num_digits > 1:
        found.append(Level(num_digits))
        num_digits = found[-1].num_next
    return tuple(found)


# The same as tensor expressions: what the compiled loops are held to, and what runs on other devices.


def planes_by_tensors(x: Tensor, num_planes: int) -> Tensor:
    """`to_planes`."""
    words = num_words(len(x))
    padded = torch.cat([x, x.new_zeros(64 * words - len(x))]).reshape(words, 64)
    places = torch.arange(64, device=x.device)
    found = [(((padded >> plane) & 1) << places).sum(1) for plane in range(num_planes)]
    return torch.stack(found) if found else x.new_empty(0, words)


def thermometers_by_tensors(planes: Tensor, share: Tensor) -> Tensor:
    """`thermometers`."""
    found = torch.empty_like(share)
    for row in range(len(share)):
        digit, entry = divmod(row, ENTRIES)
        above = torch.zeros_like(planes[0])
        for place in range(DIGIT_BITS):  # from the low end: a higher bit decides, unless it is the same
            bit = planes[DIGIT_BITS * digit + place]
            above = bit & above if entry >> place & 1 else bit | above
        found[row] = above ^ share[row]
    return found


def look_up_by_tensors(tables: Tensor, planes: Tensor, is_first: bool) -> Tensor:
    """`look_up`."""
    num_digits = len(tables) // ENTRIES
    never = torch.zeros_like(planes[:1])
    always = torch.full_like(planes[:1], -1 if is_first else 0)
    below, same = [], []
    for digit in range(num_digits):
        table = tables[ENTRIES * digit : ENTRIES * (digit + 1)]
        less, at_most = torch.cat([table, never]), torch.cat([always, table])
        for place in range(DIGIT_BITS):
            bit = planes[DIGIT_BITS * digit + place]
            less = less[::2] ^ (bit & (less[::2] ^ less[1::2]))
            at_most = at_most[::2] ^ (bit & (at_most[::2] ^ at_most[1::2]))
        below.append(less[0])
        same.append(less[0] ^ at_most[0])
    return torch.stack(below + same)


def select_by_tensors(y: Tensor, bits: Tensor, beta: Tensor, r_beta: Tensor, r: Tensor, is_first: bool) -> Tensor:
    """`select`."""
    places = torch.arange(64, device=y.device)
    chosen = ((bits[:, None] >> places) & 1).reshape(-1)[: len(y)]
    base = y * beta - r_beta
    return torch.where(chosen == 0, base, (y if is_first else 0) - r - base)


def _pairs(level: Level, lt: Tensor, eq: Tensor) -> Tensor:
    """What is opened, in order."""
    end = 2 * level.num_pairs
    return torch.cat([eq[1:end:2], lt[:end:2], eq[2:end:2]])


def mask_by_tensors(level: Level, lt: Tensor, eq: Tensor, masks: Tensor) -> Tensor:
    """`mask_level`."""
    return _pairs(level, lt, eq) ^ masks


def join_by_tensors(
    level: Level, lt: Tensor, eq: Tensor, opened: Tensor, masks: Tensor, products: Tensor, is_first: bool
) -> tuple[Tensor, Tensor]:
    """`join_level`."""
    pairs = level.num_pairs
    upper = torch.cat([opened[:pairs], opened[1:pairs]])
    upper_masks = torch.cat([masks[:pairs], masks[1:pairs]])
    lower, lower_masks = opened[pairs:], masks[pairs:]
    shares = (upper & lower_masks) ^ (lower & upper_masks) ^ products
    if is_first:
        shares ^= upper & lower
    odd = slice(2 * pairs, level.num_groups)
    return (
        torch.cat([lt[1 : 2 * pairs : 2] ^ shares[:pairs], lt[odd]]),
        torch.cat([torch.zeros_like(eq[:1]), shares[pairs:], eq[odd]]),
    )


def products_by_tensors(level: Level, masks: Tensor) -> Tensor:
    """`products_of`."""
    pairs = level.num_pairs
    return torch.cat([masks[:pairs], masks[1:pairs]]) & masks[pairs:]


# What the parties and the dealer call: on the CPU each is one compiled call.


def to_planes(x: Tensor, num_planes: int) -> Tensor:
    """Bits 0 to num_planes - 1 of the numbers (n,), as (num_planes, words); unused bits are zero."""
    if x.is_cpu:
        found = x.new_empty(num_planes, num_words(len(x)))
        planes_fused().to_planes(rows(x), rows(found))
        return found
    return planes_by_tensors(x, num_planes)


def thermometers(planes: Tensor, share: Tensor, out: Tensor | None = None) -> Tensor:
    """The dealer: [digit_j(r) > v] xor share[15 * j + v], by the planes of r.

    `out` may be `share`, which is twice as fast: memory that nobody has touched yet is slow.
    """
    if share.is_cpu:
        found = torch.empty_like(share) if out is None else out
        planes_fused().thermometers(planes.numpy(), share.numpy(), found.numpy())
        return found
    found = thermometers_by_tensors(planes, share)
    return found if out is None else out.copy_(found)


def look_up(tables: Tensor, planes: Tensor, is_first: bool) -> Tensor:
    """A party: shares of [digit_j(y) < digit_j(r)], then of [digit_j(y) = digit_j(r)], by the planes of y.

    `tables`: its share of the thermometers of r.
    """
    if tables.is_cpu:
        found = tables.new_empty(2 * (len(tables) // ENTRIES), tables.shape[1])
        planes_fused().look_up(tables.numpy(), planes.numpy(), -1 if is_first else 0, found.numpy())
        return found
    return look_up_by_tensors(tables, planes, is_first)


def select(
    y: Tensor,
    bits: Tensor,
    beta: Tensor,
    r_beta: Tensor,
    r: Tensor,
    is_first: bool,
    out: Tensor | None = None,
) -> Tensor:
    """A party: its share of (y - r) * (m xor beta), for the plane m = `bits`, by its shares of beta, r * beta and r.

    `out` may be one of the numbers, which is twice as fast.
    """
    if y.is_cpu:
        found = torch.empty_like(y) if out is None else out
        planes_fused().select(
            y.numpy(), bits.numpy(), beta.numpy(), r_beta.numpy(), r.numpy(), -1 if is_first else 0, found.numpy()
        )
        return found
    found = select_by_tensors(y, bits, beta, r_beta, r, is_first)
    return found if out is None else out.copy_(found)


def mask_level(level: Level, lt: Tensor, eq: Tensor, masks: Tensor) -> Tensor:
    """A party: its shares under its shares of the masks, in the order of `Level`. Row 0 of `eq` is never looked at."""
    if lt.is_cpu:
        found = torch.empty_like(masks)
        planes_fused().mask_level(lt.numpy(), eq.numpy(), masks.numpy(), found.numpy())
        return found
    return mask_by_tensors(level, lt, eq, masks)


def join_level(
    level: Level, lt: Tensor, eq: Tensor, opened: Tensor, masks: Tensor, products: Tensor, is_first: bool
) -> tuple[Tensor, Tensor]:
    """A party: its shares of lt and eq one level up; row 0 of eq is zeros.

    `opened`: the xor of what both parties opened. `masks`, `products`: its shares.
    """
    if lt.is_cpu:
        found = lt.new_empty(2 * level.num_next, lt.shape[1])
        planes_fused().join_level(
            lt.numpy(), eq.numpy(), opened.numpy(), masks.numpy(), products.numpy(),
            -1 if is_first else 0, found.numpy(),
        )  # fmt: skip
        return found[: level.num_next], found[level.num_next :]
    return join_by_tensors(level, lt, eq, opened, masks, products, is_first)


def products_of(level: Level, masks: Tensor) -> Tensor:
    """The dealer: the products of a level, of the masks themselves (not of a share)."""
    if masks.is_cpu:
        found = masks.new_empty(level.num_products, masks.shape[1])
        planes_fused().products_of(masks.numpy(), found.numpy())
        return found
    return products_by_tensors(level, masks)


def spread_by_tensors(plane: Tensor, count: int) -> Tensor:
    """`spread`."""
    places = torch.arange(64, device=plane.device)
    return ((plane[:, None] >> places) & 1).reshape(-1)[:count]


def spread(plane: Tensor, count: int) -> Tensor:
    """The first bits of a plane, each as a number, 0 or 1."""
    if plane.device.type == "cpu":
        found = plane.new_empty(count)
        planes_fused().spread(plane.numpy(), found.numpy())
        return found
    return spread_by_tensors(plane, count)


def deal_selection(blind: Tensor, r: Tensor, beta_share: Tensor, r_beta_share: Tensor) -> Tensor:
    """The dealer: what is left of beta and of r * beta, for the plane of betas, after these shares: (2, n)."""
    if r.device.type == "cpu":
        found = r.new_empty(2, len(r))
        planes_fused().deal_selection(
            blind.numpy(), r.numpy(), beta_share.numpy(), r_beta_share.numpy(), found.reshape(-1).numpy()
        )
        return found
    beta = spread_by_tensors(blind, len(r))
    return torch.stack([beta - beta_share, r * beta - r_beta_share])
