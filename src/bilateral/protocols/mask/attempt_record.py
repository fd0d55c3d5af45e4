"""The server's record of one attempt: what came from whom, checked when it comes. A refused message changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from bilateral.errors import AuthenticationError, ProtocolError, ThresholdError
from bilateral.protocols.mask.fixed_point import MAX_BOUND_BITS
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.keys import is_signed, roster_digest, statement_content
from bilateral.protocols.mask.messages import (
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
from bilateral.protocols.mask.ring_words import format_of
from bilateral.protocols.mask.sealing import DIGEST_BYTES, SEALED_BYTES, SEED_BYTES, TAG_BYTES, Occasion, share_digest
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.survivors import check_context, check_names, check_sum, signed_content
from bilateral.protocols.mask.widths import add_packed, check_packed, check_padding, packed_length

Stage = Literal["shares", "uploads", "signatures", "reveals", "closed"]
Answer = MaskedUpload | RangeRefusal | ShareComplaint
Collected = SealedShares | Answer | SurvivorSignature | RevealedShares


class AttemptRecord:
    """One attempt at one round, from `MaskOpening` to the last `RevealedShares`. `floor`: the fewest that a sum has."""

    def __init__(
        self, opening: MaskOpening, roster: Roster, settings: MaskSettings, floor: int, num_values: int | None
    ) -> None:
        digest = roster_digest(roster)
        seed = graph_seed(digest, opening.round_index, opening.attempt, opening.participants)
        self.opening = opening
        self.settings = settings
        self.floor = floor
        self.occasion = Occasion.of(roster.run_id, opening)
        self.form = format_of(opening)
        self.graph = PairGraph.of(opening.participants, settings, seed)
        self.stage: Stage = "shares"
        self.sealed: dict[str, SealedShares] = {}
        self.sharers: tuple[str, ...] = ()
        self._sharing: frozenset[str] = frozenset()
        self._survivors: frozenset[str] = frozenset()
        self.uploads: dict[str, MaskedUpload] = {}
        """Without their values where those are added up as they come: where the length was known beforehand."""
        self._total: npt.NDArray[np.int64] | None = None
        self.refusals: dict[str, RangeRefusal] = {}
        self.complaints: dict[str, ShareComplaint] = {}
        self.context = b""
        self.listed: SurvivorList | None = None
        self.signatures: dict[str, bytes] = {}
        self.signers: tuple[str, ...] = ()
        self.reveals: dict[str, RevealedShares] = {}
        self._roster_digest = digest
        self._identity_keys = dict(zip(roster.clients, roster.identity_keys, strict=True))
        self._num_values = num_values

    def threshold_around(self, owner: str) -> int:
        """How many members of the neighbourhood of `owner` reconstruct its secrets."""
        return self.settings.threshold_of(len(self.graph.neighbourhood(owner)))

    def collect_shares(self, sender: str, message: SealedShares) -> None:
        """Step 1."""
        self._admit(sender, message, "shares", self.opening.participants, self.sealed)
        neighbours = self.graph.neighbours(sender)
        if message.recipients != neighbours:
            raise ProtocolError(f"SealedShares from {sender}: the recipients are not the neighbours of {sender}.")
        holders = len(neighbours) + 1
        _expect_items(sender, "sealed", message.sealed, len(neighbours), SEALED_BYTES)
        _expect_items(sender, "self_digests", message.self_digests, holders, DIGEST_BYTES)
        _expect_items(sender, "escrow_digests", message.escrow_digests, holders, DIGEST_BYTES)
        _expect_items(sender, "seed_digest", (message.seed_digest,), 1, DIGEST_BYTES)
        _expect_items(sender, "escrow", (message.escrow,), 1, SEED_BYTES * len(neighbours) + TAG_BYTES)
        self.sealed[sender] = message

    def route(self) -> dict[str, RoutedShares]:
        """Step 2. Who shared but has too few neighbours that did could not be reconstructed, and is left out."""
        self._expect_stage("shares")
        sharers = set(self.sealed)
        while alone := {name for name in sharers if not self._is_held(name, sharers)}:
            sharers -= alone
        if len(sharers) < self.floor:
            raise ThresholdError(
                f"Expected shares of at least {self.floor} of {len(self.opening.participants)} participants, "
                f"got {len(self.sealed)}, of which {len(sharers)} can be used.",
                remedy="Open another round with the clients that are there.",
            )
        self.sharers, self._sharing = tuple(sorted(sharers)), frozenset(sharers)
        self.stage = "uploads"
        return {name: self._routed(name) for name in self.sharers}

    def collect_upload(self, sender: str, message: Answer) -> None:
        """Step 3. Who complains or refuses has no upload in this attempt."""
        self._admit(sender, message, "uploads", self.sharers, {**self.uploads, **self.refusals, **self.complaints})
        if isinstance(message, ShareComplaint):
            self._check_complaint(sender, message)
            self.complaints[sender] = message
            return
        if isinstance(message, RangeRefusal):
            self._check_refusal(sender, message)
            self.refusals[sender] = message
            return
        check_packed(message.values, self.form.width, f"MaskedUpload from {sender}")
        if self._num_values is not None:
            self.expect_values(sender, message, self._num_values)
            message = self._add(message, self._num_values)
        self.uploads[sender] = message

    def close_uploads(self, *, context: bytes) -> SurvivorList:
        """Step 4. Where the length was not known, an upload unlike most others is dropped by an error that names it."""
        check_context(context, "close_uploads")
        self._expect_stage("uploads")
        self._drop_odd_length()
        survivors = tuple(sorted(self.uploads))
        check_sum(self.graph, self.floor, survivors, self._complained())
        alive = set(survivors)
        for owner in self.sharers:
            held, expected = len(alive.intersection(self.graph.neighbourhood(owner))), self.threshold_around(owner)
            if held < expected:
                raise ThresholdError(
                    f"Expected at least {expected} survivors that hold shares of {owner}, got {held}.",
                    remedy="Open another round with the clients that are there.",
                )
        self.context = context
        self._survivors = frozenset(survivors)
        self.listed = SurvivorList(self.occasion.round_index, self.occasion.attempt, self.sharers, survivors)
        self.stage = "signatures"
        return self.listed

    def collect_signature(self, sender: str, message: SurvivorSignature) -> None:
        """Step 4."""
        survivors = self.listed.survivors if self.listed else ()
        self._admit(sender, message, "signatures", survivors, self.signatures)
        assert self.listed is not None
        content = statement_content(self._roster_digest, *signed_content(self.occasion, self.context, self.listed))
        if not is_signed(self._identity_keys[sender], message.signature, content):
            raise AuthenticationError(
                f"SurvivorSignature from {sender} is not its signature on this opening, model and list of survivors."
            )
        self.signatures[sender] = message.signature

    def request_shares(self) -> UnmaskRequest:
        """Step 5."""
        self._expect_stage("signatures")
        if len(self.signatures) < self.floor:
            raise ThresholdError(
                f"Expected at least {self.floor} signatures on the list of survivors, got {len(self.signatures)}.",
                remedy="Open another round with the clients that are there.",
            )
        self.signers = tuple(sorted(self.signatures))
        self.stage = "reveals"
        signatures = tuple(self.signatures[name] for name in self.signers)
        return UnmaskRequest(self.occasion.round_index, self.occasion.attempt, self.signers, signatures)

    def collect_reveal(self, sender: str, message: RevealedShares) -> None:
        """Step 5. Every share must be the one that its owner committed to, and of the secret that was asked for."""
        self._admit(sender, message, "reveals", self.signers, self.reveals)
        assert self.listed is not None
        around = set(self.graph.neighbourhood(sender))
        expected = tuple(name for name in self.sharers if name in around)
        if message.owners != expected or len(message.shares) != len(expected):
            raise ProtocolError(f"RevealedShares from {sender}: expected one share of each of {', '.join(expected)}.")
        survivors = self._survivors
        for owner, share in zip(message.owners, message.shares, strict=True):
            survived = owner in survivors
            sealed = self.sealed[owner]
            digests = sealed.self_digests if survived else sealed.escrow_digests
            committed = digests[self.graph.neighbourhood(owner).index(sender)]
            if share_digest(self.occasion, "self" if survived else "escrow", owner, sender, share) != committed:
                raise AuthenticationError(
                    f"RevealedShares from {sender}: the share of {owner} is not the one that {owner} committed to."
                )
        self.reveals[sender] = message

    def expect_values(self, sender: str, message: MaskedUpload, num_values: int) -> None:
        """Refuse an upload that is not one of so many values."""
        message.expect_shape(sender, "values", (packed_length(num_values, self.form.width),))
        check_padding(message.values, num_values, self.form.width, f"MaskedUpload from {sender}")

    def sum_of_uploads(self, num_values: int) -> npt.NDArray[np.int64]:
        """The sum of the uploads, modulo 2^width, for whoever unmasks it: the record does not keep it."""
        for message in self.uploads.values() if self._num_values is None else ():
            self._add(message, num_values)
        total, self._total = self._total, None
        assert total is not None
        return total

    def _add(self, message: MaskedUpload, num_values: int) -> MaskedUpload:
        """Add an upload to the sum; returns what is kept of it, which is its form."""
        if self._total is None:
            self._total = np.zeros(num_values, dtype=np.int64)
        add_packed(self._total, message.values, self.form.width)
        return replace(message, values=torch.zeros(1, dtype=message.values.dtype).expand(len(message.values)))

    def _is_held(self, owner: str, sharers: set[str]) -> bool:
        return len(sharers.intersection(self.graph.neighbourhood(owner))) >= self.threshold_around(owner)

    def _routed(self, name: str) -> RoutedShares:
        senders = tuple(other for other in self.graph.neighbours(name) if other in self._sharing)
        sent = [self.sealed[other] for other in senders]
        places = [self.graph.neighbourhood(other).index(name) for other in senders]
        return RoutedShares(
            self.occasion.round_index,
            self.occasion.attempt,
            senders,
            sealed=tuple(message.sealed[message.recipients.index(name)] for message in sent),
            self_digests=tuple(message.self_digests[place] for message, place in zip(sent, places, strict=True)),
            escrow_digests=tuple(message.escrow_digests[place] for message, place in zip(sent, places, strict=True)),
        )

    def _check_complaint(self, sender: str, message: ShareComplaint) -> None:
        routed = [name for name in self.graph.neighbours(sender) if name in self.sharers]
        check_names(message.dealers, routed, f"ShareComplaint from {sender}")
        if not message.dealers:
            raise ProtocolError(f"ShareComplaint from {sender}: it accuses nobody.")

    def _complained(self) -> str:
        pairs = [(sender, ", ".join(message.dealers)) for sender, message in sorted(self.complaints.items())]
        return "".join(f" {sender} could not open the shares of {dealers}." for sender, dealers in pairs)

    def _check_refusal(self, sender: str, message: RangeRefusal) -> None:
        rows, bounds = message.rows, self.form.bound_bits
        in_order = list(rows) == sorted(set(rows)) and len(rows) == len(message.bound_bits) > 0
        if not in_order or not 0 <= rows[0] <= rows[-1] < len(bounds):
            raise ProtocolError(
                f"RangeRefusal from {sender}: expected rows 0 to {len(bounds) - 1} in order, got {rows}."
            )
        for row, bits in zip(rows, message.bound_bits, strict=True):
            if not bounds[row] < bits <= MAX_BOUND_BITS:
                raise ProtocolError(
                    f"RangeRefusal from {sender}: expected a bound of row {row} above 2^{bounds[row]} and up to "
                    f"2^{MAX_BOUND_BITS}, got 2^{bits}."
                )

    def _drop_odd_length(self) -> None:
        lengths = Counter(len(upload.values) for upload in self.uploads.values())
        if len(lengths) > 1:
            (common, _), *_ = lengths.most_common(1)
            odd = next(name for name, upload in self.uploads.items() if len(upload.values) != common)
            got = len(self.uploads.pop(odd).values)
            raise ProtocolError(
                f"MaskedUpload from {odd}: expected {common} values as from most clients, got {got}; it is dropped.",
                remedy="Close the uploads again to go on without that client.",
            )

    def _expect_stage(self, stage: Stage) -> None:
        if self.stage != stage:
            raise ProtocolError(
                f"Round {self.occasion.round_index} attempt {self.occasion.attempt} is at the stage {self.stage!r}, "
                f"expected {stage!r}."
            )

    def _admit(
        self, sender: str, message: Collected, stage: Stage, expected: Collection[str], seen: Mapping[str, object]
    ) -> None:
        what = f"{type(message).__name__} from {sender}"
        if (message.round_index, message.attempt) != (self.occasion.round_index, self.occasion.attempt):
            raise ProtocolError(
                f"{what} is of round {message.round_index} attempt {message.attempt}; round "
                f"{self.occasion.round_index} attempt {self.occasion.attempt} is under way.",
                remedy="It came late or was sent twice; it is not used.",
            )
        if self.stage != stage:
            raise ProtocolError(f"{what} came at the stage {self.stage!r}, it belongs to {stage!r}.")
        if sender not in expected:
            raise ProtocolError(f"{what} was not asked for.", remedy="It takes no part in this step of the round.")
        if sender in seen:
            raise ProtocolError(f"{what} came a second time in one attempt.", remedy="The first one is used.")


def _expect_items(sender: str, name: str, items: tuple[bytes, ...], count: int, size: int) -> None:
    if len(items) != count or any(len(item) != size for item in items):
        raise ProtocolError(f"SealedShares from {sender}: expected {count} times {size} bytes in `{name}`.")
