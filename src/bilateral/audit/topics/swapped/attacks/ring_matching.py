"""Weak masks, found by matching: an upload in the ring minus what each of two batches would have made of it.

The attacker knows both batches, so it computes both candidate uploads by itself (`recomputed_uploads`), takes off every
mask that it knows (`stripped_masks`) and subtracts. Of the right candidate nothing is left but masks:

- a coordinate without a mask leaves zero;
- a mask word that is used twice, in one row, in two rows or at any distance, leaves the same number twice, up to its
  sign: all residuals of a round are sorted, and neighbours compared; so are differences of neighbouring residuals,
  which find masks that go on in equal steps;
- a mask that is used in two rounds leaves the same number at the same coordinate, whichever the two rounds are, or at
  another one, if streams of rounds overlap;
- a mask that is a small multiple of its neighbour, or of the other suspect's at the same place, is found by that;
- masks that do not fill the ring, or fill it too evenly, leave bits that are not like coins.

Of the wrong candidate the difference of the two stays, which hides all this. Under masks that are uniform and
independent the residuals of both are uniform, and the guess is a coin (test_uniform_masks_leave_a_coin). Chance hits
are rare: a hit is a distance of about 2^30 in a ring of 2^64. Other relations between masks are not looked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from bilateral.audit.topics.inversion.attacks.stripped_masks import RingUpload, stripped_values
from bilateral.audit.topics.swapped.attacks.recomputed_uploads import needs_answers
from bilateral.audit.topics.swapped.attacks.swapped_worlds import Suspicion
from bilateral.audit.views import View
from bilateral.protocols.mask.fixed_point import MAX_WEIGHT, FixedPointFormat
from bilateral.protocols.mask.widths import WIDEST
from bilateral.protocols.messages import Upload

Words = NDArray[np.uint64]
FloatArray = NDArray[np.float64]
_SLACK_BITS = 18
"""A candidate may be wrong by 2^-18 of a row's size: it was computed in float32, and last bits are drawn (a value may
be some times as large as its row)."""
_LEAST_SLACK = 4.0
_WORD_BITS = 64
_MAX_ACROSS = 1 << 14
"""Coordinates that are compared between rounds, evenly spaced."""
_MAX_BITS = 1 << 13
"""Residuals that are looked at bit by bit, evenly spaced."""
_LARGEST = 2.0**62
_MULTIPLES = (2, 3, 4, 5, 7, 8, 16)
"""And their negatives; 1 and -1 are among the repeated words."""
_SURE = 8.0
"""Standard deviations by which hits at any place must exceed what chance gives: there are many pairs."""


@dataclass(frozen=True, eq=False)
class Residual:
    """What is left of one upload: for each of two candidates, all words, and their sizes (distance from 0)."""

    words: Words = field(repr=False)
    """2 x coordinates."""
    telling: NDArray[np.bool_] = field(repr=False)
    """Coordinates at which the candidates differ by more than the slack: others say nothing."""
    slack: float

    @property
    def sizes(self) -> Words:
        found: Words = np.minimum(self.words, np.uint64(0) - self.words)
        return found


def seen_upload(view: View, round_index: int, client: str, known: Suspicion) -> RingUpload:
    """One client's upload in the ring, with every mask taken off that is known."""
    plain = view.message(Upload, round_index=round_index, sender=client)
    found = as_ring(plain) if plain else stripped_values(view, round_index, client, known.rings)
    assert found is not None, f"no upload of {client} in round {round_index} in this view"
    return found


def residual_of(view: View, round_index: int, client: str, known: Suspicion) -> Residual:
    """What is left of one suspect's upload, by world."""
    worlds = [_candidate(view, round_index, client, known, world) for world in (0, 1)]
    return residual(seen_upload(view, round_index, client, known), (worlds[0], worlds[1]))


def _candidate(view: View, round_index: int, client: str, known: Suspicion, world: int) -> Upload:
    batch = known.batch(client, world)
    whose = client if needs_answers(view.facts) else ""  # without answers of its own, everybody's is the same
    key = (round_index, whose, int(batch is known.y))
    if key not in known.notes.uploads:
        known.notes.uploads[key] = known.notes.rehearsal.upload(view, round_index, client, batch, known.weight)
    return known.notes.uploads[key]


def as_ring(upload: Upload) -> RingUpload:
    """An upload in the clear, in a format of one's own."""
    rows = [*upload.terms, upload.statistics]
    bounds = [max(float(row.abs().max()) * upload.weight if row.numel() else 0.0, 1e-9) for row in rows]
    form = FixedPointFormat.for_bounds(bounds, 1)
    values = torch.cat([torch.from_numpy(encoded(upload, form)), torch.tensor([upload.weight])])
    return RingUpload(values, form, upload.terms.shape[1])


def encoded(upload: Upload, form: FixedPointFormat) -> NDArray[np.int64]:
    """The rows of an upload in fixed point, as a client encodes them; whether they fit is not asked.

    That would tell: a candidate that does not fit was not sent, but this is about masks, and line 11 about ranges.
    """
    parts = []
    for row, bits in zip([*upload.terms, upload.statistics], form.fraction_bits, strict=True):
        scaled = row.double() * math.ldexp(upload.weight, bits)
        parts.append(scaled.round().clamp(-_LARGEST, _LARGEST).to(torch.int64))
    found: NDArray[np.int64] = torch.cat(parts).numpy()
    return found


def residual(seen: RingUpload, candidates: tuple[Upload, Upload]) -> Residual:
    """The upload that was seen, masks taken off, minus each candidate; without the weight.

    In a ring of fewer than 64 bits all of it is multiplied by what fills 64: what is equal there is equal here.
    """
    upload = seen.values[:-1].numpy().view(np.uint64)
    assert isinstance(seen.form, FixedPointFormat), "ring words follow from no batch"
    expected = np.stack([encoded(candidate, seen.form) for candidate in candidates])
    sizes = [np.sqrt(np.square(row.astype(np.float64)).mean()) for row in expected]
    slack = max(_LEAST_SLACK, 2.0**-_SLACK_BITS * float(max(sizes)))
    apart = np.abs(expected[0].astype(np.float64) - expected[1].astype(np.float64))
    spare = WIDEST - seen.form.width
    left = (upload - expected.view(np.uint64)) << np.uint64(spare)
    return Residual(left, apart > 2 * slack, slack * 2.0**spare)


def matches(one: Residual) -> FloatArray:
    """Of each candidate, how many residuals of one upload are zero, and how many are there twice."""
    found = []
    for sizes in one.sizes[:, one.telling]:
        ordered = np.sort(sizes)
        found.append(np.sum(ordered <= one.slack) + np.sum(np.diff(ordered) <= 2 * one.slack))
    return np.array(found, dtype=np.float64)


def matches_across(rounds: Sequence[Residual]) -> FloatArray:
    """Of each round and candidate, how many residuals some other round has too, at the same coordinate."""
    step = max(1, len(rounds[0].telling) // _MAX_ACROSS)
    sizes = np.concatenate([one.sizes[:, ::step] for one in rounds])
    telling = np.repeat([one.telling[::step] for one in rounds], 2, axis=0)
    order = sizes.argsort(axis=0)
    ordered, telling = (np.take_along_axis(array, order, axis=0) for array in (sizes, telling))
    near = np.diff(ordered, axis=0) <= 2 * max(one.slack for one in rounds)
    near &= telling[1:] & telling[:-1] & (order[1:] // 2 != order[:-1] // 2)
    hits = np.bincount(order[1:][near], minlength=len(sizes)) + np.bincount(order[:-1][near], minlength=len(sizes))
    return hits.reshape(len(rounds), 2).astype(np.float64)


def steady_steps(one: Residual) -> FloatArray:
    """Of each candidate, how many differences of neighbouring residuals are zero, or are there twice."""
    both = one.telling[1:] & one.telling[:-1]
    found = []
    for words in one.words:
        steps = (words[1:] - words[:-1])[both]
        ordered = np.sort(np.minimum(steps, np.uint64(0) - steps))
        found.append(np.sum(ordered <= 2 * one.slack) + np.sum(np.diff(ordered) <= 4 * one.slack))
    return np.array(found, dtype=np.float64)


def multiples(words: Words, others: Words, telling: NDArray[np.bool_], slack: float) -> FloatArray:
    """Of each candidate (rows), how many of these words are a small multiple of those at the same place."""
    total = np.zeros(len(words))
    for factor in _MULTIPLES:
        scaled = np.uint64(factor) * others
        for left in (words - scaled, words + scaled):
            sizes = np.minimum(left, np.uint64(0) - left)
            total += np.sum((sizes <= (1 + factor) * slack) & telling, axis=1)
    return total


def _neighbours_multiples(one: Residual) -> FloatArray:
    telling = one.telling[1:] & one.telling[:-1]
    found = multiples(one.words[:, 1:], one.words[:, :-1], telling, one.slack)
    return found + multiples(one.words[:, :-1], one.words[:, 1:], telling, one.slack)


def _mutual_multiples(first: Residual, second: Residual) -> FloatArray:
    """Of one suspect's residuals and the other's, and the other way round; in a world both candidates are its own."""
    telling, slack = first.telling & second.telling, max(first.slack, second.slack)
    same = multiples(first.words, second.words, telling, slack) + multiples(second.words, first.words, telling, slack)
    equal = np.minimum(first.words - second.words, second.words - first.words)
    opposite = np.minimum(first.words + second.words, np.uint64(0) - first.words - second.words)
    found: FloatArray = same + np.sum(((equal <= 2 * slack) | (opposite <= 2 * slack)) & telling, axis=1)
    return found


def matches_anywhere(rounds: Sequence[Residual]) -> FloatArray:
    """Of each round and candidate, how many residuals another round has anywhere, beyond what chance gives."""
    parts = [one.sizes[candidate, one.telling] for one in rounds for candidate in (0, 1)]
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    sizes = np.concatenate(parts)
    if len(sizes) < 2:
        return np.zeros((len(rounds), 2))
    order = np.argsort(sizes)
    ordered, owners = sizes[order], owners[order]
    reach = 2 * max(one.slack for one in rounds)
    near = (np.diff(ordered) <= reach) & (owners[1:] // 2 != owners[:-1] // 2)
    hits = np.bincount(owners[1:][near], minlength=len(parts)) + np.bincount(owners[:-1][near], minlength=len(parts))
    expected = 2.0 * np.array([len(part) for part in parts]) * len(sizes) * reach / 2.0**63
    beyond = hits - expected - _SURE * np.sqrt(expected + 1)
    found: FloatArray = np.maximum(beyond, 0.0).reshape(len(rounds), 2)
    return found


def unlikely_bits(one: Residual) -> FloatArray:
    """Of each candidate, how far the bits of its residuals are from coins: squared deviations, summed over bits.

    Each bit by itself, and whether it equals the next higher one: a short mask is a small number of either sign. Coins
    have a sum of 1 a bit: less is as unlikely as more.
    """
    words = one.words[:, :: max(1, one.words.shape[1] // _MAX_BITS)]
    found = []
    for both in (words, words ^ (words << np.uint64(1))):
        bits = np.unpackbits(np.ascontiguousarray(both).view(np.uint8).reshape(2, -1, 8), axis=2)
        found.append(4.0 * bits.shape[1] * np.square(bits.mean(1) - 0.5).sum(1))
    total: FloatArray = np.abs(np.sum(found, axis=0) - 2 * _WORD_BITS)
    return total


def guess_worlds(first: Sequence[Residual], second: Sequence[Residual]) -> list[int]:
    """Which candidate each round's uploads match: of the first client the candidate of a world, of the second too.

    Matches decide; where there are as many of both, the less likely bits do.
    """
    hits = np.zeros((len(first), 2))
    bits = np.zeros((len(first), 2))
    for rounds in (first, second):
        hits += np.stack([matches(one) + steady_steps(one) + _neighbours_multiples(one) for one in rounds])
        hits += matches_across(rounds) + matches_anywhere(rounds)
        bits += np.stack([unlikely_bits(one) for one in rounds])
    hits += np.stack([_mutual_multiples(*pair) for pair in zip(first, second, strict=True)])
    tied = hits[:, 0] == hits[:, 1]
    return [int(value) for value in np.where(tied, bits[:, 1] > bits[:, 0], hits[:, 1] > hits[:, 0])]


def is_weight(seen: RingUpload, weight: int, other: int = MAX_WEIGHT) -> bool:
    """Whether the last word, masks taken off, is nearer to `weight` than to the `other`: a coin, if it is masked."""
    word = int(seen.values[-1])
    return _distance(word - weight) < _distance(word - other)


def _distance(difference: int) -> int:
    return min(difference % 2**64, -difference % 2**64)
