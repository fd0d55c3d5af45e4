"""How each side of a run is built from its protections, before masks go on top. Everything here is a recipe.

The server's process builds the server's side, a site's process that client, and both from the same public facts
(`Groundwork`), so that they agree without talking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from bilateral.errors import PlanError
from bilateral.learning.aggregation import Aggregation
from bilateral.learning.client import Schedule, Uploader
from bilateral.learning.exchange import Party
from bilateral.learning.halves import ClientHalf, GradientCheck, ServerHalf
from bilateral.learning.uploading import AddPairwise, Agreed, Opened, Privatise
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.widths import WIDEST, Width
from bilateral.protocols.messages import UploadShape
from bilateral.protocols.noise.adaptive import AdaptiveNorm
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.noise.round_counter import RoundCounter
from bilateral.protocols.workspace import Workspace


@dataclass(frozen=True)
class Seat:
    """What one client's side is built from, besides the groundwork: known in its own process alone."""

    name: str
    num_samples: int
    counter: RoundCounter | None = None
    """Counts the rounds that a budget allows; None counts in memory."""
    workspace: Workspace | None = None
    """Memory that clients of one process share; None is one of its own."""


@dataclass(frozen=True)
class ClientParts:
    """One client's side, before masks go on top."""

    half: ClientHalf
    schedule: Schedule
    privatise: Privatise | None = None
    """Noise that stays, added below the masks."""
    pay: Callable[[int], None] | None = None
    """Counts a round against the client's budget, when its model has come."""
    set_norm: Callable[[float], None] | None = None
    """Takes over the norm of adaptive clipping."""
    opened: Opened | None = None
    """Told of every opening that its masks take, with the keys of the run (ring masks)."""
    shares_process: bool = False
    """Whether other clients live in the same process, so that each must keep little in memory."""
    agreed: Agreed | None = None
    """Told when shares of others opened: as many as a sum needs were shown the same opening."""


@dataclass(frozen=True)
class Summing:
    """A way of adding up uploads that a protection brings itself, in place of masks."""

    make_aggregation: Callable[[], Aggregation]
    """The server's side."""
    make_uploader: Callable[[str], Uploader]
    """The side of the client of this name."""


@dataclass(frozen=True)
class Sides:
    """What the protections of a plan make of both sides, before masks go on top."""

    make_server: Callable[[nn.Module], ServerHalf]
    """Takes the model that the server trains."""
    make_client: Callable[[Seat], ClientParts]
    shape: UploadShape
    guarantees: tuple[Guarantee, ...]
    pairwise: Callable[[KeyRing], AddPairwise] | None = None
    """P2's noise that cancels between clients."""
    fixed_bounds: Sequence[float] | None = None
    width: Width = WIDEST
    """Bits of a masked value where bounds are fixed."""
    covers: frozenset[int] = frozenset()
    """Ledger lines of masks that the noise below them takes care of, or states in its own words."""
    weight: int | None = None
    """The clients' weight in the average; None is the number of their samples."""
    privacy: PrivacyReport | None = None
    make_adaptive: Callable[[], AdaptiveNorm] | None = None
    """The server's side of adaptive clipping."""
    term_scales: tuple[float, ...] = ()
    """How noise is divided between the terms, if sites must be told it."""
    check: GradientCheck | None = None
    """Of the recovered gradient, before the first round."""
    summing: Summing | None = None
    """None leaves it to the plan's masks."""
    words: bool = False
    """Uploads are ring words, which masks sum as they are."""
    helpers: Mapping[str, Callable[[KeyRing], Party]] = field(default_factory=dict)
    """Parties without data that rounds need, each built from its keys in its own process."""

    def mask_settings(self, planned: MaskSettings) -> MaskSettings:
        """Where ranges are fixed, so is the width: what the noise needs. Ring words have 64 bits."""
        if self.words and planned.width not in ("auto", WIDEST):
            raise PlanError(
                f"aggregation.width is {planned.width}, and clients upload words of {WIDEST} bits in this protection.",
                remedy="Leave it out.",
            )
        return replace(planned, width=self.width) if self.words or self.fixed_bounds is not None else planned
