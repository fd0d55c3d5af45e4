"""The correction of a gradient, solved for what it must not say.

The dealer takes e = P' (x) B + B' (x) P off the server's part of a layer's gradient. The server knows P and P', and
whoever believes in a batch also B of the first layer (it is told x - B). If it is dealt e itself, it solves for B',
modulo 2^64: as many columns of P as there are samples, with an odd determinant, are enough. With B' it has the delta of
each sample, and a wrong batch gives none that a delta could be. Dealt as a share, e is uniform, and no batch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from bilateral.audit.sealed_views import TOLD_BLINDED, Event, SeenStep
from bilateral.audit.topics.sealed.attacks.known_masks import stream
from bilateral.protocols.share.circuit.description import Dense, Reshape

_MODULUS: Final = 1 << 64
_PLAUSIBLE: Final = float(1 << 40)
"""A delta in the ring is smaller."""


def solved_delta(seen: SeenStep, events: Sequence[Event], inputs: Tensor) -> Tensor | None:
    """The delta of the first layer as e says it; None where it cannot be solved, or is none.

    `inputs`: what the batch might be, in the ring.
    """
    terms, first = seen.terms, seen.terms.linear_steps[0]
    dealt = [one.words for one in events if one.is_dealt and one.name == "a share of a gradient's correction"]
    told = [one.words for one in events if one.name == TOLD_BLINDED]  # of the first layer first
    source = terms.source_values[0]
    before = terms.circuit.steps[:source]
    if not isinstance(first, Dense) or not all(isinstance(one, Reshape) for one in before):
        return None
    if seen.dealer_and_server is None:
        return None
    if not dealt or len(told) < 2 or not terms.trains[0][0]:
        return None
    value, delta = told[:2]
    blind = stream(terms, seen.dealer_and_server, "value blind", source).words(*value.shape)
    delta_blind = stream(terms, seen.dealer_and_server, "delta blind", 0).words(*delta.shape)
    mask = inputs.reshape(value.shape) - (value - blind)
    left = dealt[0] - delta_blind.reshape(len(delta), -1).T @ mask.reshape(len(mask), -1)
    mask_of_delta = _solve(blind.reshape(len(blind), -1), left)
    if mask_of_delta is None:
        return None
    found = delta.reshape(len(delta), -1) - delta_blind.reshape(len(delta), -1) + mask_of_delta
    return found if float(found.double().abs().max()) < _PLAUSIBLE else None


def _solve(known: Tensor, right: Tensor) -> Tensor | None:
    """X with X^T known = right modulo 2^64 (known: samples x columns, right: rows x columns), by elimination."""
    rows = [[*map(int, column)] for column in known.T.tolist()]
    sides = [[*map(int, column)] for column in right.T.tolist()]
    count = known.shape[0]
    for done in range(count):
        pivot = next((row for row in range(done, len(rows)) if rows[row][done] % 2), None)
        if pivot is None:
            return None
        for both in (rows, sides):
            both[done], both[pivot] = both[pivot], both[done]
        inverse = pow(rows[done][done] % _MODULUS, -1, _MODULUS)
        for both in (rows, sides):
            both[done] = [value * inverse % _MODULUS for value in both[done]]
        for row in range(len(rows)):
            if row != done and (factor := rows[row][done]):
                rows[row] = [(a - factor * b) % _MODULUS for a, b in zip(rows[row], rows[done], strict=True)]
                sides[row] = [(a - factor * b) % _MODULUS for a, b in zip(sides[row], sides[done], strict=True)]
    signed = [[value - _MODULUS if value >= _MODULUS // 2 else value for value in side] for side in sides[:count]]
    return torch.tensor(signed, dtype=torch.int64)
