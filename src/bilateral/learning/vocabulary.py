"""Which messages travel in which direction: what a transport is willing to decode."""

from __future__ import annotations

from collections.abc import Sequence

from bilateral.baselines.fedavg import PlainModel
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
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery, SoftmaxReply

TO_CLIENT: tuple[type[Message], ...] = (
    KeyRequest,
    Roster,
    RoundMembers,
    ClipNorm,
    MaskOpening,
    RoutedShares,
    PlainModel,
    PerturbedModel,
    SoftmaxReply,
    SurvivorList,
    UnmaskRequest,
)
TO_SERVER: tuple[type[Message], ...] = (
    KeyAnnouncement,
    SealedShares,
    ShareComplaint,
    SoftmaxQuery,
    Upload,
    MaskedUpload,
    RangeRefusal,
    SurvivorSignature,
    RevealedShares,
)
STAGES: dict[type[Message], str] = {
    KeyRequest: "key agreement",
    MaskOpening: "sharing mask seeds",
    PlainModel: "training",
    PerturbedModel: "training",
    SoftmaxReply: "training after the softmax answer",
    RoutedShares: "masking again",
    SurvivorList: "signing the survivors",
    UnmaskRequest: "unmasking",
}
"""What a client is doing when it was last sent such a message, in the operator's words."""


def stage_of(packet: Sequence[Message]) -> str:
    """What a client is doing with a packet: the stage of its last message."""
    return STAGES.get(type(packet[-1]), type(packet[-1]).__name__) if packet else "nothing"
