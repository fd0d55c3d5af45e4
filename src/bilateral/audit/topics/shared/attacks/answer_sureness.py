"""The querying party guesses how sure a single answering party was, of which it should know no more than the sum.

Blinded sizes come from each answering party apart (ledger, line 5), and a network whose last layers have large numbers
gives large logits. The attacker learns that on its own networks of the same architectures, where it knows everything,
and applies it to what it sees of the others. Figures are centred over the queries on both sides: networks differ in
their means, and the attacker has many queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import RidgeCV
from torch import Tensor

_PENALTIES = np.logspace(-2, 3, 11)


@dataclass(frozen=True, eq=False)
class SeenAnswer:
    """Of one answering party: u of all its comparisons in every view of the same queries, and the sum of the logits."""

    views: Sequence[Sequence[Tensor]]
    summed_logits: Tensor


def sureness(logits: Tensor) -> np.ndarray:
    """The logarithm of the spread of every answer over the classes."""
    found: np.ndarray = logits.double().std(1).clamp_min(1e-9).log2().numpy()
    return found


def guess_sureness(own: SeenAnswer, own_logits: Tensor, seen: SeenAnswer, *, with_sizes: bool) -> np.ndarray:
    """A number for each query of `seen`; only its order over the queries counts. Without sizes: from the sum alone."""
    known, shown = (_figures(answer, with_sizes=with_sizes) for answer in (own, seen))
    wanted = sureness(own_logits)
    model = RidgeCV(_PENALTIES).fit(known - known.mean(0), wanted - wanted.mean())
    guess: np.ndarray = model.predict(shown - shown.mean(0))
    return guess


def _figures(answer: SeenAnswer, *, with_sizes: bool) -> np.ndarray:
    """A row a query: the mean blinded log size of every comparison, and how sure the sum is."""
    columns = [sureness(answer.summed_logits)]
    if with_sizes:
        for comparison in zip(*answer.views, strict=True):
            logs = [view.double().abs().clamp_min(1.0).log2().mean(1).numpy() for view in comparison]
            columns.append(np.mean(logs, axis=0))
    return np.stack(columns, axis=1)
