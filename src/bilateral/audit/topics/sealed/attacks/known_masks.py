"""Every mask that an adversary can draw by itself: all streams of all seeds that it has, of its own steps or others'.

Right masks are never among those of a value that is hidden from it. Dealers whose seeds are shared with too many, one
mask for several clients, or a box that is used twice, are found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from bilateral.audit.sealed_views import SealedView, SeenStep
from bilateral.protocols.share.ring.streams import Purpose, Stream
from bilateral.protocols.share.training.roles import weight_masks
from bilateral.protocols.share.training.terms import StepTerms


def weight_mask_guesses(view: SealedView, seen: SeenStep, layer: int) -> Iterator[Tensor]:
    """What may lie on a layer's weights: the masks of every seed of this round, and none."""
    yield seen.weights[layer].new_zeros(())
    for seed in _seeds(view.in_round(seen.round_index)):
        yield weight_masks(seen.terms, seed, layer)


def mask_guesses(
    view: SealedView, seen: SeenStep, purpose: Purpose, number: int, shape: Iterable[int]
) -> Iterator[Tensor]:
    """What may lie on a value or a delta."""
    for seed in _seeds(view.in_round(seen.round_index)):
        yield stream(seen.terms, seed, purpose, number).words(*shape)


def stream(terms: StepTerms, seed: bytes, purpose: Purpose, number: int) -> Stream:
    """As the parties of a step name it."""
    return Stream.of(seed, purpose, number, terms.batch_size)


def _seeds(steps: Iterable[SeenStep]) -> list[bytes]:
    return sorted({seed for one in steps for seed in one.seeds})
