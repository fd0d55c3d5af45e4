"""The querying party learns activations from everything that it has, with networks of its own to learn from.

For every compared number it takes all that could belong to it: the blinded number, where it judges; the mask r, the bit
beta, what it received in that place with and without its mask, and the sum of the logits, where it only deals. From
sessions with its own networks, whose numbers it knows, it learns which of this tells signs, sizes and zeros, and
applies that to sessions with others. It needs no idea of *how* a comparison leaks: only that it does, and alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from bilateral.audit.shared_views import Session, SharedView, blinded_numbers, dealt_masks, received_in_place

_MOST_EXAMPLES: Final = 6000
"""Of one comparison, evenly spread: a leak that needs more is looked for by other attacks."""
_LOW_BITS: Final = 4


@dataclass(frozen=True, eq=False)
class LearnedNumbers:
    """A guess about one comparison, (queries, numbers) each; of `log_size` only the order counts."""

    active: Tensor
    log_size: Tensor
    is_zero: Tensor


def hints(view: SharedView, session: Session) -> list[Tensor]:
    """Of every comparison what the querying party has for each of its numbers: (queries, numbers, figures)."""
    if view.style.is_judged:
        return [_of_words(u) for u in blinded_numbers(view, session)]
    assert view.answers is not None, "only the querying party has answers"
    parts: list[list[Tensor]] = [[] for _ in session.circuit.comparisons]
    start = 0
    for index, size in view.batches(session):
        sums = view.answers[start : start + size].double()
        start += size
        for place, (part, masks) in enumerate(zip(parts, dealt_masks(view, session, index, size), strict=True)):
            received = received_in_place(view, session, index, place, masks.r)
            classes = torch.arange(masks.r.shape[1]) % sums.shape[1]
            turned = (received - masks.r) * (1 - 2 * masks.beta)
            columns = [_of_words(words) for words in (masks.r, received, received - masks.r, turned)]
            part.append(torch.cat([*columns, torch.stack([masks.beta.double(), sums[:, classes]], 2)], dim=2))
    return [torch.cat(part) for part in parts]


def with_sum_of(one: Tensor, other: Tensor) -> Tensor:
    """The hints `one`, with the sums of the logits of `other`: the last figure, where the party only deals."""
    return torch.cat([one[..., :-1], other[..., -1:]], dim=2)


def learn_numbers(
    own: Sequence[Tensor], own_numbers: Tensor, seen: Sequence[Tensor], *, is_zero_at_most: int = 1
) -> LearnedNumbers:
    """Of one comparison: hints (one tensor a view) of own sessions and t in them, and hints of others' sessions."""
    known = torch.cat([view.reshape(-1, view.shape[-1]) for view in own]).numpy()
    numbers = own_numbers.reshape(-1).repeat(len(own)).numpy()
    chosen = np.linspace(0, len(known) - 1, min(_MOST_EXAMPLES, len(known))).astype(np.int64)
    known, numbers = known[chosen], numbers[chosen]
    shape = seen[0].shape[:2]

    def mean(learned: Pipeline, method: str) -> Tensor:
        found = [getattr(learned, method)(view.reshape(-1, view.shape[-1]).numpy()) for view in seen]
        return torch.from_numpy(np.mean(found, axis=0)).reshape(shape)

    sizes = make_pipeline(StandardScaler(), Ridge()).fit(known, np.log2(np.abs(numbers.astype(np.float64)) + 1))
    yes_or_no = []
    for truth in (numbers >= 0, np.abs(numbers) <= is_zero_at_most):
        if truth.all() or not truth.any():
            yes_or_no.append(torch.full(shape, bool(truth[0])))
            continue
        learned = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=200))
        yes_or_no.append(mean(learned.fit(known, truth), "decision_function") > 0)
    return LearnedNumbers(yes_or_no[0], mean(sizes, "predict"), yes_or_no[1])


def _of_words(words: Tensor) -> Tensor:
    """Sign, size, the highest bit below the comparison's own, and the lowest bits."""
    signed = words.double()
    low = [((words >> bit) & 1).double() for bit in range(_LOW_BITS)]
    top = [((words >> bit) & 1).double() for bit in (31, 32)]
    return torch.stack([signed.sign(), signed.abs().clamp_min(1.0).log2(), *top, *low], dim=2)
