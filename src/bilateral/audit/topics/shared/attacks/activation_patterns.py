"""The querying party looks for patterns in blinded numbers that right blinding does not have (ledger, line 5).

Right blinding leaves sizes, blurred, in random order. Weaker blinding leaves more, whatever the order:
- signs that are not flipped: the share of positive numbers is that of active neurons;
- one factor for many numbers: sizes are blurred by nothing, but for a common factor;
- few factors, or factors that are used again: a number that is asked about twice is seen twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_SAME: Final = 2.0**-14
"""Octaves. Truncation rounds t by one unit, of some 2^20, from view to view."""


def active_shares(views: Sequence[Tensor]) -> Tensor:
    """Of one comparison, by query: which share of its numbers is positive."""
    return (torch.stack(list(views)) > 0).double().mean((0, 2))


def sorted_sizes(blinded: Tensor) -> Tensor:
    """By query: log2 of the sizes, smallest first, less their mean: right if all factors of a query are one."""
    logs = blinded.double().abs().clamp_min(0.5).log2().sort(1).values
    return logs - logs.mean(1, keepdim=True)


def seen_again(views: Sequence[Tensor]) -> Tensor:
    """By query: the share of numbers, of all views of one comparison, whose size comes twice."""
    logs = torch.cat(list(views), dim=1).double().abs().clamp_min(0.5).log2().sort(1).values
    is_close = logs.diff(dim=1) < _SAME
    nowhere = torch.zeros(len(logs), 1, dtype=torch.bool)
    return (torch.cat([is_close, nowhere], 1) | torch.cat([nowhere, is_close], 1)).double().mean(1)
