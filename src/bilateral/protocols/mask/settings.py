"""Privacy settings of secure aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bilateral.arguments import check_fields
from bilateral.errors import PlanError
from bilateral.protocols.mask.fixed_point import MAX_BOUND_BITS, MIN_BOUND_BITS
from bilateral.protocols.mask.neighbours import default_num_neighbours, threshold_of
from bilateral.protocols.mask.widths import WIDEST, WIDTHS, Width, WidthSetting

GraphKind = Literal["auto", "complete", "n-out"]
MAX_ATTEMPTS = 3
"""Attempts at one round. Clients count too: a server cannot go on until it likes the graph."""
DEFAULT_RESOLUTION = 1e-7
"""A float32 has 6e-8 of its own."""
LARGEST_COMPLETE_GRAPH = 32
"""`auto` gives every pair a mask up to this number of participants."""


@dataclass(frozen=True)
class MaskSettings:
    """How uploads are masked. All clients and the server must have the same.

    `graph`               complete: every pair of participants shares a mask; n-out: each chooses a few partners at
                          random; auto: complete up to 32 participants
    `num_neighbours`      partners that each participant chooses in the n-out graph (it has about twice as many, since
                          others choose it); by default what `default_num_neighbours` computes
    `threshold`           a sum is unmasked only if more than this fraction of the participants is in it, and a secret
                          is reconstructed only by more than this fraction of its owner's neighbourhood
    `initial_bound_bits`  first round: values times weights are expected below 2 to this power
    `width`               bits of a masked value: 64, or fewer once a round has shown the range; auto: as few as
                          `resolution` needs. Where bounds are fixed: from the first round (auto: 64)
    `resolution`          auto: the sum of a row is off by at most this part of its largest value, as that was in the
                          round before
    `min_in_sum`          a sum is unmasked only if at least so many uploads are in it, however few take part
    """

    graph: GraphKind = "auto"
    num_neighbours: int | None = None
    threshold: float = 2 / 3
    initial_bound_bits: int = 20
    min_in_sum: int | None = None
    width: WidthSetting = WIDEST
    resolution: float = DEFAULT_RESOLUTION

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
        if self.graph not in ("auto", "complete", "n-out"):
            raise PlanError(f"Expected graph auto, complete or n-out, got {self.graph!r}.")
        if not 0.5 < self.threshold < 1:  # at one half, two disjoint halves could each unmask a sum
            raise PlanError(
                f"Expected a threshold above 0.5 and below 1, got {self.threshold}.",
                remedy="Two disjoint groups of clients must never both reach it. Try 0.667.",
            )
        if self.num_neighbours is not None and self.num_neighbours < 1:
            raise PlanError(f"Expected num_neighbours of 1 or more, got {self.num_neighbours}.")
        if self.num_neighbours is not None and self.graph == "complete":
            raise PlanError(
                f"num_neighbours = {self.num_neighbours} has no meaning in the complete graph.",
                remedy="Leave it out, or use graph = 'n-out'.",
            )
        if not MIN_BOUND_BITS <= self.initial_bound_bits <= MAX_BOUND_BITS:
            raise PlanError(
                f"Expected initial_bound_bits between {MIN_BOUND_BITS} and {MAX_BOUND_BITS}, "
                f"got {self.initial_bound_bits}."
            )
        if not 0 < self.resolution < 1:
            raise PlanError(f"Expected a resolution above 0 and below 1, got {self.resolution}.")
        if self.min_in_sum is not None and self.min_in_sum < 2:
            raise PlanError(
                f"Expected min_in_sum of 2 or more, got {self.min_in_sum}.",
                remedy="A sum over one client hides nothing.",
            )

    def threshold_of(self, size: int) -> int:
        """How many of `size` parties must be there: more than the fraction `threshold`, so more than half."""
        return threshold_of(self.threshold, size)

    def floor_of(self, num_participants: int) -> int:
        """How many uploads a sum must have in a round that was first opened for `num_participants`."""
        return max(self.threshold_of(num_participants), self.min_in_sum or 0)

    def num_chosen(self, num_participants: int) -> int:
        """Partners that each participant chooses; all others in the complete graph."""
        everyone = num_participants - 1
        if self.graph == "complete" or (self.graph == "auto" and num_participants <= LARGEST_COMPLETE_GRAPH):
            return everyone
        chosen = self.num_neighbours or default_num_neighbours(num_participants, self.threshold)
        return min(chosen, everyone)


def allowed_widths(settings: MaskSettings, *, is_fixed: bool) -> tuple[Width, ...]:
    """The rings that an opening may name. `is_fixed`: ranges are known before the first round, or there are none."""
    if settings.width == "auto":
        return (WIDEST,) if is_fixed else WIDTHS
    return (settings.width,) if is_fixed else tuple({settings.width, WIDEST})
