"""What a dealer has to deal for a step, found once: its gates in order, with shapes in place of values.

A dealer that walks `script` itself works out shapes at every step, and that takes longer than to deal for a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor

from bilateral.protocols.share.training.roles import Bit, Dealing
from bilateral.protocols.share.training.terms import Made, Order, StepTerms

TIMES: Final = "times"
"""The gate of a bit; all others are the role's."""
GATES: Final = ("mask", "apply", "apply_transposed", "truncate", "multiply", "compare", "blind", "expect_gradient")
Walk = Generator[Any, Any, Any]


class Planning(Dealing):
    """Walks a step without seeds, and writes down its gates."""

    def __init__(self, terms: StepTerms) -> None:
        super().__init__(terms, None)
        self._orders: list[Order] = []
        self._found: list[object] = []
        for name in GATES:
            setattr(self, name, self._noting(name, getattr(self, name)))

    @property
    def orders(self) -> tuple[Order, ...]:
        """Each with what nothing reads any more when it is done."""
        last = {made.order: number for number, order in enumerate(self._orders) for made in order.made}
        done: dict[int, list[int]] = {}
        for made, number in last.items():
            done.setdefault(number, []).append(made)
        return tuple(replace(order, done=tuple(done.get(number, ()))) for number, order in enumerate(self._orders))

    def _noting(self, name: str, gate: Callable[..., Walk]) -> Callable[..., Walk]:
        def noted(*given: Any) -> Walk:
            return self.note(name, given, (yield from gate(*given)))

        return noted

    def note(self, gate: str, given: tuple[Any, ...], found: Any) -> Any:
        """What was found, so that later gates that are given it can be told where it is from."""
        places = {id(one): place for place, one in enumerate(self._found)}
        known = tuple(part if isinstance(part, Tensor) else _made(part, places) for part in given)
        kept = _NotedBit(self, found) if isinstance(found, Bit) else found
        self._orders.append(Order(gate, known))
        self._found.append(kept)
        return kept


def _made(part: object, places: dict[int, int]) -> object:
    return Made(places[id(part)]) if id(part) in places else part


@dataclass(frozen=True, repr=False, eq=False)
class _NotedBit(Bit):
    planning: Planning
    bit: Bit

    def positive_part(self) -> Tensor:
        return self.bit.positive_part()

    def share(self) -> Tensor:
        return self.bit.share()

    def times(self, value: Tensor) -> Walk:
        return self.planning.note(TIMES, (self, value), (yield from self.bit.times(value)))


def follow(dealer: Dealing, orders: tuple[Order, ...]) -> None:
    """Deal for these gates, as a walk of the step would."""
    found: dict[int, Any] = {}
    for number, order in enumerate(orders):
        given: list[Any] = [found[part.order] if isinstance(part, Made) else part for part in order.given]
        gate: Callable[..., Walk] = given.pop(0).times if order.gate == TIMES else getattr(dealer, order.gate)
        found[number] = _end(gate(*given))
        for made in order.done:
            del found[made]


def _end(walk: Walk) -> Any:
    """Of a gate of the dealer, which waits for nobody."""
    try:
        next(walk)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a gate of the dealer waits for nobody")
