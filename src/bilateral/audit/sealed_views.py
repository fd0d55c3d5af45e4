"""What an adversary has of sealed steps: what passed it, the seeds that are its own, its batch or its weights.

| part of a step                      | client | server | dealer |
|-------------------------------------|--------|--------|--------|
| the terms; who deals                | has    | has    | has    |
| masked weights, what both told      | has    | has    |        |
| the seed of server and client       | has    | has    |        |
| the seed of dealer and server; dealt|        | has    | has    |
| the seed of dealer and client       | has    |        | has    |
| batch                               | has    |        |        |
| weights                             |        | has    |        |

Who tells each other what they know have what any of them has. Attacks get this and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from torch import Tensor

from bilateral.audit.views import AdversaryName, Facts
from bilateral.data import Split
from bilateral.errors import BilateralError
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.gates.talk import Hear, Tell, Work
from bilateral.protocols.share.training.parties import encode_batch
from bilateral.protocols.share.training.roles import Blinded, First, FirstModel, Second
from bilateral.protocols.share.training.script import step
from bilateral.protocols.share.training.terms import StepTerms


@dataclass(frozen=True, repr=False, eq=False)
class SeenStep:
    """One client's step in one round, as far as an adversary has it: what it has not is empty."""

    round_index: int
    client: str
    dealer: str
    terms: StepTerms
    dealer_and_server: bytes | None = None
    dealer_and_client: bytes | None = None
    server_and_client: bytes | None = None
    weights: tuple[Tensor, ...] = ()
    """Under masks."""
    told_by_server: tuple[Tensor, ...] = ()
    told_by_client: tuple[Tensor, ...] = ()
    dealt: tuple[Tensor, ...] = ()
    batch: Split | None = None
    """As it enters the circuit."""
    layers: tuple[PrivateLayer, ...] = ()

    @property
    def seeds(self) -> tuple[bytes, ...]:
        """All that it has."""
        every = (self.dealer_and_server, self.dealer_and_client, self.server_and_client)
        return tuple(seed for seed in every if seed is not None)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """What a computing party told, heard and was dealt, in order; nothing for who is neither."""
        return replayed(self)


@dataclass(frozen=True, repr=False)
class SealedView:
    """All that one adversary has of a sealed run's steps. `clients`: of whom it has a batch."""

    adversary: AdversaryName
    facts: Facts
    steps: tuple[SeenStep, ...]

    def step(self, round_index: int, client: str) -> SeenStep | None:
        """Its part of one step, if it has any."""
        found = (one for one in self.steps if (one.round_index, one.client) == (round_index, client))
        return next(found, None)

    def in_round(self, round_index: int) -> tuple[SeenStep, ...]:
        return tuple(one for one in self.steps if one.round_index == round_index)


@dataclass(frozen=True, repr=False)
class Event:
    """Something that a computing party told (`name` is empty), heard or was dealt."""

    name: str
    words: Tensor
    is_dealt: bool = False
    is_told: bool = False
    """Told, and named all the same."""


TOLD_BLINDED: Final = "its own blinded value"


class _NotingFirst(First):
    """Notes what it takes of what was dealt, and the blinded values that it tells."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.events: list[Event] = []

    def _take(self, name: str, *given: Any) -> Tensor:
        part = super()._take(name, *given)
        self.events.append(Event(name, part, is_dealt=True))
        return part

    def blind(self, *given: Any) -> Work[Blinded]:
        blinded: Blinded = yield from super().blind(*given)
        self.events.append(Event(TOLD_BLINDED, blinded.told, is_told=True))
        return blinded


class _AnyLimit(dict[str, int]):
    """The same for whatever is watched."""

    def __missing__(self, label: str) -> int:
        return 1 << 40


def replayed(seen: SeenStep) -> tuple[Event, ...]:
    """The client's or the server's own work done again, so that all it heard has its name; nothing for others."""
    terms = seen.terms
    if seen.batch is not None and seen.dealer_and_client is not None and seen.server_and_client is not None:
        second = Second(terms, seen.weights, seen.dealer_and_client, seen.server_and_client)
        work = step(second, *encode_batch(terms, seen.batch.inputs, seen.batch.targets))
        return tuple(_run(work, seen.told_by_server, []))
    if seen.layers and seen.dealer_and_server is not None and seen.server_and_client is not None:
        # What it tells of its limits is not the same again; what it hears comes in the same order.
        model = FirstModel.of(terms, seen.layers, _AnyLimit())
        first = _NotingFirst(terms, model, seen.dealt, seen.dealer_and_server, seen.server_and_client, seen.dealer)
        return tuple(_run(step(first, None, None), seen.told_by_client, first.events))
    return ()


def _run(work: Work[Tensor], heard: Sequence[Tensor], events: list[Event]) -> Sequence[Event]:
    left: Iterator[Tensor] = iter(heard)
    wanted = next(work)
    while True:
        try:
            if isinstance(wanted, Tell):
                events.append(Event("", wanted.part))
                wanted = work.send(None)
            else:
                assert isinstance(wanted, Hear)
                part = next(left, None)
                if part is None:
                    return events
                events.append(Event(wanted.name, part))
                wanted = work.send(part)
        except (StopIteration, BilateralError):  # what was changed may lead nowhere
            return events


@dataclass(frozen=True, repr=False)
class Worlds:
    """What an attacker takes to be possible: two sets of layers, or two batches; it knows both of each."""

    layers: Mapping[int, tuple[PrivateLayer, ...]] = field(default_factory=dict)
    batches: Mapping[int, Split] = field(default_factory=dict)
