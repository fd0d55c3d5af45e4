"""The server's conversation with its clients under masks: several exchanges a round, with whoever is still there.

Ring masks (`MaskedAggregation`), numbered as in protocols/mask/server.py:

    0. once a run: key request -> announcements; the roster goes out with the first opening
    1. opening -> sealed shares
    2. routed shares travel with the round's model -> masked uploads (or a refusal: out of range, then a new attempt; or
       a complaint: shares that do not open)
    3. list of survivors -> signatures
    4. signatures of all -> revealed shares; the sum is unmasked

A message that the protocol refuses counts as no message: its sender is out of the round, and the incident is kept. A
client that could not open another's shares says so and is out of the round; `Suspects` has who is left out afterwards.
Not caught here is what a *client* refuses of the server (other keys than the pinned ones, other lists or models than
the others were shown): that ends the run, since the server itself is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from bilateral.errors import LostSumError, ProtocolError, ThresholdError
from bilateral.learning.aggregation import Incident, expect, uploads_among
from bilateral.learning.exchange import SETUP, Enough, Exchange, Packet, Taken
from bilateral.learning.halves import OpenedRound
from bilateral.protocols.class_balance import CountClasses
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.mask.messages import (
    KeyAnnouncement,
    MaskedUpload,
    RangeRefusal,
    RevealedShares,
    Roster,
    SealedShares,
    ShareComplaint,
    SurvivorSignature,
)
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.suspects import Suspects
from bilateral.protocols.membership import KeyRequest, RoundMembers
from bilateral.protocols.messages import Aggregate, Message, UploadShape, aggregate
from bilateral.protocols.wire import digest


class KeyAgreement:
    """Once a run: collect the clients' keys and hand out the roster, each client's with its first opening.

    Until there are keys enough for a roster, every round asks the clients whose keys are missing. `needed`: without the
    keys of these there is none.
    """

    def __init__(
        self,
        run_id: bytes,
        names: Sequence[str],
        register: Callable[[str, KeyAnnouncement], None],
        incidents: list[Incident],
        needed: Sequence[str] = (),
    ) -> None:
        self._run_id = run_id
        self._missing = list(names)
        self._register = register
        self._incidents = incidents
        self._needed = tuple(needed)
        self._roster: Roster | None = None
        self._informed: set[str] = set()

    def members(self, participants: Sequence[str], exchange: Exchange, make_roster: Callable[[], Roster]) -> list[str]:
        """Those of `participants` whose keys are on the roster."""
        if self._roster is None:
            request = KeyRequest(self._run_id)
            for sender, reply in exchange(SETUP, dict.fromkeys(self._missing, (request,))).items():
                self._take(sender, reply)
            self._expect_needed()
            self._roster = make_roster()
        return [name for name in participants if name in self._roster.clients]

    def outsiders(self) -> frozenset[str]:
        """Those whose keys came too late: the roster is closed."""
        return frozenset() if self._roster is None else frozenset(self._missing)

    def packet(self, name: str, opening: Message) -> Packet:
        """The opening, after the roster for a client that has not answered one yet."""
        assert self._roster is not None
        return (opening,) if name in self._informed else (self._roster, opening)

    def informed(self, names: Sequence[str]) -> None:
        self._informed.update(names)

    def _expect_needed(self) -> None:
        if missing := [name for name in self._needed if name in self._missing]:
            raise ThresholdError(
                f"There are no keys of {missing[0]}, without whom no round can be prepared.",
                remedy="Bring it back; it is asked again in the next round.",
            )

    def _take(self, sender: str, reply: Message) -> None:
        try:
            self._register(sender, expect(reply, KeyAnnouncement, sender))
        except ProtocolError as error:
            self._incidents.append(Incident(SETUP, sender, str(error)))
        else:
            self._missing.remove(sender)


class MaskedAggregation:
    """Sums under ring masks: the server learns the sum over the survivors and nothing else.

    `helpers`: parties that agree on keys with the clients and upload nothing.
    """

    def __init__(
        self,
        server: MaskServer,
        run_id: bytes,
        names: Sequence[str],
        shape: UploadShape,
        *,
        helpers: Sequence[str] = (),
    ) -> None:
        self._server = server
        self._opened: OpenedRound | None = None
        self._shape = shape
        self._suspects = Suspects()
        self.incidents: list[Incident] = []
        self._keys = KeyAgreement(run_id, [*names, *helpers], server.register, self.incidents, helpers)

    @property
    def opened(self) -> OpenedRound | None:
        return self._opened

    def open(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> dict[str, Packet]:
        known = self._keys.members(participants, exchange, self._server.roster)
        suspects = self._suspects.names()
        members = [name for name in known if name not in suspects]
        opening = self._server.open_round(round_index, members, self._shape.num_terms + 1, self._shape.num_values)
        self._opened = OpenedRound(self._server.roster(), opening)
        return self._share(round_index, opening, members, exchange)

    def take(self, round_index: int, sender: str, reply: Message) -> Packet:
        """Masked uploads are added up as they come: one is as large as all terms, and 64 bits a value."""
        if not isinstance(reply, MaskedUpload):
            return ()
        self._collect(round_index, {sender: reply}, self._server.collect_upload, (MaskedUpload,))
        return Enough.keeping(Taken(round_index))

    def close(self, round_index: int, replies: Mapping[str, Message], exchange: Exchange, sent: Packet) -> Aggregate:
        server = self._server
        self._collect_uploads(round_index, replies)
        while server.refused:
            opening = server.retry()
            routed = self._share(round_index, opening, opening.participants, exchange)
            self._collect_uploads(round_index, exchange(round_index, routed, partial(self.take, round_index)))
        for name in server.refusers:
            reason = f"RangeRefusal from {name} could not be granted; it is left out of the round."
            self.incidents.append(Incident(round_index, name, reason))
        listed = server.close_uploads(context=digest(*sent))
        signatures = exchange(round_index, dict.fromkeys(listed.survivors, (listed,)))
        self._collect(round_index, signatures, server.collect_signature, (SurvivorSignature,))
        request = server.request_shares()
        reveals = exchange(round_index, dict.fromkeys(request.signers, (request,)))
        self._collect(round_index, reveals, server.collect_reveal, (RevealedShares,))
        try:
            shape, counted = self._shape, any(isinstance(message, CountClasses) for message in sent)
            return server.unmask((shape.num_terms, shape.num_parameters), shape.num_statistics, adapts=not counted)
        except LostSumError as error:
            if error.culprit:
                self._suspects.convict(error.culprit)
            raise

    def outsiders(self) -> frozenset[str]:
        return self._keys.outsiders() | frozenset(self._suspects.names())

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

    def _collect_uploads(self, round_index: int, replies: Mapping[str, Message]) -> None:
        new = {sender: reply for sender, reply in replies.items() if not isinstance(reply, Taken)}
        self._collect(round_index, new, self._server.collect_upload, (MaskedUpload, RangeRefusal, ShareComplaint))
        for accuser, dealers in self._server.complaints.items():
            for dealer in dealers:
                self._suspects.accuse(accuser, dealer)
                self.incidents.append(
                    Incident(round_index, dealer, f"{accuser} could not open the shares of {dealer}.")
                )

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
    """Sums of uploads that carry real-valued pairwise noise, which cancels only if every participant uploads.

    A wrong message costs its round, whoever sent it. With `goes_on_without` its sender is not asked again, so that the
    others have their sums in all later rounds: float masks. Noise that is measured out for all clients (P2's) would be
    too little without one of them; there it is asked again.
    """

    def __init__(
        self,
        run_id: bytes,
        names: Sequence[str],
        shape: UploadShape,
        pinned: Mapping[str, bytes] | None = None,
        *,
        goes_on_without: bool = False,
    ) -> None:
        self._directory = KeyDirectory(run_id, names, pinned)
        self._shape = shape
        self._goes_on_without = goes_on_without
        self._expected: set[str] = set()
        self._left_out: set[str] = set()
        self.incidents: list[Incident] = []
        self.opened: OpenedRound | None = None
        self._keys = KeyAgreement(run_id, names, self._directory.register, self.incidents)

    def open(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> dict[str, Packet]:
        known = self._keys.members(participants, exchange, self._directory.roster)
        members = [name for name in known if name not in self._left_out]
        if len(members) < 2:
            raise ThresholdError(
                f"Round {round_index}: expected 2 or more clients with pairwise noise, got {len(members)}.",
                remedy="Wait until more clients are there.",
            )
        self._expected = set(members)
        opening = RoundMembers(round_index, tuple(sorted(members)))
        return {name: self._keys.packet(name, opening) for name in members}

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
        self._keys.informed(list(replies))
        uploads = uploads_among(replies, round_index, self._shape, self.incidents)
        if self._goes_on_without:  # also who asked what makes no sense before it would have uploaded
            wrong = {incident.client for incident in self.incidents if incident.round_index == round_index}
            self._left_out |= wrong & (self._expected - set(uploads))
        if missing := sorted(self._expected - set(uploads)):
            raise ThresholdError(
                f"Round {round_index}: no upload from {', '.join(missing)}; pairwise noise cancels only in a full sum.",
                remedy="Use masks = 'ring', which survives clients that drop out.",
            )
        return aggregate(uploads, round_index)

    def outsiders(self) -> frozenset[str]:
        return self._keys.outsiders() | self._left_out

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Pairwise noise keeps nothing between rounds but the keys."""
