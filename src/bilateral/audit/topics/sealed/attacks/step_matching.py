"""Which of two models, or of two batches, is behind a sealed step? By matching: whatever each would leave is looked at.

The attacker knows both. It takes what each world predicts off the masked words: of the right world nothing is left but
masks, and it looks for those that it can draw itself (`known_masks`), for none at all, and for such as come again in
another round. It holds the signs that each world predicts against the opened signs of comparisons: under a beta that is
a coin they agree in half of the places. And it solves the corrections of gradients (`solved_corrections`).

With masks that are uniform, fresh and unknown to it all this is chance, and the guess a coin (test_step_matching.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from torch import Tensor

from bilateral.audit.sealed_views import SealedView, SeenStep, Worlds
from bilateral.audit.topics.sealed.attacks.known_masks import mask_guesses, weight_mask_guesses
from bilateral.audit.topics.sealed.attacks.plain_walk import Walked, walk
from bilateral.audit.topics.sealed.attacks.solved_corrections import solved_delta
from bilateral.protocols.share.gates import planes
from bilateral.protocols.share.training.parties import encode_batch
from bilateral.randomness import Randomness

LABELS: Final = (0, 1)
_SLACK: Final = 2
"""In units of the last place: encoding is exact, so that of the right world nothing is left."""
_SURE: Final = 5.0
"""Standard deviations by which signs must agree."""
_SOLVED: Final = 2.0
"""Counts more than any share of words: deltas that come out of a correction are exact."""
_FEWEST_SIGNS: Final = 16


Place = tuple[str, int]
"""A client, and a layer (0 for inputs)."""


@dataclass(repr=False)
class _Sight:
    """One round, and what each world says of the steps in it: of all that were seen, or of the suspect's batch."""

    view: SealedView
    steps: dict[str, SeenStep]
    worlds: Worlds
    of_batches: bool
    left: dict[int, dict[Place, Tensor]] = field(default_factory=dict)
    """By world: masked words less what it predicts."""

    @cached_property
    def walked(self) -> dict[str, dict[int, Walked]]:
        """What each world computes in a step, where the adversary has the other half itself."""
        found: dict[str, dict[int, Walked]] = {}
        for client, seen in self.steps.items():
            if self.of_batches and seen.layers:
                found[client] = {w: walk(seen.terms, seen.layers, batch) for w, batch in self.worlds.batches.items()}
            elif not self.of_batches and seen.batch is not None:
                found[client] = {w: walk(seen.terms, layers, seen.batch) for w, layers in self.worlds.layers.items()}
        return found


def guess_worlds(
    view: SealedView, client: str, rounds: Sequence[int], worlds: Worlds, coins: Randomness, *, of_batches: bool
) -> list[int]:
    """For each of these rounds, which of the two models (or batches of `client`) it was. Ties are tossed."""
    sights = {index: _sight(view, client, index, worlds, of_batches=of_batches) for index in rounds}
    tossed = coins.uniform(max(1, len(rounds))) < 0.5
    guesses = []
    for place, index in enumerate(rounds):
        others = [other for number, other in sights.items() if number != index]
        scores = [_score(sights[index], world, others) for world in LABELS]
        guesses.append(int(tossed[place]) if scores[0] == scores[1] else int(scores[1] > scores[0]))
    return guesses


def _sight(view: SealedView, client: str, index: int, worlds: Worlds, *, of_batches: bool) -> _Sight:
    steps = {one.client: one for one in view.in_round(index) if not of_batches or one.client == client}
    sight = _Sight(view, steps, worlds, of_batches)
    sight.left = {world: dict(_left(sight, world)) for world in LABELS}
    return sight


def _left(sight: _Sight, world: int) -> Iterator[tuple[Place, Tensor]]:
    """Masked words less this world's prediction of them."""
    for client, seen in sight.steps.items():
        if sight.of_batches and seen.told_by_client:
            batch, told = sight.worlds.batches[world], seen.told_by_client[0]
            inputs, _ = encode_batch(seen.terms, batch.inputs, batch.targets)
            yield (client, 0), told - inputs.reshape(told.shape)
        elif not sight.of_batches and seen.weights:
            layers = sight.worlds.layers[world]
            for number, (weights, layer) in enumerate(zip(seen.weights, layers, strict=True)):
                yield (client, number), weights - layer.weight


def _score(sight: _Sight, world: int, others: Sequence[_Sight]) -> float:
    found = [0.0]
    for place, left in sight.left[world].items():
        found += [_share_of_zeros(left - mask) for mask in _masks(sight, place, left)]
        # Under a mask that comes again, two rounds of different worlds leave the same of the right ones alone.
        against = (
            words for other in others for (_, layer), words in other.left[1 - world].items() if layer == place[1]
        )
        found += [_share_of_zeros(left - words) for words in against if words.shape == left.shape]
    for client in sight.walked:
        found += [_signs(sight, client, world), _solved(sight, client, world)]
    return max(found)


def _masks(sight: _Sight, place: Place, left: Tensor) -> Iterator[Tensor]:
    """What may be all that is left."""
    seen = sight.steps[place[0]]
    if not sight.of_batches:
        yield from weight_mask_guesses(sight.view, seen, place[1])
        return
    yield left.new_zeros(())
    for mask in mask_guesses(sight.view, seen, "value mask", seen.terms.source_values[0], left.shape):
        yield -mask


def _share_of_zeros(words: Tensor) -> float:
    return float(((words <= _SLACK) & (words >= -_SLACK)).double().mean())


def _signs(sight: _Sight, client: str, world: int) -> float:
    """How far the opened signs are from a coin, given those of this world; 0 if not surely. Kinks are rare."""
    agree, count = 0.0, 0
    for mine, bits in zip(sight.walked[client][world].signs, _opened_signs(sight.steps[client]), strict=False):
        agree += float((planes.spread(bits, len(mine)) == mine).double().sum())
        count += len(mine)
    if count < _FEWEST_SIGNS:
        return 0.0
    off = abs(2 * agree / count - 1)
    return off if off * math.sqrt(count) > _SURE else 0.0


def _opened_signs(seen: SeenStep) -> Iterator[Tensor]:
    """m of every comparison: what it told itself just before it heard the other's part of it."""
    before: Tensor | None = None
    for event in seen.events:
        if event.name == "masked signs" and before is not None:
            yield before ^ event.words
        if not event.name:
            before = event.words


def _solved(sight: _Sight, client: str, world: int) -> float:
    """Whether the deltas that a correction gives are nearer to this world's than to the other's."""
    walked, seen = sight.walked[client], sight.steps[client]
    if not sight.of_batches:
        return 0.0
    found = solved_delta(seen, seen.events, walked[world].inputs)
    if found is None:
        return 0.0
    apart = [float((found - walked[w].deltas[0].reshape(found.shape)).double().norm()) for w in LABELS]
    return _SOLVED if apart[world] < apart[1 - world] else 0.0
