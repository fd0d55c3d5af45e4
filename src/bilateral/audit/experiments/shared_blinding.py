"""Blinded numbers against ideal ones: does the querying party see more than line 5 of the ledger admits?

Negative control: the same compared numbers, blinded by the auditor as the hardened comparison is meant to blind, with
randomness of its own. What is better for the attacker than that comes from flips, factors or streams that are not what
they should be. Positive: the published comparison, which flips nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bilateral.audit.attacks.activation_patterns import active_shares, seen_again, sorted_sizes
from bilateral.audit.evidence import Condition, Evidence, Gate
from bilateral.audit.experiments.shared_setting import Seen
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.shared_views import comparison_bits
from bilateral.protocols.guarantee import Subject
from bilateral.protocols.share.comparison import HARDENED, Blinding, factor_bits
from bilateral.protocols.share.plaintext import FixedPointModel
from bilateral.randomness import Randomness

ACTIVE = Metric("error of a layer's share of active neurons", "low")
SHAPE = Metric("error of a layer's relative sizes, octaves", "low", digits=2)
AGAIN = Metric("blinded numbers seen again", "high")
_READ = 0.01
"""Of `ACTIVE`. Guessing one half is often within 0.05: about so many neurons are active."""

Truth = Mapping[str, Sequence[Tensor]]
"""By answering party: t of every comparison, (queries, numbers) each."""


def blinding_evidence(
    subject: Subject | int, conditions: Sequence[tuple[str, Sequence[Seen]]], truth: Truth, seen: str
) -> Evidence:
    """`conditions`: target, positive and negative control, in words, and the views of the same queries."""
    target, positive, negative = (Condition(what, pattern_scores(views, truth)) for what, views in conditions)
    return Evidence(
        tests=subject,
        adversary="querying party",
        attack="patterns that right blinding does not have",
        adaptive=True,
        seen=seen,
        target=target,
        positive=positive,
        negative=negative,
        gates=(Gate(ACTIVE, _READ),),
        paired=True,
        remark="the sizes that line 5 of the ledger admits are in the negative control too",
    )


def ideal_views(
    models: Mapping[str, FixedPointModel], truth: Truth, num_views: int, randomness: Randomness
) -> list[Seen]:
    """What the querying party would see if all blinding were drawn anew, as the hardened comparison says."""
    return [
        {
            name: [
                _blinded(numbers, bits, randomness.child(view, name, place))
                for place, (numbers, bits) in enumerate(
                    zip(comparisons, comparison_bits(models[name].circuit), strict=True)
                )
            ]
            for name, comparisons in truth.items()
        }
        for view in range(num_views)
    ]


def _blinded(numbers: Tensor, fraction_bits: int, randomness: Randomness) -> Tensor:
    """The order stays: no figure here depends on it."""
    words, spread = (
        torch.frombuffer(bytearray(randomness.child(i).random_bytes(8 * numbers.numel())), dtype=torch.int64)
        for i in range(2)
    )
    shape = numbers.shape
    drawn = Blinding(words.reshape(shape), spread.reshape(shape), None, factor_bits(fraction_bits), HARDENED)
    return drawn.signs * (drawn.factors * numbers + drawn.offsets)


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
