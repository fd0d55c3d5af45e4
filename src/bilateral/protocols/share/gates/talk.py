"""What a computing party says in the middle of its work, and how that becomes messages.

A party's work is a generator. It yields `Tell` (to the other computing party; nobody waits), `Hear` (what the other
told, in order) and, where the dealer judges comparisons, `Judge`. It knows nothing of messages, engines, or who asks
whom: a `Speaker` runs it as far as it gets with what was heard, and gathers what it told on the way. So a turn of one
party holds everything that it can say before it must listen, and rounds are as few as the gates allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from bilateral.errors import MalformedMessageError
from bilateral.protocols.share.gates.expected import expect_tensor

T = TypeVar("T")
_EARLY_BYTES: Final = 1 << 15
"""So much is worth a message of its own, so that the other can begin with it."""


@dataclass(frozen=True, repr=False)
class Tell:
    """Words for the other computing party."""

    part: Tensor


class Hear(NamedTuple):
    """Wait for the other's next part: what it is, and its shape (int64 words, always)."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Judge:
    """Blinded numbers for the dealer, who answers with two tensors of their shape. Only judged styles have it."""

    values: Tensor


Work = Generator[Any, Any, T]
"""Yields `Tell`, `Hear` (and is sent the part) and `Judge` (and is sent a pair); returns its result."""

_NOTHING: Final[Any] = object()


class Speaker(Generic[T]):
    """One party's work on one batch. `other` is named in errors.

    `early`: where messages can leave at any time, called with what was told as soon as that is much, and not only when
    this party must listen.
    """

    def __init__(
        self,
        work: Work[T],
        other: str,
        device: torch.device | None = None,
        early: Callable[[tuple[Tensor, ...]], None] | None = None,
    ) -> None:
        self._work, self._other, self._device, self._early = work, other, device, early
        self._heard: deque[Tensor] = deque()
        self._told: list[Tensor] = []
        self._waits_for: Hear | Judge | None = None
        self._result: Any = _NOTHING
        self._step(None)
        self._run()

    @property
    def is_done(self) -> bool:
        return self._result is not _NOTHING

    @property
    def result(self) -> T:
        assert self.is_done, "the work is not done"
        return self._result  # type: ignore[no-any-return]

    @property
    def judge(self) -> Judge | None:
        """What the dealer is to judge before this work goes on."""
        return self._waits_for if isinstance(self._waits_for, Judge) else None

    def take_told(self) -> tuple[Tensor, ...]:
        """What was told since the last call."""
        told, self._told = tuple(self._told), []
        return told

    def hear(self, parts: Sequence[Tensor], *, must_lead: bool = True) -> None:
        """The other party's turn: go on as far as it leads.

        A turn that leads nowhere is refused (else two parties could go on for ever with nothing to say to each other),
        but for one that comes before the first thing that this party can say.
        """
        self._heard.extend(parts)
        self._run()
        if must_lead and not self._heard and isinstance(self._waits_for, Hear) and not self._told:
            raise MalformedMessageError(
                f"Malformed message from {self._other}: it ends before `{self._waits_for.name}`.",
                remedy="Both sides must run the same version of the protocol.",
            )
        if self._heard and (self.is_done or isinstance(self._waits_for, Hear)):
            raise MalformedMessageError(
                f"Malformed message from {self._other}: {len(self._heard)} parts more than expected."
            )

    def told_by_judge(self, product: Tensor, bit: Tensor) -> None:
        """The dealer's answer to `judge`."""
        assert isinstance(self._waits_for, Judge), "nothing is to be judged"
        self._step((product, bit))
        self._run()

    def expect_end(self) -> None:
        """All that the other had to say is said."""
        if not self.is_done or self._heard:
            raise MalformedMessageError(f"{self._other} did not finish its part of the circuit, or said too much.")

    def _run(self) -> None:
        while isinstance(self._waits_for, Hear) and self._heard:
            wanted, part = self._waits_for, self._heard.popleft()
            expect_tensor(self._other, wanted.name, part, wanted.shape, torch.int64)
            self._step(part.to(self._device) if self._device else part)

    def _tell(self, part: Tensor) -> None:
        self._told.append(part)
        if self._early is not None and sum(told.nbytes for told in self._told) >= _EARLY_BYTES:
            self._early(self.take_told())

    def _step(self, answer: Any) -> None:
        """To the next thing that the work waits for."""
        self._waits_for = None
        try:
            wanted = self._work.send(answer)
            while isinstance(wanted, Tell):
                self._tell(wanted.part.cpu())
                wanted = self._work.send(None)
        except StopIteration as end:
            self._result = end.value
            return
        self._waits_for = wanted
