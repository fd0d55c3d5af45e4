"""How the uploads of a round become one sum: in the clear here, under masks in `masked_aggregation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from bilateral.errors import NumericalRangeError, ProtocolError, ThresholdError
from bilateral.learning.exchange import Exchange, Packet, Unusable
from bilateral.learning.halves import OpenedRound
from bilateral.learning.upload_check import check_upload, is_out_of_range
from bilateral.protocols.messages import Aggregate, Message, Upload, UploadShape, aggregate


@dataclass(frozen=True)
class Incident:
    """A message that was refused; its sender was left out of the round."""

    round_index: int
    client: str
    reason: str


class Aggregation(Protocol):
    """The server's side of summing; it sees what clients reply and returns nothing but the sum."""

    @property
    def incidents(self) -> list[Incident]:
        """Messages that were refused so far."""
        ...

    @property
    def opened(self) -> OpenedRound | None:
        """What clients were told of the round under way, where masks say so."""
        ...

    def open(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> dict[str, Packet]:
        """Prepare a round; per client that is still there, the messages that precede the round's model."""
        ...

    def take(self, round_index: int, sender: str, reply: Message) -> Packet:
        """Called with each reply as it comes: nothing, or `Enough` where it was used and need not be kept."""
        ...

    def close(self, round_index: int, replies: Mapping[str, Message], exchange: Exchange, sent: Packet) -> Aggregate:
        """The sum of what the clients sent last. `sent`: what they were sent to train on, the same to all."""
        ...

    def outsiders(self) -> frozenset[str]:
        """Clients that cannot take part any more: whose keys came too late, or who cheated."""
        ...

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must keep so that later rounds are the same after a restart."""
        ...

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None: ...


class PlainAggregation:
    """The server sees every upload and adds them up. Who is gone is left out, and who uploads what is none."""

    def __init__(self, shape: UploadShape) -> None:
        self._shape = shape
        self.incidents: list[Incident] = []
        self.opened: OpenedRound | None = None

    def open(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> dict[str, Packet]:  # noqa: ARG002
        return dict.fromkeys(participants, ())

    def take(self, round_index: int, sender: str, reply: Message) -> Packet:  # noqa: ARG002
        """Floats are added in the order of the names, so all are waited for."""
        return ()

    def close(
        self,
        round_index: int,
        replies: Mapping[str, Message],
        exchange: Exchange,  # noqa: ARG002
        sent: Packet,  # noqa: ARG002
    ) -> Aggregate:
        uploads = uploads_among(replies, round_index, self._shape, self.incidents)
        if not uploads:
            refused = [incident.reason for incident in self.incidents if incident.round_index == round_index]
            diverged = [reply for reply in replies.values() if isinstance(reply, Upload) and is_out_of_range(reply)]
            if len(diverged) == len(replies) > 1:  # one alone may be at fault itself
                raise NumericalRangeError(
                    f"All uploads of round {round_index} hold NaN, infinite or enormous values: the training diverges.",
                    remedy="Lower the learning rate and start anew.",
                )
            raise ThresholdError(
                f"Round {round_index} has no upload that can be used. {' '.join(refused)}".strip(),
                remedy="At least one client must answer; if it holds NaN, lower the learning rate.",
            )
        return aggregate(uploads, round_index)

    def outsiders(self) -> frozenset[str]:
        return frozenset()

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Sums in the clear keep nothing between rounds."""


def uploads_among(
    replies: Mapping[str, Message], round_index: int, shape: UploadShape, incidents: list[Incident]
) -> dict[str, Upload]:
    """The replies that are uploads as they should be; any other is an incident."""
    uploads: dict[str, Upload] = {}
    for sender, reply in replies.items():
        try:
            upload: Upload = expect(reply, Upload, sender)
            check_upload(upload, round_index, shape, sender)
        except ProtocolError as error:
            incidents.append(Incident(round_index, sender, str(error)))
        else:
            uploads[sender] = upload
    return uploads


def expect(reply: Message, types: type[Message] | tuple[type[Message], ...], sender: str) -> Any:
    """The reply, which must be of one of `types`."""
    if isinstance(reply, Unusable):
        raise ProtocolError(reply.reason)
    if not isinstance(reply, types):
        wanted = " or ".join(t.__name__ for t in (types if isinstance(types, tuple) else (types,)))
        raise ProtocolError(
            f"{sender} sent {type(reply).__name__}, expected {wanted}.", remedy="Both sides must run the same plan."
        )
    return reply
