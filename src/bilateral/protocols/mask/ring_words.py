"""Uploads that are words modulo 2^64 already: shares of something, which are summed as they are.

A vector holds the rows of the terms, and the weight itself at its end; there are no statistics. Nothing is encoded:
there is no range, so no refusal for range; no rounding, so no last bits to draw. The sum is one of words modulo 2^64,
and what it means is the business of those who made the words. An opening says so by a format without rows, which no
numbers have, so that neither form of opening can be taken for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from bilateral.errors import ProtocolError
from bilateral.protocols.mask.fixed_point import MAX_WEIGHT, FixedPointFormat
from bilateral.protocols.mask.messages import MaskOpening
from bilateral.protocols.mask.widths import WIDEST, Width
from bilateral.protocols.messages import Aggregate, Upload


@dataclass(frozen=True)
class RingWords:
    """The format of such uploads: nothing to agree on."""

    fraction_bits: tuple[int, ...] = ()
    bound_bits: tuple[int, ...] = ()
    width: Width = WIDEST


UploadFormat = FixedPointFormat | RingWords


def format_of(opening: MaskOpening) -> UploadFormat:
    """What an opening says; a `ProtocolError` if no upload has such a format."""
    if not opening.fraction_bits:
        if opening.width != WIDEST:
            raise ProtocolError(f"Ring words have {WIDEST} bits, and an opening for them says {opening.width}.")
        return RingWords()
    return FixedPointFormat(opening.fraction_bits, len(opening.participants), cast("Width", opening.width))


def words_of(upload: Upload, sender: str) -> Tensor:
    """All terms of `upload`, then its weight, as one new int64 vector."""
    if not 1 <= upload.weight <= MAX_WEIGHT:
        raise ProtocolError(
            f"Upload from {sender}: expected a weight between 1 and 2^40, got {upload.weight}.",
            remedy="Leave out clients without data.",
        )
    if upload.terms.dtype != torch.int64 or upload.terms.dim() != 2 or upload.statistics.numel():
        raise ProtocolError(
            f"Upload from {sender}: expected rows of ring words (int64) and no statistics, got {upload.terms.dtype} of "
            f"shape {tuple(upload.terms.shape)} and {upload.statistics.numel()} statistics.",
            remedy="Both sides must run the same plan.",
        )
    return torch.cat([upload.terms.reshape(-1), torch.tensor([upload.weight])])


def sum_of_words(total: Tensor, round_index: int, terms_shape: tuple[int, int], num_statistics: int) -> Aggregate:
    """The sums as they are, int64 modulo 2^64, and the total weight."""
    num_terms, num_parameters = terms_shape
    expected = num_terms * num_parameters + 1
    if num_statistics or total.shape != (expected,):
        raise ProtocolError(
            f"Expected a sum of {expected} ring words without statistics, got {total.numel()} and {num_statistics} "
            "statistics.",
            remedy="Both sides must run the same plan.",
        )
    return Aggregate(round_index, int(total[-1]), total[:-1].reshape(terms_shape), torch.zeros(0, dtype=torch.float64))
