"""The correction of a gradient, solved for what it must not say.

The dealer takes e = P' (x) B + B' (x) P off the client's part of a layer's gradient. The client knows B and B', and in
the first layer P (it is told t + P, and t is its own input less B). If it is dealt e itself, it solves for P', modulo
2^64: as many columns of B as there are samples, with an odd determinant, are enough. With P' it has the delta of each
of its samples. Dealt as a share, e is uniform, and what comes out are no numbers that a delta could be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from bilateral.audit.sealed_views import Event, SeenStep
from bilateral.audit.topics.sealed.attacks.known_masks import stream
from bilateral.protocols.share.circuit.description import Dense, Reshape

_MODULUS: Final = 1 << 64
_PLAUSIBLE: Final = float(1 << 40)
"""A delta in the ring is smaller."""


def solved_delta(seen: SeenStep, events: Sequence[Event], inputs: Tensor) -> Tensor | None:
    """The delta of the first layer as e says it; None where it cannot be solved, or is none.

    `inputs`: the client's own, in the ring.
    """
    terms, first = seen.terms, seen.terms.linear_steps[0]
    dealt = [one.words for one in events if one.is_dealt and one.name == "a share of a gradient's correction"]
    told = [one.words for one in events if one.name == "a blinded value"]  # of the first layer first
    source = terms.source_values[0]
    before = terms.circuit.steps[:source]
    if not isinstance(first, Dense) or not all(isinstance(one, Reshape) for one in before):
        return None
    if seen.dealer_and_client is None:
        return None
    if not dealt or len(told) < 2 or not terms.trains[0][0]:
        return None
    value, delta = told[:2]
    mask = stream(terms, seen.dealer_and_client, "value mask", source).words(*value.shape)
    delta_mask = stream(terms, seen.dealer_and_client, "delta mask", 0).words(*delta.shape)
    blind = value - (inputs.reshape(value.shape) - mask)
    left = dealt[0] - delta_mask.reshape(len(delta), -1).T @ blind.reshape(len(blind), -1)
    blind_of_delta = _solve(mask.reshape(len(mask), -1), left)
    if blind_of_delta is None:
        return None
    found = delta.reshape(len(delta), -1) - blind_of_delta + delta_mask.reshape(len(delta), -1)
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
