"""The server's conversation with its clients under masks: several exchanges a round, with whoever is still there.

Ring masks (`MaskedAggregation`), numbered as in protocols/mask/server.py:

    0. once a run: key request -> announcements; the roster goes out with the first opening
    1. opening -> sealed shares
    2. routed shares travel with the round's model -> masked uploads (or a refusal: out of range, then a new attempt)
    3. list of survivors -> signatures
    4. signatures of all -> revealed shares; the sum is unmasked

A message that the protocol refuses counts as no message: its sender is out of the round, and the incident is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bilateral.errors import ProtocolError, ThresholdError
from bilateral.learning.aggregation import Incident, expect_uploads
from bilateral.learning.exchange import SETUP, Exchange, Packet
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.mask.messages import (
    KeyAnnouncement,
    MaskedUpload,
    RangeRefusal,
    RevealedShares,
    Roster,
    SealedShares,
    SurvivorSignature,
)
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.membership import KeyRequest, RoundMembers
from bilateral.protocols.messages import Aggregate, Message, aggregate


@dataclass(frozen=True)
class UploadShape:
    """What every upload of a run looks like."""

    num_terms: int
    num_parameters: int
    num_statistics: int

    @property
    def num_values(self) -> int:
        """All of it as one vector, with the weight at the end."""
        return self.num_terms * self.num_parameters + self.num_statistics + 1


class KeyAgreement:
    """Once a run: collect the clients' keys and hand out the roster, each client's with its first opening."""

    def __init__(self, run_id: bytes, names: Sequence[str], register: Callable[[str, KeyAnnouncement], None]) -> None:
        self._run_id = run_id
        self._names = names
        self._register = register
        self._roster: Roster | None = None
        self._informed: set[str] = set()

    def members(self, participants: Sequence[str], exchange: Exchange, make_roster: Callable[[], Roster]) -> list[str]:
        """Those of `participants` whose keys are on the roster."""
        if self._roster is None:
            request = KeyRequest(self._run_id)
            for sender, reply in exchange(SETUP, dict.fromkeys(self._names, (request,))).items():
                self._register(sender, expect(reply, KeyAnnouncement, sender))
            self._roster = make_roster()
        return [name for name in participants if name in self._roster.clients]

    def packet(self, name: str, opening: Message) -> Packet:
        """The opening, after the roster for a client that has not answered one yet."""
        assert self._roster is not None
        return (opening,) if name in self._informed else (self._roster, opening)

    def informed(self, names: Sequence[str]) -> None:
        self._informed.update(names)


class MaskedAggregation:
    """Sums under ring masks: the server learns the sum over the survivors and nothing else."""

    def __init__(self, server: MaskServer, run_id: bytes, names: Sequence[str], shape: UploadShape) -> None:
        self._server = server
        self._shape = shape
        self._keys = KeyAgreement(run_id, names, server.register)
        self.incidents: list[Incident] = []

    def open(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> dict[str, Packet]:
        members = self._keys.members(participants, exchange, self._server.roster)
        opening = self._server.open_round(round_index, members, self._shape.num_terms + 1, self._shape.num_values)
        return self._share(round_index, opening, members, exchange)

    def close(self, round_index: int, replies: Mapping[str, Message], exchange: Exchange) -> Aggregate:
        server = self._server
        self._collect(round_index, replies, server.collect_upload, (MaskedUpload, RangeRefusal))
        while server.refused:
            opening = server.retry()
            routed = self._share(round_index, opening, opening.participants, exchange)
            self._collect(
                round_index, exchange(round_index, routed), server.collect_upload, (MaskedUpload, RangeRefusal)
            )
        listed = server.close_uploads()
        signatures = exchange(round_index, dict.fromkeys(listed.survivors, (listed,)))
        self._collect(round_index, signatures, server.collect_signature, (SurvivorSignature,))
        request = server.request_shares()
        reveals = exchange(round_index, dict.fromkeys(request.signers, (request,)))
        self._collect(round_index, reveals, server.collect_reveal, (RevealedShares,))
        return server.unmask((self._shape.num_terms, self._shape.num_parameters), self._shape.num_statistics)

    def state_tensors(self) -> dict[str, Tensor]:
        return self._server.state_tensors()

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._server.load_state_tensors(tensors)

    def _share(
        self, round_index: int, opening: Message, members: Sequence[str], exchange: Exchange
    ) -> dict[str, Packet]:
        sealed = exchange(round_index, {name: self._keys.packet(name, opening) for name in members})
        self._keys.informed(list(sealed))
        self._collect(round_index, sealed, self._server.collect_shares, (SealedShares,))
        return {name: (routed,) for name, routed in self._server.route().items()}

    def _collect(
        self,
        round_index: int,
        replies: Mapping[str, Message],
        collect: Callable[[str, Any], None],
        types: tuple[type[Message], ...],
    ) -> None:
        for sender, reply in replies.items():
            try:
                collect(sender, expect(reply, types, sender))
            except ProtocolError as error:
                self.incidents.append(Incident(round_index, sender, str(error)))


class PairwiseAggregation:
    """Sums of uploads that carry real-valued pairwise noise, which cancels only if every participant uploads."""

    def __init__(self, run_id: bytes, names: Sequence[str]) -> None:
        self._directory = KeyDirectory(run_id, names)
        self._keys = KeyAgreement(run_id, names, self._directory.register)
        self._expected: set[str] = set()
        self.incidents: list[Incident] = []

    def open(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> dict[str, Packet]:
        members = self._keys.members(participants, exchange, self._directory.roster)
        self._expected = set(members)
        opening = RoundMembers(round_index, tuple(sorted(members)))
        return {name: self._keys.packet(name, opening) for name in members}

    def close(self, round_index: int, replies: Mapping[str, Message], exchange: Exchange) -> Aggregate:  # noqa: ARG002
        self._keys.informed(list(replies))
        if missing := sorted(self._expected - set(replies)):
            raise ThresholdError(
                f"Round {round_index}: no upload from {', '.join(missing)}; pairwise noise cancels only in a full sum.",
                remedy="Use masks = 'ring', which survives clients that drop out.",
            )
        return aggregate(expect_uploads(replies), round_index)

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Pairwise noise keeps nothing between rounds but the keys."""


def expect(reply: Message, types: type[Message] | tuple[type[Message], ...], sender: str) -> Any:
    """The reply, which must be of one of `types`."""
    if not isinstance(reply, types):
        wanted = " or ".join(t.__name__ for t in (types if isinstance(types, tuple) else (types,)))
        raise ProtocolError(
            f"{sender} sent {type(reply).__name__}, expected {wanted}.", remedy="Both sides must run the same plan."
        )
    return reply
