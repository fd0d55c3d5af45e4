"""The sign of a shared number, and its positive part, so that nobody sees anything of it: no party, and no dealer.

x is shared modulo 2^64 between the first and the second party, |x| < 2^k, k = 4 D. Before x is there, the dealer draws
for each element a mask r = r0 + r1 and a bit beta, and deals xor shares of a thermometer of each of r's D lowest digits
of four bits, [digit > v] for v = 0 to 14; of r's bit k; of masks and products of bits for step 3; and additive shares
of beta and of r beta. One party's part comes from its seed with the dealer alone (`drawn_part`); what is left is sent
to the other (`dealt_part`). Which of the two it is matters to nobody but whoever carries messages: in prediction the
second party is dealt to, in training the first.

1. Both open y = x + r: each tells x_i + r_i.
2. x >= 0 unless y - r has bit k, which is y_k xor r_k xor [y mod 2^k < r mod 2^k]. y is known to both, so for each
   digit shares of lt = [y_j < r_j] and eq = [y_j = r_j] are what the thermometer says at y_j: no message.
3. Neighbouring digits are joined until one is left: lt = lt_hi xor eq_hi lt_lo, eq = eq_hi eq_lo. In each of
   ceil(log2 D) levels both open eq_hi, lt_lo and eq_lo under masks (11, 5 and 2 bits for D = 8), and use the dealt
   products.
4. Both hold shares of b = [x >= 0], and open m = b xor beta.
5. x b = (y - r)(m + beta - 2 m beta) is linear in what they hold: no message (`positive_part`). Any other shared value
   times b costs one opening under a mask of its own and a dealt word (`times_bit`).

Guarantee (`test_all_that_is_opened_is_uniform_whatever_is_compared`, and a simulator a party): y, the bits of step 3
and m are each under masks that are uniform, independent, used once, and known to neither party: whatever x is, all that
the parties see is uniform, and the dealer sees nothing. Perfect, given that seeds are expanded by a PRG, that the
dealer colludes with neither party, and that all follow the protocol.

With bits packed 64 to a word (`planes`), D = 8 costs 16.5 dealt bytes of bits and 16 of words for each element, and
10.4 bytes told by each party.

Outside of |x| < 2^k the answer is wrong, and nobody notices: who owns weights and inputs must bound them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from bilateral.protocols.share.gates import planes
from bilateral.protocols.share.gates.planes import DIGIT_BITS, ENTRIES
from bilateral.protocols.share.gates.talk import Hear, Tell, Work
from bilateral.protocols.share.ring.streams import Stream

_SELECTION_WORDS: Final = 2
"""Dealt for each element: shares of beta and of r beta."""


@dataclass(frozen=True)
class Width:
    """How many numbers are compared at once, and how many digits of them count."""

    count: int
    digits: int

    @classmethod
    def of(cls, count: int, value_bits: int, fraction_bits: int) -> Width:
        """For numbers below 2^value_bits in size, with so many fraction bits."""
        return cls(count, -(-(value_bits + fraction_bits) // DIGIT_BITS))

    @cached_property
    def words(self) -> int:
        return planes.num_words(self.count)

    @property
    def sign_bit(self) -> int:
        return DIGIT_BITS * self.digits

    @property
    def num_tables(self) -> int:
        return ENTRIES * self.digits

    @cached_property
    def num_masks(self) -> int:
        return sum(level.num_opened for level in planes.levels(self.digits))

    @cached_property
    def num_products(self) -> int:
        return sum(level.num_products for level in planes.levels(self.digits))

    @property
    def dealt_shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of what the dealer sends for one comparison: planes of bits, and words."""
        return (self.num_tables + 1 + self.num_products, self.words), (_SELECTION_WORDS, self.count)


@dataclass(frozen=True, repr=False)
class Correlation:
    """One party's part of what one comparison uses up. Planes of bits but for `r`, `beta` and `r_beta`."""

    r: Tensor
    tables: Tensor
    top: Tensor
    products: Tensor
    blind: Tensor
    """The bit beta, as xor shares; `beta` has additive ones."""
    masks: Tensor
    beta: Tensor
    r_beta: Tensor


def drawn_part(with_dealer: Stream, width: Width) -> Correlation:
    """Of the party that is sent nothing: all from its seed with the dealer."""
    return _correlation(width, *_drawn_whole(with_dealer, width))


def dealt_part(with_dealer: Stream, dealt: tuple[Tensor, Tensor], width: Width) -> Correlation:
    """Of the other party, from its seed with the dealer and from what was dealt."""
    return whole_part(drawn_own(with_dealer, width), dealt, width)


def whole_part(own: tuple[Tensor, Tensor], dealt: tuple[Tensor, Tensor], width: Width) -> Correlation:
    """`dealt_part`, of what was drawn (`drawn_own`)."""
    r, bits = own
    return _correlation(width, r, dealt[0], bits, dealt[1])


def deal(with_drawing: Stream, with_dealt: Stream, width: Width) -> tuple[Tensor, Tensor]:
    """The dealer: what one party is sent (`Width.dealt_shapes`), uniform to it whatever r and beta are.

    The streams are those with the party that draws its part, and with the one that is sent the rest.
    """
    bits, words, _ = deal_and_keep(with_drawing, with_dealt, width)
    return bits, words


def deal_and_keep(with_drawing: Stream, with_dealt: Stream, width: Width) -> tuple[Tensor, Tensor, Tensor]:
    """`deal`, and the plane of the betas, for products with the bit that are dealt later (`deal_bit_product`)."""
    r, bits, drawn, selection = _drawn_whole(with_drawing, width)
    r_other, others = drawn_own(with_dealt, width)
    r += r_other
    own = drawn ^ others
    r_planes, tables = planes.to_planes(r, width.sign_bit + 1), width.num_tables
    # In place: what one party draws for itself becomes what is left for the other.
    planes.thermometers(r_planes, bits[:tables], out=bits[:tables])
    bits[tables] ^= r_planes[width.sign_bit]
    bits[tables + 1 :] ^= _true_products(width, own[1:])
    return bits, planes.deal_selection(own[0], r, *selection), own[0]


def _drawn_whole(stream: Stream, width: Width) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """r; planes in the places of those that are dealt to the other party; its own bit and masks; the selection."""
    count, words, num_dealt = width.count, width.words, width.dealt_shapes[0][0]
    num_planes = num_dealt + 1 + width.num_masks
    drawn = stream.words((1 + _SELECTION_WORDS) * count + num_planes * words)
    r, rest = drawn[:count], drawn[count:]
    bits, selection = rest[: num_planes * words].view(-1, words), rest[num_planes * words :].view(-1, count)
    return r, bits[:num_dealt], bits[num_dealt:], selection


def drawn_own(stream: Stream, width: Width) -> tuple[Tensor, Tensor]:
    """The part of whoever is dealt to that it draws: r; its own bit and masks."""
    drawn = stream.words(width.count + (1 + width.num_masks) * width.words)
    return drawn[: width.count], drawn[width.count :].view(-1, width.words)


def _correlation(width: Width, r: Tensor, dealt: Tensor, own: Tensor, selection: Tensor) -> Correlation:
    tables = width.num_tables
    return Correlation(r, dealt[:tables], dealt[tables], dealt[tables + 1 :], own[0], own[1:], *selection)


def _true_products(width: Width, masks: Tensor) -> Tensor:
    found, at = [], 0
    for level in planes.levels(width.digits):
        found.append(planes.products_of(level, masks[at : at + level.num_opened]))
        at += level.num_opened
    return torch.cat(found) if found else masks[:0]


@dataclass(frozen=True, repr=False)
class Compared:
    """What one party holds of a comparison: enough to multiply by its bit, now (`positive_part`) and later again."""

    y: Tensor
    bits: Tensor
    """m, public: whether x >= 0, under beta."""
    own: Correlation
    is_first: bool

    def positive_part(self) -> Tensor:
        """Step 5: a share of max(x, 0), flat. No message."""
        own = self.own
        return planes.select(self.y, self.bits, own.beta, own.r_beta, own.r, self.is_first)

    def bit_share(self) -> Tensor:
        """An additive share of the bit [x >= 0], flat. No message."""
        opened = planes.spread(self.bits, len(self.y))
        share = self.own.beta * (1 - 2 * opened)
        return share + opened if self.is_first else share


def compare(x: Tensor, own: Correlation, width: Width, *, is_first: bool) -> Work[Compared]:
    """Steps 1 to 4, one party's half. `x` is its share, of any shape."""
    mine = x.reshape(-1) + own.r
    yield Tell(mine)
    y = mine + (yield Hear("masked numbers", (width.count,)))
    y_planes = planes.to_planes(y, width.sign_bit + 1)
    found = planes.look_up(own.tables, y_planes, is_first)
    less, equal = found[: width.digits], found[width.digits :]
    at = product_at = 0
    for level in planes.levels(width.digits):
        masks = own.masks[at : at + level.num_opened]
        products = own.products[product_at : product_at + level.num_products]
        at, product_at = at + level.num_opened, product_at + level.num_products
        masked = planes.mask_level(level, less, equal, masks)
        yield Tell(masked)
        opened = masked ^ (yield Hear("masked digits", tuple(masked.shape)))
        less, equal = planes.join_level(level, less, equal, opened, masks, products, is_first)
    share = own.top ^ less[0] ^ own.blind
    if is_first:
        share = ~(share ^ y_planes[width.sign_bit])
    yield Tell(share)
    bits = share ^ (yield Hear("masked signs", (width.words,)))
    return Compared(y, bits, own, is_first)


def positive_part(x: Tensor, own: Correlation, width: Width, *, is_first: bool) -> Work[Tensor]:
    """Steps 1 to 5, where the bit is not needed again: the memory of its mask holds the result."""
    compared = yield from compare(x, own, width, is_first=is_first)
    share = planes.select(compared.y, compared.bits, own.beta, own.r_beta, own.r, is_first, out=own.r)
    return share.reshape(x.shape)


@dataclass(frozen=True, repr=False)
class BitProduct:
    """One party's part of what `times_bit` uses up: shares of a mask s, and of s beta (an earlier comparison's)."""

    s: Tensor
    s_beta: Tensor


def drawn_bit_product(with_dealer: Stream, count: int) -> BitProduct:
    return BitProduct(with_dealer.words(count), with_dealer.words(count))


def dealt_bit_product(with_dealer: Stream, dealt: Tensor) -> BitProduct:
    return BitProduct(with_dealer.words(len(dealt)), dealt)


def deal_bit_product(with_drawing: Stream, with_dealt: Stream, beta: Tensor) -> Tensor:
    """The dealer, who knows the comparison's beta (`beta_of`): the share of s beta that is left."""
    drawn = drawn_bit_product(with_drawing, len(beta))
    return (drawn.s + with_dealt.words(len(beta))) * beta - drawn.s_beta


def beta_of(with_drawing: Stream, with_dealt: Stream, width: Width) -> Tensor:
    """The dealer: the betas of a comparison, from streams that stand where its dealing began."""
    _, _, own, _ = _drawn_whole(with_drawing, width)
    return planes.spread(own[0] ^ drawn_own(with_dealt, width)[1][0], width.count)


def times_bit(value: Tensor, compared: Compared, own: BitProduct) -> Work[Tensor]:
    """A share of `value` times the comparison's bit, of the shape of `value`: one opening, under a fresh mask."""
    mine = value.reshape(-1) + own.s
    yield Tell(mine)
    opened = mine + (yield Hear("masked factors", tuple(mine.shape)))
    share = planes.select(opened, compared.bits, compared.own.beta, own.s_beta, own.s, compared.is_first)
    return share.reshape(value.shape)
