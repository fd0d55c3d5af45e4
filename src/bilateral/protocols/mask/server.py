"""The server's half of secure aggregation. `messages` has the numbered list of messages.

a, b. `register`, `roster`: the keys of the run
1. `open_round`, `collect_shares`
2. `route`
3. `collect_upload`; if `refused`, `retry` makes another attempt at the round with wider bounds, at most two
4. `close_uploads`, `collect_signature`
5. `request_shares`, `collect_reveal`
6. `unmask`: the weighted sum, and nothing else

A refused message changes nothing: the round goes on without its sender. A `ThresholdError` ends the round, and the next
one can be opened; if it is a `LostSumError`, it says whose fault it was where that can be known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bilateral.arguments import checked
from bilateral.errors import (
    BilateralError,
    CheckpointError,
    LostSumError,
    NumericalRangeError,
    PlanError,
    ProtocolError,
    ThresholdError,
)
from bilateral.protocols.mask.attempt_record import Answer, AttemptRecord
from bilateral.protocols.mask.fixed_point import (
    HEADROOM_BITS,
    MAX_WEIGHT,
    NARROW_HEADROOM_BITS,
    FixedPointFormat,
    bits_of_bounds,
    decode_sum,
    granted_bits,
    next_bound_bits,
)
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.mask.messages import (
    KeyAnnouncement,
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
from bilateral.protocols.mask.ring_words import RingWords, format_of, sum_of_words
from bilateral.protocols.mask.settings import MAX_ATTEMPTS, MaskSettings
from bilateral.protocols.mask.survivors import check_names
from bilateral.protocols.mask.unmasking import unmasked_sum
from bilateral.protocols.mask.widths import WIDEST, Width, width_for
from bilateral.protocols.messages import Aggregate


class MaskServer:
    """Adds up what it cannot read.

    `fixed_bounds`: bounds on |weight * value| a row that are never adapted. `words`: uploads are ring words, and so is
    their sum (`ring_words`). `pinned`: see `KeyDirectory`.
    """

    @checked
    def __init__(
        self,
        run_id: bytes,
        names: Sequence[str],
        settings: MaskSettings,
        fixed_bounds: Sequence[float] | None = None,
        *,
        pinned: Mapping[str, bytes] | None = None,
        words: bool = False,
    ) -> None:
        if words and fixed_bounds is not None:
            raise PlanError("Ring words have no bounds.", remedy="Give `words` or `fixed_bounds`.")
        self._words = words
        self._directory = KeyDirectory(run_id, names, pinned, min_clients=settings.min_in_sum or 2)
        self._settings = settings
        self._has_fixed_bounds = fixed_bounds is not None
        self._bound_bits = bits_of_bounds(fixed_bounds) if fixed_bounds is not None else ()
        self._range_known: tuple[bool, ...] = ()
        """Of each row, whether a sum has shown its range."""
        self._latest = (-1, -1)
        self._finished_round = -1
        self._num_values: int | None = None
        self._record: AttemptRecord | None = None
        self._first: MaskOpening | None = None

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
        """Step 1. Opening the same round again is another attempt at it, among those of the first or some of them.

        `num_rows`: number of terms, and one more for the statistics; the last round's by default. `num_values`: length
        of an upload (all terms, statistics, weight); where given, an upload of another length is refused when it comes.
        """
        latest_round, latest_attempt = self._latest
        if round_index < max(latest_round, 0) or round_index == self._finished_round:
            raise ProtocolError(f"Round {round_index} cannot be opened after round {latest_round}.")
        ordered = tuple(sorted(participants))
        check_names(ordered, self.roster().clients, f"Participants of round {round_index}")
        fewest = max(2, self._settings.min_in_sum or 0)
        if len(ordered) < fewest:
            raise ThresholdError(
                f"Expected {fewest} or more participants in round {round_index}, got {len(ordered)}.",
                remedy="Wait until more clients are there.",
            )
        bounds = self._bounds_for(num_rows)
        self._num_values = num_values
        return self._open(round_index, latest_attempt + 1 if round_index == latest_round else 0, ordered, bounds)

    @property
    def refused(self) -> bool:
        """Whether a client of this attempt refused for range and another attempt can help; if not, it is left out."""
        record = self._record
        if record is None or not record.refusals or record.occasion.attempt + 1 >= MAX_ATTEMPTS:
            return False
        return self._granted(record) != record.form.bound_bits

    @property
    def refusers(self) -> tuple[str, ...]:
        """Who refused for range in this attempt."""
        return tuple(self._record.refusals) if self._record is not None else ()

    @property
    def complaints(self) -> dict[str, tuple[str, ...]]:
        """Of this attempt: who could not open the shares of whom."""
        found = self._record.complaints if self._record is not None else {}
        return {sender: message.dealers for sender, message in found.items()}

    def retry(self) -> MaskOpening:
        """Step 3b. Another attempt with bounds that hold what was refused, among those that answered this one."""
        record = self._current()
        if record.stage != "uploads" or not self.refused:
            raise ProtocolError(
                "Another attempt is made only after a refusal for range that can be granted, before the list is closed."
            )
        answered = tuple(sorted({*record.uploads, *record.refusals}))
        if len(answered) < record.floor:
            raise ThresholdError(
                f"Expected {record.floor} or more clients for another attempt, got {len(answered)}.",
                remedy="Open another round with the clients that are there.",
            )
        return self._open(record.occasion.round_index, record.occasion.attempt + 1, answered, self._granted(record))

    def collect_shares(self, sender: str, message: SealedShares) -> None:
        """Step 1."""
        self._current().collect_shares(sender, message)

    def route(self) -> dict[str, RoutedShares]:
        """Step 2: to each sharer, what its neighbours sealed for it."""
        return self._current().route()

    def collect_upload(self, sender: str, message: Answer) -> None:
        """Step 3."""
        if isinstance(message, RangeRefusal) and self._words:
            raise ProtocolError(
                f"RangeRefusal from {sender}: ring words have no range.", remedy="Both sides must run the same plan."
            )
        if isinstance(message, RangeRefusal) and self._has_fixed_bounds:
            raise NumericalRangeError(
                f"RangeRefusal from {sender}: the bounds of this run are fixed.",
                remedy="That client must clip its values to the bounds of the plan.",
            )
        self._current().collect_upload(sender, message)

    def close_uploads(self, *, context: bytes) -> SurvivorList:
        """Step 4. `context`: a digest of what the clients were sent to train on, as in `MaskClient.mask`."""
        return self._current().close_uploads(context=context)

    def collect_signature(self, sender: str, message: SurvivorSignature) -> None:
        """Step 4."""
        self._current().collect_signature(sender, message)

    def request_shares(self) -> UnmaskRequest:
        """Step 5."""
        return self._current().request_shares()

    def collect_reveal(self, sender: str, message: RevealedShares) -> None:
        """Step 5."""
        self._current().collect_reveal(sender, message)

    def unmask(self, terms_shape: tuple[int, int], num_statistics: int, *, adapts: bool = True) -> Aggregate:
        """Step 6. Whether it succeeds or not, the round is over.

        `adapts`: later ranges follow the sizes of this sum. Not those of a sum of something else (counts of classes):
        clients would have to refuse the next range, and every refusal tells a size.
        """
        record = self._current()
        if record.stage != "reveals":
            raise ProtocolError(f"Nothing can be unmasked at the stage {record.stage!r}.")
        num_terms, num_parameters = terms_shape
        try:
            total = unmasked_sum(record, [num_parameters] * num_terms + [num_statistics + 1])
            decoded = _decoded(total, record, terms_shape, num_statistics)
            _check_weight(decoded, sorted(record.uploads))
        except BilateralError:
            record.stage = "closed"
            raise
        record.stage = "closed"
        self._finished_round = record.occasion.round_index
        if adapts and not self._words and not self._has_fixed_bounds:
            headroom = HEADROOM_BITS if self._settings.width == WIDEST else NARROW_HEADROOM_BITS
            self._bound_bits = next_bound_bits(decoded, self._first_bound_bits(), headroom)
            before = self._range_known or (False,) * len(self._bound_bits)
            rows = (*decoded.terms, decoded.statistics)
            self._range_known = tuple(
                known or not row.numel() or bool(row.any()) for known, row in zip(before, rows, strict=True)
            )
        survivors = tuple(sorted(record.uploads))
        return Aggregate(
            decoded.round_index, decoded.total_weight, decoded.terms, decoded.statistics, contributors=survivors
        )

    def state_tensors(self) -> dict[str, Tensor]:
        """Bounds of the next round, and the last attempt: a resumed run goes on with the same formats."""
        state = {
            "bound_bits": torch.tensor(self._bound_bits, dtype=torch.int64),
            "latest": torch.tensor((*self._latest, self._finished_round), dtype=torch.int64),
        }
        if self._settings.width != WIDEST:
            state["range_known"] = torch.tensor(self._range_known, dtype=torch.int64)
        return state

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse, for a run whose clients start anew as well: living ones refuse rounds that they have seen."""
        names = ["bound_bits", "latest", *(["range_known"] if self._settings.width != WIDEST else [])]
        if (
            sorted(tensors) != names
            or tensors["latest"].shape != (3,)
            or any(tensors[name].dim() != 1 for name in names)
        ):
            raise CheckpointError(
                f"Expected the state of masked sums: {', '.join(names)}; got {', '.join(sorted(tensors)) or 'none'}.",
                remedy="The checkpoint is of another plan or another version; start the run anew.",
            )
        round_index, attempt, finished = tensors["latest"].tolist()
        self._latest, self._finished_round = (round_index, attempt), finished
        self._bound_bits = tuple(tensors["bound_bits"].tolist())
        self._range_known = tuple(map(bool, tensors["range_known"].tolist())) if "range_known" in tensors else ()
        self._record = self._first = None

    def _bounds_for(self, num_rows: int | None) -> tuple[int, ...]:
        known = self._bound_bits
        if self._words:
            return ()
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
        width = self._width(bounds, len(participants), is_first=not attempt)
        form = RingWords() if self._words else FixedPointFormat.for_bound_bits(bounds, len(participants), width)
        opening = MaskOpening(round_index, attempt, participants, form.fraction_bits, width)
        first = self._first if self._first is not None and attempt else opening
        floor = self._settings.floor_of(len(first.participants))
        if attempt >= MAX_ATTEMPTS or len(participants) < floor:
            raise ThresholdError(
                f"Round {round_index} cannot be opened for attempt {attempt} with {len(participants)} participants: "
                f"there are {MAX_ATTEMPTS} attempts, with {floor} or more of the first one's participants.",
                remedy="Open the next round.",
            )
        check_names(participants, first.participants, f"Participants of round {round_index} attempt {attempt}")
        self._record = AttemptRecord(opening, self.roster(), self._settings, floor, self._num_values)
        self._latest, self._first = (round_index, attempt), first
        return opening

    def _width(self, bounds: tuple[int, ...], num_participants: int, *, is_first: bool) -> Width:
        """As the plan says, or as its resolution needs; 64 bits while there is a row whose range nobody knows."""
        settings = self._settings
        if self._words or (self._has_fixed_bounds and settings.width == "auto"):
            return WIDEST
        if self._has_fixed_bounds and settings.width != "auto":
            return settings.width
        if not all(self._range_known) or len(self._range_known) != len(bounds):
            return WIDEST
        if settings.width != "auto":
            return settings.width
        widened = 0 if is_first else max(map(int.__sub__, bounds, self._first_bound_bits()))
        # A bound is up to twice 2^headroom times the largest sum that it follows.
        return width_for(settings.resolution, num_participants, NARROW_HEADROOM_BITS + 1 + widened)

    def _first_bound_bits(self) -> tuple[int, ...]:
        assert self._first is not None
        return format_of(self._first).bound_bits

    def _granted(self, record: AttemptRecord) -> tuple[int, ...]:
        """Bounds that hold what was refused, as far as that is granted."""
        bounds, demanded = list(record.form.bound_bits), defaultdict[int, list[int]](list)
        for refusal in record.refusals.values():
            for row, bits in zip(refusal.rows, refusal.bound_bits, strict=True):
                demanded[row].append(bits)
        for row, first in enumerate(self._first_bound_bits()):
            if row in demanded:
                granted = granted_bits(demanded[row], first, self._settings.initial_bound_bits)
                bounds[row] = max(bounds[row], granted)
        return tuple(bounds)

    def _current(self) -> AttemptRecord:
        if self._record is None:
            raise ProtocolError("No round is open.", remedy="Call open_round first.")
        return self._record


def _decoded(total: Tensor, record: AttemptRecord, terms_shape: tuple[int, int], num_statistics: int) -> Aggregate:
    round_index, form = record.occasion.round_index, record.form
    if isinstance(form, RingWords):
        return sum_of_words(total, round_index, terms_shape, num_statistics)
    return decode_sum(total, form, round_index, terms_shape, num_statistics)


def _check_weight(total: Aggregate, survivors: Sequence[str]) -> None:
    """The weight is in the sum as it is; a total that no weights have means that some masks did not cancel."""
    if not len(survivors) <= total.total_weight <= len(survivors) * MAX_WEIGHT:
        raise LostSumError(
            f"The unmasked total weight of {len(survivors)} clients is {total.total_weight}, which no weights give; "
            f"one of {', '.join(survivors)} did not mask as agreed.",
            remedy="The sum of this round is lost; go on with the next round.",
        )
