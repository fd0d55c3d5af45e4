"""MP-DP-Naive as a protection of a run."""

from __future__ import annotations

from bilateral.protections.groundwork import Groundwork
from bilateral.protections.mp_dp_naive.sides import mp_dp_naive_sides
from bilateral.protections.published.as_published import AsPublished
from bilateral.protections.sides import Sides


class MpDpNaive(AsPublished):
    """Normal noise of every client on its perturbed gradient."""

    name = "mp-dp-naive"

    @property
    def title(self) -> str:
        return self.name

    def sides(self, around: Groundwork) -> Sides:
        return mp_dp_naive_sides(around)
