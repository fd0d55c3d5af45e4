"""The positive part of a shared number, with the dealer as the judge who must not know what it judges.

The first and the second party hold shares of t, |t| < 2^b, and draw from the seed they share, for each element, an odd
factor `k`, an offset `e` with 0 < e < k, a sign `s`, and for each sample an order of its elements.

1. first -> second: s * (k * t0 + e) + mask, reordered. The mask comes from the first party's seed with the dealer.
2. second -> dealer: the same plus s * k * t1. Without the mask that is  u = s * (k * t + e).
3. dealer -> second: shares of g = [u > 0] and of g * u; the first party's come from its seed with the dealer.
4. Both divide by k (odd, so invertible modulo 2^64):  g * t = (s * g * u - e * g) / k.  If s = 1, g says that t >= 0,
   and this is the positive part; if s = -1, g says that t < 0, and t - g * t is. All of it is linear: no message.

Since 0 < e < k, the sign of k * t + e is that of t, with zero counted as positive: no special case, no wrong answer.

Guarantee (`test_querier_sees_nothing_of_the_sign`): u has the same distribution for t and for -t - 1, so the dealer's
view says nothing of the sign, hence nothing of which neurons are active. What it still sees is a blinded *size*:
log2 |u| = log2 |t| + log2 k, with log2 k spread smoothly over ten octaves, in an order that it does not know (ledger,
line 5).

`PUBLISHED` is P4's: a positive factor, no sign, no reordering. The dealer (P4's querying party) sees the sign of every
activation in its place, and because 2u - 1 = k * (2t + 1) it can factor. It is there for the audit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from bilateral.protocols.share.circuit.description import VALUE_BITS
from bilateral.protocols.share.gates.arrays import fused, rows, words
from bilateral.protocols.share.gates.shuffling import random_orders
from bilateral.protocols.share.gates.styles import HARDENED, ComparisonStyle
from bilateral.protocols.share.ring.streams import Stream

CUBIC: Final = (744261118, 244180718, 85299982)
"""2^f for f from 0 to 1 as 1 + a f + b f^2 + c f^3, times 2^30. a = ln 2; value and slope double from end to end."""
FACTOR_OCTAVES: Final = 10
"""Factors span 2^10. More would blur sizes further, but a factor much smaller than the number it hides lets the number
through: u / k has few candidates then. At 20 fraction bits factors are 2^20 to 2^30, activations around 2^20."""
_MAX_FACTOR_BITS: Final = 31
PRODUCT_BITS: Final = 62
"""A compared number times its factor is below 2^this in size."""


def factor_bits(fraction_bits: int) -> int:
    """Factors are below 2^this, so that a product of a compared number and a factor stays below 2^62."""
    return min(_MAX_FACTOR_BITS, PRODUCT_BITS - VALUE_BITS - fraction_bits)


@dataclass(frozen=True, repr=False)
class Blinding:
    """What the answering party and the server draw for one comparison: (batch, size) each.

    Factors, offsets and signs are functions of the random words; the compiled loops work them out on their way.
    """

    words: Tensor
    spread: Tensor
    orders: Tensor | None
    top: int
    style: ComparisonStyle

    @classmethod
    def draw(cls, stream: Stream, shape: tuple[int, int], fraction_bits: int, style: ComparisonStyle) -> Blinding:
        words, spread = stream.words(*shape), stream.words(*shape)
        orders = random_orders(stream, *shape) if style.reorders else None
        return cls(words, spread, orders, factor_bits(fraction_bits), style)

    @property
    def factors(self) -> Tensor:
        return _factors(self.words, self.top, self.style.is_logarithmic)

    @property
    def offsets(self) -> Tensor:
        factors = self.factors
        return _offsets(self.spread, factors) if self.style.random_offset else (factors + 1) >> 1

    @property
    def signs(self) -> Tensor:
        return torch.where(self.words < 0, -1, 1) if self.style.flips else torch.ones_like(self.words)

    def blind_first(self, share: Tensor, mask: Tensor) -> Tensor:
        """Step 1."""
        if self._is_fused:
            return self._fused_blind(share, mask, has_offset=True)
        return self._reorder(self.signs * (self.factors * share + self.offsets)) + mask

    def blind_second(self, share: Tensor, received: Tensor) -> Tensor:
        """Step 2."""
        if self._is_fused:
            return self._fused_blind(share, received, has_offset=False)
        return self._reorder(self.signs * self.factors * share) + received

    def select(self, share: Tensor, product_share: Tensor, bit_share: Tensor) -> Tensor:
        """Step 4: a share of the positive part."""
        if self._is_fused:
            assert self.orders is not None
            out = torch.empty_like(share, memory_format=torch.contiguous_format)
            fused().select(
                rows(self.words), rows(self.spread), self.orders.numpy(),
                rows(share), rows(product_share), rows(bit_share), self.top, rows(out),
            )  # fmt: skip
            return out
        kept = self.signs * self._restore(product_share) - self.offsets * self._restore(bit_share)
        kept *= odd_inverse(self.factors)
        return torch.where(self.signs > 0, kept, share - kept)

    @property
    def _is_fused(self) -> bool:
        return self.style == HARDENED and self.words.device.type == "cpu"

    def _fused_blind(self, share: Tensor, addend: Tensor, *, has_offset: bool) -> Tensor:
        assert self.orders is not None
        out = torch.empty_like(share, memory_format=torch.contiguous_format)
        fused().blind(
            rows(self.words), rows(self.spread), self.orders.numpy(),
            rows(share), rows(addend), has_offset, self.top, rows(out),
        )  # fmt: skip
        return out

    def _reorder(self, x: Tensor) -> Tensor:
        return x if self.orders is None else torch.gather(x, 1, self.orders)

    def _restore(self, x: Tensor) -> Tensor:
        return x if self.orders is None else torch.empty_like(x).scatter_(1, self.orders, x)


@dataclass(frozen=True, repr=False)
class Judgement:
    """Step 3: shares of g * u and of g."""

    product: Tensor
    bit: Tensor


def judge(masked: Tensor, mask: Tensor, product_share: Tensor, bit_share: Tensor) -> Judgement:
    """The querying party: the server's shares for u = masked - mask, given those that the answering party expands."""
    if masked.device.type == "cpu":
        product, bit = torch.empty_like(mask), torch.empty_like(mask)
        shares = words(product_share), words(bit_share)
        fused().judge(words(masked), words(mask), *shares, words(product), words(bit))
        return Judgement(product, bit)
    blinded = masked - mask
    positive = (blinded > 0).to(torch.int64)
    return Judgement(positive * blinded - product_share, positive - bit_share)


def left_range(masked: Tensor, mask: Tensor) -> Tensor:
    """The querying party: for which samples (rows) a compared number was certainly 2^VALUE_BITS or more in size.

    Numbers within the range give |u| < 2^62, so there is no false alarm. A wrong sign needs |k t| >= 2^63, and goes
    unnoticed only if that is 3/4 of 2^64 or more, modulo 2^64: never below three times the range.
    """
    found: Tensor = (masked - mask + (1 << PRODUCT_BITS) < 0).any(
        1
    )  # -2^62 <= u < 2^62 has no sign bit after the shift
    return found


def _factors(words: Tensor, top: int, is_logarithmic: bool) -> Tensor:
    """Odd numbers below 2^top: uniform from 3 on, or spread over the top octaves.

    The logarithm of the latter is a sum of three uniform numbers, so its density has no corners: those of a uniform one
    show in the sizes that the querying party collects, and with many equal t they tell t to a tenth of a percent.
    """
    if not is_logarithmic:
        return ((words & ((1 << top) - 1)) | 1).clamp_min(3)
    mask = (1 << 20) - 1
    total = (words & mask) + ((words >> 20) & mask) + ((words >> 40) & mask)
    place = total * FACTOR_OCTAVES // 3  # octaves above the lowest, 20 bits of them behind the point
    part = place & mask
    power = CUBIC[1] + ((CUBIC[2] * part) >> 20)
    power = CUBIC[0] + ((power * part) >> 20)
    mantissa = (1 << 30) + ((power * part) >> 20)
    return (mantissa >> (30 - (top - FACTOR_OCTAVES) - (place >> 20))) | 1


def _offsets(words: Tensor, factors: Tensor) -> Tensor:
    """From 1 to factor - 1, uniform but for rounding; e and factor - e are exactly as likely: the proof needs it."""
    drawn = 1 + ((((words >> 33) & 0x7FFFFFFF) * (factors - 1)) >> 31)
    return torch.where((words & 1) == 1, factors - drawn, drawn)


def odd_inverse(x: Tensor) -> Tensor:
    """1 / x modulo 2^64 for odd x, by Newton's iteration: five bits are right at first, and each round doubles them."""
    inverse = (3 * x) ^ 2
    for _ in range(4):
        inverse = inverse * (2 - x * inverse)
    return inverse
