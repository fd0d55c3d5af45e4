"""Sealed comparisons of chosen numbers, with all that is dealt, told and opened in the test's hands."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from tests.protocols.share.harness import uniform_words
from torch import Tensor

from bilateral.protocols.share.gates import planes, sealed
from bilateral.protocols.share.gates.sealed import Compared, Correlation, Width
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.ring.streams import Stream

R, PLANES = "r", "planes"


class Planned:
    """A stream with some of what is drawn for a comparison changed: sabotage, or a case that chance would never give.

    Both parties draw their part of r first, then planes of bits (the first one's are those in place of what is dealt to
    the second, then its own); the first draws its shares of beta and r beta last.
    """

    def __init__(self, seed, party, changes=None, width=None):
        self._stream = Stream.of(f"{party} {seed}".encode().ljust(32), "comparison", 0, 0)
        self._changes, self._width, self._has_selection = changes or {}, width, party == "first"

    def words(self, *shape):
        drawn = self._stream.words(*shape)
        if not self._changes:
            return drawn
        count, words = self._width.count, self._width.words
        end = len(drawn) - 2 * count * self._has_selection
        r, bits, selection = drawn[:count], drawn[count:end].view(-1, words), drawn[end:]
        changed = [change(part) for part, change in ((r, self._change(R)), (bits, self._change(PLANES)))]
        return torch.cat([*(part.reshape(-1) for part in changed), selection])

    def _change(self, name):
        return self._changes.get(name, lambda drawn: drawn)


@dataclass
class Dealing:
    """What one comparison uses up, from all three sides."""

    width: Width
    first: Correlation
    second: Correlation
    sent: tuple[Tensor, Tensor]

    @property
    def r(self):
        return self.first.r + self.second.r

    @property
    def betas(self):
        return planes.spread(self.first.blind ^ self.second.blind, self.width.count)


def dealing(width, seed=0, first=None, second=None):
    """A dealer's work, and both parties' parts of it. `first`, `second`: changes of draws (`Planned`)."""
    streams = [(Planned(seed, "first", first, width), Planned(seed, "second", second, width)) for _ in range(2)]
    sent = sealed.deal(*streams[0], width)
    return Dealing(width, sealed.drawn_part(streams[1][0], width), sealed.dealt_part(streams[1][1], sent, width), sent)


def converse(first, second):
    """Both works to their ends: (their results, what the first told, what the second told)."""
    speakers = Speaker(first, "the second party"), Speaker(second, "the first party")
    told = [], []
    while not all(speaker.is_done for speaker in speakers):
        for speaker, other, log in zip(speakers, speakers[::-1], told, strict=True):
            parts = speaker.take_told()
            log.extend(parts)
            other.hear(parts, must_lead=False)
    for speaker in speakers:
        assert not speaker.take_told()
        speaker.expect_end()
    return tuple(speaker.result for speaker in speakers), *told


@dataclass
class Sealed:
    """A comparison that took place. `told`: by the first, by the second."""

    results: tuple[Compared, Compared]
    told: tuple[list[Tensor], list[Tensor]]

    @property
    def positive(self):
        """max(x, 0), from both shares."""
        return sum(result.positive_part() for result in self.results)

    @property
    def y(self):
        return self.results[0].y

    @property
    def digits(self):
        """Opened planes of all levels."""
        opened = [a ^ b for a, b in zip(self.told[0][1:-1], self.told[1][1:-1], strict=True)]
        return torch.cat(opened) if opened else self.bits[:0].reshape(0, len(self.bits))

    @property
    def bits(self):
        """m."""
        return self.results[0].bits


def compare(x, found, shares=0):
    """`x` (flat), shared by this seed, or by a first share that is given."""
    share = uniform_words(x.shape, 5_000_000 + shares) if isinstance(shares, int) else shares
    results, first, second = converse(
        sealed.compare(share, found.first, found.width, is_first=True),
        sealed.compare(x - share, found.second, found.width, is_first=False),
    )
    assert torch.equal(results[0].y, results[1].y)
    assert torch.equal(results[0].bits, results[1].bits)
    return Sealed(results, (first, second))


def sealed_positive(x, digits, seed=0, shares=0):
    """max(x, 0) by a sealed comparison of so many digits."""
    return compare(x, dealing(Width(len(x), digits), seed), shares).positive


def explained(found, told, heard, x_share, *, is_first):
    """Another world: the part of one party under which it tells just `told`, though its share is `x_share`.

    `heard` is what the other tells, and goes on telling: its part stays what it is, and so does all that it sees. The
    new part fits what the dealer would have dealt, and is as likely as the old one: each of its fields is solved for by
    one addition or xor with something uniform. `is_first`: of the party whose part is found anew.
    """
    width, (own, other) = found.width, (found.first, found.second)[:: 1 if is_first else -1]
    top = width.sign_bit
    y_planes = planes.to_planes(told[0] + heard[0], top + 1)
    r = told[0] - x_share
    r_planes = planes.to_planes(r + other.r, top + 1)
    tables = planes.thermometers(r_planes, other.tables)
    both = planes.look_up(tables, y_planes, is_first)
    less, equal = both[: width.digits], both[width.digits :]
    masks, products, at, product_at = [], [], 0, 0
    for level, said, answered in zip(planes.levels(width.digits), told[1:-1], heard[1:-1], strict=True):
        here = slice(at, at + level.num_opened)
        masks.append(said ^ planes.mask_level(level, less, equal, torch.zeros_like(said)))
        there = slice(product_at, product_at + level.num_products)
        true = planes.products_of(level, masks[-1] ^ other.masks[here])
        products.append(true ^ other.products[there])
        at, product_at = here.stop, there.stop
        less, equal = planes.join_level(level, less, equal, said ^ answered, masks[-1], products[-1], is_first)
    own_top = r_planes[top] ^ other.top
    blind = told[-1] ^ own_top ^ less[0]
    if is_first:
        blind = ~(blind ^ y_planes[top])
    beta = planes.spread(blind ^ other.blind, width.count)
    return replace(
        own,
        r=r,
        tables=tables,
        top=own_top,
        products=torch.cat(products) if products else own.products,
        blind=blind,
        masks=torch.cat(masks) if masks else own.masks,
        beta=beta - other.beta,
        r_beta=(r + other.r) * beta - other.r_beta,
    )
