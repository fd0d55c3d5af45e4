"""The public facts of a training step: all three parties know them, and all else follows from them and secrets."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import torch
from torch import Tensor

from bilateral.errors import ModelError
from bilateral.protocols.share.circuit.description import Circuit, Conv, Dense, Linear, Shape, Value

Loss = Literal["mse", "ce"]
ONE: Final = 1 << 20
"""What a factor of 1 is, in the units of factors that are applied by a product and a truncation."""
MOST_CLASSES: Final = 1024
"""With more, what the softmax leaves to outputs far below the largest adds up to more than its error."""
VALUE_NORM_BITS: Final = 5
"""Fraction bits of values whose squares are added up; they are the larger, deltas the smaller."""
DELTA_NORM_BITS: Final = 10
INPUT_ROOT_MEAN_SQUARE: Final = 16.0
"""The second party refuses its own batch where a channel's is larger (`parties.encode_batch`)."""


@dataclass(frozen=True)
class StepTerms:
    """One step of one client: forward, loss, backward, gradients of the layers that train.

    `trains`: of each linear layer, its weights and its bias. `factor`: what every sample's loss counts, in units of
    2^-20, at most one: clients whose batch stands for fewer samples have less. Gradients are sums over the batch of the
    gradients of `factor` times each sample's loss; of MSE, without the 2 / outputs of its derivative, which `decode`
    has.
    """

    circuit: Circuit
    loss: Loss
    batch_size: int
    trains: tuple[tuple[bool, bool], ...]
    factor: int = ONE

    def __post_init__(self) -> None:
        _require(1 <= self.factor <= ONE, f"a factor is between 1 and {ONE} units, got {self.factor}")
        _require(self.batch_size >= 1, f"a batch has a sample or more, got {self.batch_size}")
        _require(self.loss in ("mse", "ce"), f"there is no loss {self.loss!r}")
        _require(len(self.trains) == len(self.linear_steps), "every linear layer says whether it trains")
        _require(any(any(parts) for parts in self.trains), "no parameter trains")
        _require(len(self.circuit.output.shape) == 1, "the outputs of a sample are a vector")
        is_few = self.loss == "mse" or self.circuit.output.size <= MOST_CLASSES
        _require(is_few, f"cross entropy takes up to {MOST_CLASSES} classes, got {self.circuit.output.size}")
        self.circuit.expect_trainable()

    @cached_property
    def digest(self) -> bytes:
        """Names these terms and no others."""
        facts = ["v2", self.circuit.to_json(), self.loss, self.batch_size, self.trains, self.factor]
        return hashlib.sha256(json.dumps(facts).encode()).digest()

    @cached_property
    def linear_steps(self) -> tuple[Linear, ...]:
        return self.circuit.linear_steps

    @cached_property
    def linear_values(self) -> tuple[Value, ...]:
        """What each linear layer gives."""
        return self.circuit.linear_values

    @cached_property
    def source_values(self) -> tuple[int, ...]:
        """Which value each linear layer reads."""
        return tuple(step.sources[0] for step in self.linear_steps)

    @cached_property
    def linear_sources(self) -> tuple[Value, ...]:
        return tuple(self.circuit.values[source] for source in self.source_values)

    @cached_property
    def number_of_layer(self) -> dict[int, int]:
        """Which linear layer the step of this index is."""
        steps = self.circuit.steps
        indices = [index for index, step in enumerate(steps) if isinstance(step, Dense | Conv)]
        return {index: number for number, index in enumerate(indices)}

    @cached_property
    def needs_gradient(self) -> tuple[bool, ...]:
        """Of every value: something that trains lies before it."""
        found = [False]
        for index, step in enumerate(self.circuit.steps):
            layer = self.number_of_layer.get(index)
            trains = layer is not None and any(self.trains[layer])
            found.append(trains or any(found[source] for source in step.sources))
        return tuple(found)

    @cached_property
    def transposes(self) -> tuple[bool, ...]:
        """Of every linear layer: a delta goes back through it."""
        return tuple(self.needs_gradient[source] for source in self.source_values)

    def size_of_parts(self, layer: int) -> int:
        """Words of what trains of a layer."""
        weight, bias = self.trains[layer]
        shape = self.linear_steps[layer].weight_shape(self.linear_sources[layer])
        return weight * math.prod(shape) + bias * self.linear_values[layer].shape[0]

    @cached_property
    def shape_of_step(self) -> StepShape:
        """What a step deals, watches and gives, found by walking it with shapes alone."""
        from bilateral.protocols.share.training.script import shape_of  # noqa: PLC0415 (which walks these terms)

        return shape_of(self)

    @property
    def gradient_words(self) -> int:
        """Of each party's part of the gradient: what trains of each layer, flat, weights before biases."""
        return sum(part.size for part in self.shape_of_step.parts)

    def decode(self, words: Tensor) -> list[tuple[Tensor | None, Tensor | None]]:
        """The gradients (float64) of the weights and the bias of each layer, of the sum of both parties' parts.

        Of the *sum* over samples of the plain loss (of the mean over outputs, for MSE), times `factor` as a number.
        """
        found: list[list[Tensor | None]] = [[None, None] for _ in self.linear_steps]
        outer = 2.0 / self.circuit.output.size if self.loss == "mse" else 1.0
        start = 0
        for part in self.shape_of_step.parts:
            numbers = words[start : start + part.size].double() * (2.0**-part.fraction_bits * outer)
            found[part.layer][part.is_bias] = numbers.reshape(part.shape)
            start += part.size
        return [(weight, bias) for weight, bias in found]


@dataclass(frozen=True)
class Made:
    """Stands for what an earlier gate left: the one of that number."""

    order: int


@dataclass(frozen=True, repr=False)
class Order:
    """A gate of a step as the dealer needs it: its name, and what it is given, with shapes in place of values.

    `done`: the gates whose results nothing reads after this one.
    """

    gate: str
    given: tuple[Any, ...]
    done: tuple[int, ...] = ()

    @property
    def made(self) -> tuple[Made, ...]:
        return tuple(part for part in self.given if isinstance(part, Made))


@dataclass(frozen=True)
class GradientPart:
    """Where a layer's gradient lies in the words of a party, and what they stand for."""

    layer: int
    is_bias: bool
    shape: Shape
    fraction_bits: int

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Norm:
    """A value whose channels have a norm that is limited. `label` names it; squared numbers have `kept_bits`."""

    label: str
    fraction_bits: int
    kept_bits: int

    @property
    def shift(self) -> int:
        """So many bits are cut off before numbers are squared."""
        return self.fraction_bits - self.kept_bits


@dataclass(frozen=True)
class StepShape:
    """`dealt`: shapes and types of all that the first party is dealt, in order. `watched`: labels, in order, each with
    the shape of a sample's part."""

    parts: tuple[GradientPart, ...]
    dealt: tuple[tuple[Shape, torch.dtype], ...]
    watched: tuple[tuple[str, Shape], ...]
    norms: tuple[Norm, ...]
    """Whose squares are compared."""
    orders: tuple[Order, ...] = field(default=(), compare=False)
    """Of a training step: the dealer's gates (`planning`)."""

    @property
    def dealt_bytes(self) -> int:
        return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self.dealt)


def _require(is_so: bool, what: str) -> None:
    if not is_so:
        raise ModelError(f"No training step: {what}.")
