"""Which openings a client still answers. Every rule here takes a choice from a server that does not play fair.

- attempts only go forward, three a round, and none follows a signed list: two sums would show their difference
- later attempts are among the first one's participants, and never below the floor that the first one set
- where the plan fixes bounds, no other format: in tiny ones, clients would refuse and so tell the sizes of their values
- a ring of the plan's width, or of 64 bits while no range is known; where the plan fixes bounds, of its width alone
- ring words where the plan says so, and nowhere else: what is a share in one is a number in the other
"""

from __future__ import annotations

from collections.abc import Sequence

from bilateral.errors import ProtocolError, ThresholdError
from bilateral.protocols.mask.fixed_point import bits_of_bounds
from bilateral.protocols.mask.messages import MaskOpening
from bilateral.protocols.mask.ring_words import RingWords, UploadFormat, format_of
from bilateral.protocols.mask.settings import MAX_ATTEMPTS, MaskSettings, allowed_widths
from bilateral.protocols.mask.survivors import check_names


class OpeningHistory:
    """What one client remembers of a run's openings. `check` changes nothing; `take` goes on to a checked opening."""

    def __init__(
        self, name: str, settings: MaskSettings, fixed_bounds: Sequence[float] | None, *, words: bool = False
    ) -> None:
        self.has_fixed_bounds = fixed_bounds is not None
        self.latest = (-1, -1)
        self.signed_round = -1
        self._name = name
        self._what = f"{name}: MaskOpening from the server"
        self._settings = settings
        self._words = words
        self._fixed_bits = bits_of_bounds(fixed_bounds) if fixed_bounds is not None else ()
        self._first_participants: tuple[str, ...] = ()

    def check(self, message: MaskOpening, clients: Sequence[str]) -> UploadFormat:
        """Refuse an opening, or say in which format to encode. `clients`: all of the run."""
        self._check_order(message)
        check_names(message.participants, clients, self._what)
        if self._name not in message.participants or len(message.participants) < 2:
            raise ProtocolError(f"{self._what}: expected {self._name} and at least one other among the participants.")
        if strangers := set(message.participants).difference(self._first_of(message)):
            raise ProtocolError(f"{self._what}: {min(strangers)!r} was not there in the first attempt at this round.")
        floor = self._settings.floor_of(len(self._first_of(message)))
        if len(message.participants) < floor:
            raise ThresholdError(
                f"{self._what}: expected {floor} or more participants, got {len(message.participants)}."
            )
        return self._checked_format(message)

    def take(self, message: MaskOpening) -> int:
        """Go on to this attempt; returns the fewest uploads that its sum may have."""
        self._first_participants = self._first_of(message)
        self.latest = (message.round_index, message.attempt)
        return self._settings.floor_of(len(self._first_participants))

    def _first_of(self, message: MaskOpening) -> tuple[str, ...]:
        return self._first_participants if message.round_index == self.latest[0] else message.participants

    def _check_order(self, message: MaskOpening) -> None:
        latest_round, latest_attempt = self.latest
        is_newer = (message.round_index, message.attempt) > self.latest
        if message.round_index < 0 or message.attempt < 0 or not is_newer:
            raise ProtocolError(
                f"{self._what}: round {message.round_index} attempt {message.attempt} is not newer than "
                f"round {latest_round} attempt {latest_attempt}."
            )
        if message.attempt >= MAX_ATTEMPTS:
            raise ProtocolError(
                f"{self._what}: attempt {message.attempt} at one round; there are {MAX_ATTEMPTS} at most."
            )
        if message.round_index == self.signed_round:
            raise ProtocolError(f"{self._what}: a list of survivors was already signed in round {message.round_index}.")

    def _checked_format(self, message: MaskOpening) -> UploadFormat:
        try:
            form = format_of(message)
        except ProtocolError as error:
            raise ProtocolError(f"{self._what}: {error}") from error
        if isinstance(form, RingWords) != self._words:
            planned, got = ("ring words", "numbers") if self._words else ("numbers", "ring words")
            raise ProtocolError(
                f"{self._what}: uploads of this plan are {planned}, and the server opened for {got}.",
                remedy="Both sides must run the same plan.",
            )
        if form.width not in allowed_widths(self._settings, is_fixed=self.has_fixed_bounds or self._words):
            raise ProtocolError(
                f"{self._what}: a ring of {form.width} bits, where the plan says {self._settings.width}.",
                remedy="Both sides must run the same plan.",
            )
        if self.has_fixed_bounds and form.bound_bits != self._fixed_bits:
            raise ProtocolError(
                f"{self._what}: the bounds of this run are fixed, and the server opened with others.",
                remedy="Both sides must run the same plan.",
            )
        return form
