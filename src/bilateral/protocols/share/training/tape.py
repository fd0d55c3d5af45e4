"""What a training step keeps between its passes, and what both passes agree on."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from bilateral.protocols.share.training.roles import Bit, Masked
from bilateral.protocols.share.training.terms import StepTerms

Walk = Generator[Any, Any, Any]
VALUE_BITS: Final = 16
"""Of what is compared, before the point: more than in predictions, whose networks are there already (decision 54)."""
LARGEST: Final = 1 << (VALUE_BITS - 1)
"""Compared numbers are below this in size, so that differences of two of them can be compared."""
DELTA_BITS: Final = 24
"""Fraction bits of what goes back through a layer: it is smaller than what comes forward."""
SPREAD_BITS: Final = 26
"""At most so many of what an average sends back to each of its places: it is smaller still."""


@dataclass(frozen=True, repr=False)
class Delta:
    """The gradient of the loss with respect to a value."""

    share: Tensor
    fraction_bits: int


@dataclass(repr=False)
class Tape:
    """What the forward pass leaves for the backward pass, and that one for the gradients."""

    values: list[Tensor | None]
    masked: dict[int, Masked] = field(default_factory=dict)
    bits: dict[int, list[Bit]] = field(default_factory=dict)
    kept: dict[int, Tensor] = field(default_factory=dict)
    deltas: dict[int, Delta] = field(default_factory=dict)
    """Of values, as far as they are known."""
    masked_deltas: dict[int, tuple[Masked, Delta]] = field(default_factory=dict)
    """Of what each linear layer gives, where something of it trains."""
    watched: set[int] = field(default_factory=set)
    """Values that were watched because they are compared."""

    def value(self, index: int) -> Tensor:
        value = self.values[index]
        assert value is not None
        return value

    def forget(self, terms: StepTerms, index: int) -> None:
        """The step `index` is done: what nothing reads any more."""
        for source in terms.circuit.steps[index].sources:
            if terms.circuit.last_uses[source] == index:
                self.values[source] = None

    def add_delta(self, value: int, delta: Delta) -> None:
        """A value that several steps read has the sum of what each sends back."""
        if value not in self.deltas:
            self.deltas[value] = delta
            return
        parts = delta, self.deltas[value]
        bits = max(part.fraction_bits for part in parts)
        first, second = (part.share << (bits - part.fraction_bits) for part in parts)
        self.deltas[value] = Delta(first + second, bits)
