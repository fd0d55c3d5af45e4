"""Reading an upload through a real-valued mask (ledger line 6). The server sees every masked upload and its weight.

- naive: take the upload as it is;
- adaptive: the mask's size is public, so that two suspected uploads can be told apart by a matched filter, the better
  the larger they are beside the mask; and where all terms of an upload carry one mask (as P0 prints it, Eq. 27), the
  differences of terms carry none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bilateral.protocols.messages import Upload


def mask_deviation(scale: float, num_neighbours: int, weight: int) -> float:
    """Standard deviation of the mask on every value: one Gaussian number a neighbour, over the client's weight."""
    return scale * math.sqrt(num_neighbours) / weight


def matched_filter(seen: Upload, suspected: Tensor, other: Tensor, deviation: float) -> float:
    """How much more the masked upload looks like `suspected` than like `other`, in standard deviations.

    Of all tests between two known uploads under Gaussian masks, none does better (Neyman and Pearson). Uploads are
    terms x parameters.
    """
    difference = (suspected - other).double()
    size = float(difference.norm())
    if size == 0:
        return 0.0
    middle = (suspected + other).double() / 2
    return float(((seen.terms.double() - middle) * difference).sum()) / (size * deviation)


def differences_of_terms(terms: Tensor) -> Tensor:
    """Every term but the first, minus the first: what one mask for all terms leaves in the clear."""
    return terms[1:] - terms[:1]


def relative_error(read: Tensor, truth: Tensor) -> float:
    """|read - truth| / |truth|"""
    return float(torch.linalg.vector_norm(read.double() - truth) / torch.linalg.vector_norm(truth.double()))
