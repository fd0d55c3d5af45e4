"""Class weights that balance: how often each class is there, counted before the first step and summed as uploads are.

1. `CountClasses`  server -> client   in place of a round's model: count the classes of all your samples
2. `Upload`        client -> server   the counts in the first places of an upload like any other (masked, if those are)
3. `ClassTotals`   server -> client   before each later model: the counts of all; everyone works out the weights

Formal guarantee (tests/protocols/test_class_balance.py, tests/runs/rounds/test_balanced.py): the server learns of the
counts what it learns of uploads: under masks their sum over the clients of that round. All learn that sum. Masks are
bound to it: clients that are told different totals have no sum in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from bilateral.errors import ProtocolError
from bilateral.protocols.messages import Message, RoundModel
from bilateral.protocols.objective import Objective

_UNIT: Final = float(1 << 20)
"""Counts travel in units of 2^20, so that they are no larger than gradients are."""
MAX_COUNT: Final = 1 << 40


@dataclass(frozen=True)
class CountClasses(RoundModel):
    """Takes a round: nobody trains in it. `parameters` is empty."""


@dataclass(frozen=True)
class ClassTotals(Message):
    """How often each class is there at all clients (int64), and last the number of samples (or places)."""

    round_index: int
    totals: Tensor


def count_classes(objective: Objective, targets: Tensor, num_outputs: int) -> Tensor:
    """How often each class (or label) is there, and how many samples (or places) there are."""
    if objective.targets == "labels":
        return torch.cat([targets.sum(0).double(), torch.tensor([float(len(targets))], dtype=torch.float64)])
    found = torch.bincount(targets.reshape(-1), minlength=num_outputs).double()
    return torch.cat([found, found.sum()[None]])


def as_terms(counts: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Counts as an upload of this shape."""
    if shape[1] < len(counts):
        raise ProtocolError(
            f"A model of {shape[1]} parameters has no room to count {len(counts) - 1} classes.",
            remedy="List the weights: training.class_weights = [...].",
        )
    terms = torch.zeros(shape, dtype=dtype)
    terms[0, : len(counts)] = (counts / _UNIT).to(dtype)
    return terms


def totals_of(terms: Tensor, num_outputs: int) -> Tensor:
    """The counts in a sum of uploads; `ProtocolError` if they are none."""
    found = (terms[0, : num_outputs + 1].double() * _UNIT).round()
    if not bool(torch.isfinite(found).all()) or float(found.max()) > MAX_COUNT:
        raise ProtocolError("The clients' class counts do not add up to numbers of samples.")
    return _checked(found.long(), num_outputs, "the sum of the counts")


def weights_from(message: ClassTotals, objective: Objective, num_outputs: int) -> tuple[float, ...]:
    """What `balanced` means: ce, samples / (classes x count); bce, negatives / positives. 1 for what is never there."""
    if message.totals.dtype != torch.int64:
        raise ProtocolError(f"ClassTotals from the server: expected whole numbers, got {message.totals.dtype}.")
    message.expect_shape("the server", "totals", (num_outputs + 1,))
    *counts, total = _checked(message.totals, num_outputs, "ClassTotals from the server").tolist()
    if objective.targets == "labels":
        return tuple((total - count) / count if 0 < count < total else 1.0 for count in counts)
    there = sum(count > 0 for count in counts)
    return tuple(total / (there * count) if count else 1.0 for count in counts)


def _checked(totals: Tensor, num_outputs: int, what: str) -> Tensor:
    counts, total = totals[:num_outputs], int(totals[-1])
    if int(counts.min()) < 0 or int(counts.max()) > total or not 0 < total <= MAX_COUNT:
        raise ProtocolError(f"{what}: expected counts between 0 and their total, got {totals.tolist()}."[:500])
    return totals
