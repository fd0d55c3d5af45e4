"""A round of sealed steps in figures, for a classifier: all that was heard and dealt, as it is, less what came before.

The naive adversary has the mean of every kind of number; the adaptive one all that weak masks show (`view_figures`), of
two rounds side by side, and what is left when its own masks are taken off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch

from bilateral.audit.sealed_views import SealedView, SeenStep
from bilateral.audit.topics.sealed.attacks.known_masks import stream
from bilateral.audit.topics.shared.attacks.view_figures import Part, mean_figures, weakness_figures

_MOST_WORDS: Final = 2048
"""Of one tensor."""
_NOTHING: Final = torch.zeros(2, dtype=torch.int64)
"""What a view has that has nothing."""


def figures_of(view: SealedView, client: str, rounds: Sequence[int], *, adaptive: bool) -> np.ndarray:
    """A row a round, the same figures in each."""
    parts = {index: list(_parts(view, client, index, adaptive=adaptive)) for index in rounds}
    if not adaptive:
        return np.stack([mean_figures(parts[index]) for index in rounds])
    beside = [rounds[max(place - 1, 0) if place else min(1, len(rounds) - 1)] for place in range(len(rounds))]
    return np.stack([weakness_figures([*parts[a], *parts[b]]) for a, b in zip(rounds, beside, strict=True)])


def _parts(view: SealedView, client: str, index: int, *, adaptive: bool) -> Iterator[Part]:
    for seen in view.in_round(index):
        role = "suspect" if seen.client == client else "other"
        for place, words in enumerate(seen.weights):
            yield Part(f"{role} masked weights", place, words.reshape(-1)[:_MOST_WORDS])
        for kind, told in (("told by server", seen.told_by_server), ("told by client", seen.told_by_client)):
            for place, words in enumerate(told):
                yield Part(f"{role} {kind}", place, words.reshape(-1)[:_MOST_WORDS])
        for place, words in enumerate(seen.dealt):
            yield Part(f"{role} dealt", place, words.reshape(-1)[:_MOST_WORDS])
        if adaptive:
            yield from _named(seen, role)
    yield Part("nothing", 0, _NOTHING)


def _named(seen: SeenStep, role: str) -> Iterator[Part]:
    """By what it is, and less the party's own masks of the same value."""
    places: dict[str, int] = {}
    for event in seen.events:
        if not event.name or event.is_told:
            continue
        place = places[event.name] = places.get(event.name, -1) + 1
        yield Part(f"{role} {event.name}", place, event.words.reshape(-1)[:_MOST_WORDS])
    if seen.told_by_client and seen.dealer_and_client is not None:
        first = seen.told_by_client[0]
        bare = first + stream(seen.terms, seen.dealer_and_client, "value mask", seen.terms.source_values[0]).words(
            *first.shape
        )
        yield Part(f"{role} first input", 0, bare.reshape(-1)[:_MOST_WORDS])
