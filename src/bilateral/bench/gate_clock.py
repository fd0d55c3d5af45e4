"""How the time of a training step's party splits by gate: timers around what its role does. For benchmarks alone."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from bilateral.protocols.share.gates.talk import Tell
from bilateral.protocols.share.training.roles import Bit, Dealing, Role

LINEAR: Final = "linear"
TRUNCATION: Final = "truncation"
COMPARISON: Final = "comparison"
BIT_PRODUCT: Final = "bit product"
PRODUCT: Final = "product"
GRADIENT: Final = "gradient"
WATCHING: Final = "watching"
DEALT: Final = "dealt"
REST: Final = "rest"
GATES: Final = (LINEAR, TRUNCATION, COMPARISON, BIT_PRODUCT, PRODUCT, GRADIENT, WATCHING, DEALT, REST)
"""Masks count as linear; all that looks at ranges is watching, its comparison too; dealt is
sealing and opening seeds, and receiving what was dealt while a gate waits for it; the
rest is the script between gates (windows of a pooling, sums of residuals)."""
_GATE_OF: Final = {
    "mask": LINEAR,
    "apply": LINEAR,
    "apply_transposed": LINEAR,
    "truncate": TRUNCATION,
    "_finish": TRUNCATION,
    "_deal_carries": TRUNCATION,
    "compare": COMPARISON,
    "multiply": PRODUCT,
    "blind": GRADIENT,
    "expect_gradient": GRADIENT,
    "gradient": GRADIENT,
    "watch": WATCHING,
    "settle": WATCHING,
}
"""Of a role's methods. A gate that another one calls is charged for itself, but within watching."""
Walk = Generator[Any, Any, Any]


class GateClock:
    """Seconds on a core and bytes (told, or dealt) of every phase and gate, since `take`."""

    def __init__(self, phases: Sequence[str]) -> None:
        self._phases = tuple(phases)
        self.phase = self._phases[0]
        """What is charged now."""
        self._running: list[str] = []
        self._last = 0.0
        self._counted: Tell | None = None
        self._found = self._nothing()

    def take(self) -> tuple[Tensor, Tensor]:
        """Seconds and bytes, a row a phase and a column a gate; what comes now is counted from zero."""
        found, self._found = self._found, self._nothing()
        return found

    def _nothing(self) -> tuple[Tensor, Tensor]:
        shape = len(self._phases), len(GATES)
        return torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.int64)

    @contextmanager
    def at(self, gate: str) -> Iterator[str]:
        """While this is done. Yields what is charged for it."""
        self._charge()
        if self._running and self._running[-1] == WATCHING:
            gate = WATCHING
        self._running.append(gate)
        try:
            yield gate
        finally:
            self._charge()
            self._running.pop()

    def walk(self, gate: str, walk: Walk) -> Walk:
        """The same walk, timed while it does not wait."""
        answer = None
        while True:
            with self.at(gate) as charged:
                try:
                    wanted = walk.send(answer)
                except StopIteration as end:
                    return end.value
            if isinstance(wanted, Tell) and wanted is not self._counted:  # gates within gates pass it on
                self._counted = wanted
                self._add_bytes(charged, wanted.part)
            answer = yield wanted

    def timed(self, role: Role, walk: Walk) -> Walk:
        """The walk of this role, with every gate of it timed."""
        self.attach(role)
        return self.walk(REST, walk)

    def attach(self, role: Role) -> None:
        """Time every gate of this role from now on."""
        for name, gate in _GATE_OF.items():
            if hasattr(role, name):
                setattr(role, name, self._timed(getattr(role, name), gate))
        if isinstance(role, Dealing):
            setattr(role, "_deal", self._counting(role._deal))  # noqa: B010 (mypy refuses to assign a method)

    def _timed(self, method: Callable[..., Any], gate: str) -> Callable[..., Any]:
        def in_steps(*given: Any) -> Walk:
            found = yield from self.walk(gate, method(*given))
            return _TimedBit(found, self) if isinstance(found, Bit) else found

        def at_once(*given: Any) -> Any:
            with self.at(gate):
                return method(*given)

        return in_steps if inspect.isgeneratorfunction(method) else at_once

    def _counting(self, deal: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def counted(part: Tensor) -> None:
            self._add_bytes(self._running[-1] if self._running else REST, part)
            deal(part)

        return counted

    def _add_bytes(self, gate: str, part: Tensor) -> None:
        self._found[1][self._phases.index(self.phase), GATES.index(gate)] += part.nbytes

    def _charge(self) -> None:
        now = time.process_time()
        if self._running:
            self._found[0][self._phases.index(self.phase), GATES.index(self._running[-1])] += now - self._last
        self._last = now


@dataclass(frozen=True, repr=False)
class _TimedBit(Bit):
    bit: Bit
    clock: GateClock

    def positive_part(self) -> Tensor:
        with self.clock.at(COMPARISON):
            return self.bit.positive_part()

    def share(self) -> Tensor:
        with self.clock.at(COMPARISON):
            return self.bit.share()

    def times(self, value: Tensor) -> Walk:
        return self.clock.walk(BIT_PRODUCT, self.bit.times(value))
