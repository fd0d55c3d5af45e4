"""The server's half of secure aggregation. `messages` has the numbered list of messages.

a, b. `register`, `roster`: the keys of the run
1. `open_round`, `collect_shares`
2. `route`
3. `collect_upload`; if `refused`, `retry` makes another attempt at the round with wider bounds
4. `close_uploads`, `collect_signature`
5. `request_shares`, `collect_reveal`
6. `unmask`: the weighted sum, and nothing else

A refused message changes nothing: the round goes on without its sender. A `ThresholdError` ends the round, and the next
one can be opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bilateral.errors import BilateralError, NumericalRangeError, PlanError, ProtocolError, ThresholdError
from bilateral.protocols.mask.attempt_record import AttemptRecord
from bilateral.protocols.mask.fixed_point import (
    MAX_WEIGHT,
    FixedPointFormat,
    bits_of_bounds,
    decode_sum,
    next_bound_bits,
)
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.mask.messages import (
    KeyAnnouncement,
    MaskedUpload,
    MaskOpening,
    RangeRefusal,
    RevealedShares,
    Roster,
    RoutedShares,
    SealedShares,
    SurvivorList,
    SurvivorSignature,
    UnmaskRequest,
)
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.survivors import check_names
from bilateral.protocols.mask.unmasking import unmasked_sum
from bilateral.protocols.messages import Aggregate


class MaskServer:
    """Adds up what it cannot read. `fixed_bounds`: bounds on |weight * value| a row that are never adapted."""

    def __init__(
        self,
        run_id: bytes,
        names: Sequence[str],
        settings: MaskSettings,
        fixed_bounds: Sequence[float] | None = None,
    ) -> None:
        self._directory = KeyDirectory(run_id, names)
        self._settings = settings
        self._has_fixed_bounds = fixed_bounds is not None
        self._bound_bits = bits_of_bounds(fixed_bounds) if fixed_bounds is not None else ()
        self._latest = (-1, -1)
        self._finished_round = -1
        self._num_values: int | None = None
        self._record: AttemptRecord | None = None

    def register(self, sender: str, message: KeyAnnouncement) -> None:
        """Step a."""
        self._directory.register(sender, message)

    def roster(self) -> Roster:
        """Step b. Clients that did not announce a key by now are not in the run."""
        return self._directory.roster()

    def open_round(
        self,
        round_index: int,
        participants: Sequence[str],
        num_rows: int | None = None,
        num_values: int | None = None,
    ) -> MaskOpening:
        """Step 1. Opening the same round again is another attempt at it.

        `num_rows`: number of terms, and one more for the statistics; the last round's by default. `num_values`: length
        of an upload (all terms, statistics, weight); where given, an upload of another length is refused when it comes.
        """
        latest_round, latest_attempt = self._latest
        if round_index < max(latest_round, 0) or round_index == self._finished_round:
            raise ProtocolError(f"Round {round_index} cannot be opened after round {latest_round}.")
        ordered = tuple(sorted(participants))
        check_names(ordered, self.roster().clients, f"Participants of round {round_index}")
        if len(ordered) < 2:
            raise ThresholdError(f"Expected two or more participants in round {round_index}, got {len(ordered)}.")
        bounds = self._bounds_for(num_rows)
        self._num_values = num_values
        return self._open(round_index, latest_attempt + 1 if round_index == latest_round else 0, ordered, bounds)

    @property
    def refused(self) -> bool:
        """Whether a client of this attempt refused for range."""
        return self._record is not None and bool(self._record.refusals)

    def retry(self, refusals: Mapping[str, RangeRefusal] | None = None) -> MaskOpening:
        """Step 3b. Another attempt with bounds that hold what was refused, among those that answered this one.

        `refusals`: those that count; by default all that were collected.
        """
        record = self._current()
        counted = record.refusals if refusals is None else refusals
        if record.stage != "uploads" or not counted:
            raise ProtocolError(
                "Another attempt is made only after a refusal for range, and before the list is closed."
            )
        bounds = list(record.form.bound_bits)
        for refusal in counted.values():
            for row, bits in zip(refusal.rows, refusal.bound_bits, strict=True):
                bounds[row] = max(bounds[row], bits)
        answered = tuple(sorted({*record.uploads, *record.refusals}))
        if len(answered) < 2:
            raise ThresholdError(f"Expected two or more clients for another attempt, got {len(answered)}.")
        return self._open(record.occasion.round_index, record.occasion.attempt + 1, answered, tuple(bounds))

    def collect_shares(self, sender: str, message: SealedShares) -> None:
        """Step 1."""
        self._current().collect_shares(sender, message)

    def route(self) -> dict[str, RoutedShares]:
        """Step 2: to each sharer, what its neighbours sealed for it."""
        return self._current().route()

    def collect_upload(self, sender: str, message: MaskedUpload | RangeRefusal) -> None:
        """Step 3."""
        if isinstance(message, RangeRefusal) and self._has_fixed_bounds:
            raise NumericalRangeError(
                f"RangeRefusal from {sender}: the bounds of this run are fixed.",
                remedy="That client must clip its values to the bounds of the plan.",
            )
        self._current().collect_upload(sender, message)

    def close_uploads(self) -> SurvivorList:
        """Step 4."""
        return self._current().close_uploads()

    def collect_signature(self, sender: str, message: SurvivorSignature) -> None:
        """Step 4."""
        self._current().collect_signature(sender, message)

    def request_shares(self) -> UnmaskRequest:
        """Step 5."""
        return self._current().request_shares()

    def collect_reveal(self, sender: str, message: RevealedShares) -> None:
        """Step 5."""
        self._current().collect_reveal(sender, message)

    def unmask(self, terms_shape: tuple[int, int], num_statistics: int) -> Aggregate:
        """Step 6. Whether it succeeds or not, the round is over."""
        record = self._current()
        if record.stage != "reveals":
            raise ProtocolError(f"Nothing can be unmasked at the stage {record.stage!r}.")
        num_terms, num_parameters = terms_shape
        try:
            total = unmasked_sum(record, [num_parameters] * num_terms + [num_statistics + 1])
            decoded = decode_sum(total, record.form, record.occasion.round_index, terms_shape, num_statistics)
            _check_weight(decoded, len(record.uploads))
        except BilateralError:
            record.stage = "closed"
            raise
        record.stage = "closed"
        self._finished_round = record.occasion.round_index
        if not self._has_fixed_bounds:
            self._bound_bits = next_bound_bits(decoded, record.form.bound_bits)
        survivors = tuple(sorted(record.uploads))
        return Aggregate(
            decoded.round_index, decoded.total_weight, decoded.terms, decoded.statistics, contributors=survivors
        )

    def state_tensors(self) -> dict[str, Tensor]:
        """Bounds of the next round, and the last attempt: a resumed run goes on with the same formats."""
        return {
            "bound_bits": torch.tensor(self._bound_bits, dtype=torch.int64),
            "latest": torch.tensor((*self._latest, self._finished_round), dtype=torch.int64),
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        if tensors:
            round_index, attempt, finished = tensors["latest"].tolist()
            self._latest, self._finished_round = (round_index, attempt), finished
            self._bound_bits = tuple(tensors["bound_bits"].tolist())
            self._record = None

    def _bounds_for(self, num_rows: int | None) -> tuple[int, ...]:
        known = self._bound_bits
        if num_rows is None or num_rows == len(known):
            if not known:
                raise ProtocolError("The first round needs the number of rows.", remedy="Give num_rows.")
            return known
        if self._has_fixed_bounds or num_rows < 1:
            raise PlanError(f"Expected {len(known) or 'one or more'} rows, got {num_rows}.")
        return (self._settings.initial_bound_bits,) * num_rows

    def _open(
        self, round_index: int, attempt: int, participants: tuple[str, ...], bounds: tuple[int, ...]
    ) -> MaskOpening:
        form = FixedPointFormat.for_bound_bits(bounds, len(participants))
        opening = MaskOpening(round_index, attempt, participants, form.fraction_bits)
        self._record = AttemptRecord(opening, self.roster(), self._settings, self._num_values)
        self._latest = (round_index, attempt)
        return opening

    def _current(self) -> AttemptRecord:
        if self._record is None:
            raise ProtocolError("No round is open.", remedy="Call open_round first.")
        return self._record


def _check_weight(total: Aggregate, num_survivors: int) -> None:
    """The weight is in the sum as it is; a total that no weights have means that some masks did not cancel."""
    if not num_survivors <= total.total_weight <= num_survivors * MAX_WEIGHT:
        raise ProtocolError(
            f"The unmasked total weight of {num_survivors} clients is {total.total_weight}, which no weights give.",
            remedy="A client did not mask as agreed; the sum of this round is lost.",
        )
