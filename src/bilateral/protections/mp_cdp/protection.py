"""MP-CDP as a protection of a run."""

from __future__ import annotations

from bilateral.protections.base import Rule
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.mp_cdp.sides import mp_cdp_sides
from bilateral.protections.published.as_published import AsPublished
from bilateral.protections.sides import Sides


class MpCdp(AsPublished):
    """Noise of a trusted server on the recovered mean."""

    name = "mp-cdp"
    refused = (
        *AsPublished.refused,
        Rule(
            "central noise with batch statistics",
            lambda mix: mix.num_statistics > 0,
            "BatchNorm's statistics go into the released model without noise",
            "Use a model without BatchNorm.",
        ),
    )

    @property
    def title(self) -> str:
        return self.name

    def sides(self, around: Groundwork) -> Sides:
        return mp_cdp_sides(around)
