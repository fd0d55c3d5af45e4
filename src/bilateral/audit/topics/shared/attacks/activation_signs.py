"""The querying party reads which neurons of an answering network are active (ledger, line 5).

It is shown a blinded number u for every compared number t. In the published comparison u has the sign of t and stands
in its place. The hardened one flips signs and reorders.

Both attackers take the place in the view for the neuron's. The naive one reads signs from one view. The adaptive one
asks the same queries again and again, since blinding is drawn anew each time: votes on the signs, and averages of the
sizes, of all views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ReadActivations:
    """A guess about one comparison, (queries, numbers) each: who is active, who is large (only the order counts)."""

    active: Tensor
    log_size: Tensor


def read_once(blinded: Tensor) -> ReadActivations:
    """Naive: signs and sizes as they are seen in one view."""
    return ReadActivations(blinded > 0, _log_size(blinded))


def read_by_vote(views: Sequence[Tensor]) -> ReadActivations:
    """Adaptive: u of one comparison in several views of the same queries. A tie is decided by the largest number."""
    stacked = torch.stack(list(views))
    votes = stacked.sign().sum(0)
    largest = stacked.gather(0, _log_size(stacked).argmax(0, keepdim=True))[0]
    return ReadActivations(torch.where(votes == 0, largest, votes) > 0, _log_size(stacked).mean(0))


def _log_size(blinded: Tensor) -> Tensor:
    return blinded.double().abs().clamp_min(1.0).log2()
