"""Blinded numbers against ideal ones: does the querying party see more than line 5 of the ledger admits?

Negative control: the same compared numbers, blinded by the auditor as the hardened comparison is meant to blind, by
code and randomness of its own. What is better for the attacker than that comes from flips, factors or streams that are
not what they should be. Positive: the same numbers with one factor a query, the same in every view, and no flips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.topics.shared.attacks.activation_patterns import active_shares, seen_again, sorted_sizes
from bilateral.audit.topics.shared.shared_setting import Seen
from bilateral.protocols.guarantee import Subject
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.gates.judged import FACTOR_OCTAVES, factor_bits
from bilateral.randomness import Randomness

ACTIVE = Metric("error of a layer's share of active neurons", "low")
SHAPE = Metric("error of a layer's relative sizes, octaves", "low", digits=2)
AGAIN = Metric("blinded numbers seen again", "high")
_GATES = (Gate(ACTIVE, 0.01), Gate(SHAPE, 0.1), Gate(AGAIN, 0.5))
"""Guessing one half is often within 0.05 of the share of active neurons."""

Truth = Mapping[str, Sequence[Tensor]]
"""By answering party: t of every comparison, (queries, numbers) each."""


def blinding_evidence(
    subject: Subject | int, conditions: Sequence[tuple[str, Sequence[Seen]]], truth: Truth, seen: str
) -> Evidence:
    """`conditions`: target, positive and negative control, in words, and the views of the same queries."""
    target, positive, negative = (Condition(what, pattern_scores(views, truth)) for what, views in conditions)
    return with_controls(
        subject,
        "querying party",
        "patterns that right blinding does not have",
        seen,
        _GATES,
        target=target,
        positive=positive,
        negative=negative,
        remark="the sizes that line 5 of the ledger admits are in the negative control too",
    )


def made_views(
    models: Mapping[str, FixedPointModel],
    truth: Truth,
    num_views: int,
    randomness: Randomness,
    *,
    spoilt: bool = False,
) -> list[Seen]:
    """What the querying party would see if all blinding were drawn anew, as the hardened comparison says.

    `spoilt`: with one factor a query, the same in every view, and without flips.
    """
    return [
        {
            name: [
                _blinded(
                    numbers, one.fraction_bits, randomness.child(0 if spoilt else view, name, place), spoilt=spoilt
                )
                for place, (numbers, one) in enumerate(zip(comparisons, models[name].circuit.comparisons, strict=True))
            ]
            for name, comparisons in truth.items()
        }
        for view in range(num_views)
    ]


def _blinded(numbers: Tensor, fraction_bits: int, randomness: Randomness, *, spoilt: bool) -> Tensor:
    """s (k t + e), from the words of `gates/judged` and not from its code; the order stays: no figure needs it.

    k is odd, its logarithm the sum of three uniform numbers over the top octaves; 0 < e < k; s is a coin.
    """
    queries = len(numbers)
    columns = 1 if spoilt else numbers.shape[1]
    place = torch.stack([randomness.child("octave", i).uniform(queries, columns) for i in range(3)]).mean(0)
    log_factors = factor_bits(fraction_bits) - FACTOR_OCTAVES * (1 - place)
    factors = torch.exp2(log_factors).to(torch.int64) | 1
    offsets = 1 + (randomness.child("offset").uniform(*numbers.shape) * (factors - 1)).to(torch.int64)
    signs = 1 if spoilt else randomness.child("sign").signs(*numbers.shape).to(torch.int64)
    return signs * (factors * numbers + offsets.clamp_max(factors - 1))


def pattern_scores(views: Sequence[Seen], truth: Truth) -> tuple[Scores, ...]:
    """A value a query: the mean over all comparisons of all answering parties."""
    active, shape, again = [], [], []
    for name, comparisons in truth.items():
        for place, true in enumerate(comparisons):
            blinded = [view[name][place] for view in views]
            active.append((active_shares(blinded) - (true >= 0).double().mean(1)).abs())
            sizes = sorted_sizes(torch.where(true >= 0, true, -true - 1))
            shape.append(torch.stack([(sorted_sizes(one) - sizes).abs().mean(1) for one in blinded]).mean(0))
            again.append(seen_again(blinded))
    return tuple(
        Scores(metric, tuple(torch.stack(values).mean(0).tolist()))
        for metric, values in ((ACTIVE, active), (SHAPE, shape), (AGAIN, again))
    )
