"""Which messages travel in which direction: what a transport is willing to decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bilateral.protections.registry import everyone
from bilateral.protocols.mask.messages import (
    KeyAnnouncement,
    MaskedUpload,
    MaskOpening,
    RangeRefusal,
    RevealedShares,
    Roster,
    RoutedShares,
    SealedShares,
    ShareComplaint,
    SurvivorList,
    SurvivorSignature,
    UnmaskRequest,
)
from bilateral.protocols.membership import ClipNorm, KeyRequest, RoundMembers
from bilateral.protocols.messages import Message, Upload
from bilateral.protocols.site_reports import STAGE, MetricsReport, MetricsRequest

_MASKS_TO_CLIENT: Final[tuple[type[Message], ...]] = (
    KeyRequest,
    Roster,
    RoundMembers,
    ClipNorm,
    MaskOpening,
    RoutedShares,
    SurvivorList,
    UnmaskRequest,
)
_REPORTS_TO_CLIENT: Final = (MetricsRequest,)
_REPORTS_TO_SERVER: Final = (MetricsReport,)
_MASKS_TO_SERVER: Final[tuple[type[Message], ...]] = (
    KeyAnnouncement,
    SealedShares,
    ShareComplaint,
    Upload,
    MaskedUpload,
    RangeRefusal,
    SurvivorSignature,
    RevealedShares,
)
_STAGES_OF_MASKS: Final[dict[type[Message], str]] = {
    KeyRequest: "key agreement",
    MaskOpening: "sharing mask seeds",
    RoutedShares: "masking again",
    SurvivorList: "signing the survivors",
    UnmaskRequest: "unmasking",
}


def to_client() -> tuple[type[Message], ...]:
    """All that a client may be sent, under whatever protection."""
    return (*_MASKS_TO_CLIENT, *_REPORTS_TO_CLIENT, *(kind for one in everyone() for kind in one.vocabulary.to_client))


def to_server() -> tuple[type[Message], ...]:
    """All that a client may send."""
    return (*_MASKS_TO_SERVER, *_REPORTS_TO_SERVER, *(kind for one in everyone() for kind in one.vocabulary.to_server))


def stages() -> dict[type[Message], str]:
    """What a client is doing when it was last sent such a message, in the operator's words."""
    return {
        **_STAGES_OF_MASKS,
        MetricsRequest: STAGE,
        **{kind: said for one in everyone() for kind, said in one.vocabulary.stages.items()},
    }


def stage_of(packet: Sequence[Message]) -> str:
    """What a client is doing with a packet: the stage of its last message."""
    return stages().get(type(packet[-1]), type(packet[-1]).__name__) if packet else "nothing"
