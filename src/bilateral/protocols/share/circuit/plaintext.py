"""Fixed-point inference in the clear: what the secret-shared prediction must agree with."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bilateral.protocols.share.circuit.description import (
    FRACTION_BITS,
    ChannelDropout,
    Circuit,
    Conv,
    Dropout,
    Linear,
)
from bilateral.protocols.share.circuit.walk import Walk, walk
from bilateral.protocols.share.ring import arithmetic as ring


@dataclass(frozen=True, repr=False)
class PrivateLayer:
    """A linear layer's parameters as ring elements: weights with `FRACTION_BITS`, the bias with those of the
    product."""

    weight: Tensor
    bias: Tensor

    @property
    def weight_bits(self) -> int:
        """Every weight is below 2^(this - 1) in size."""
        return int(self.weight.abs().max()).bit_length() + 1 if self.weight.numel() else 2


@dataclass(frozen=True, repr=False)
class FixedPointModel:
    """A network as the answering party has it: the public circuit, and the parameters that nobody else sees."""

    circuit: Circuit
    layers: tuple[PrivateLayer, ...]

    def to(self, device: torch.device | None) -> FixedPointModel:
        moved = (PrivateLayer(layer.weight.to(device), layer.bias.to(device)) for layer in self.layers)
        return FixedPointModel(self.circuit, tuple(moved))

    def digest(self) -> bytes:
        """Names these parameters and this circuit, and no others. For their owner only: it tells guesses apart."""
        found = hashlib.sha256(self.circuit.to_json().encode())
        for layer in self.layers:
            for part in (layer.weight, layer.bias):
                found.update(part.cpu().contiguous().numpy().data)
        return found.digest()

    @cached_property
    def maps(self) -> tuple[ring.LinearMap, ...]:
        """The linear layers, ready to be applied; made once for all sessions."""
        pairs = zip(self.circuit.linear_steps, self.layers, strict=True)
        return tuple(linear_map(step, layer.weight, layer.weight_bits) for step, layer in pairs)


def linear_map(step: Linear, weight: Tensor, weight_bits: int = 64) -> ring.LinearMap:
    """The layer `step` with these weights, ready to be applied to many batches."""
    if isinstance(step, Conv):
        return ring.prepare_conv2d(
            weight,
            stride=step.stride,
            padding=step.padding,
            dilation=step.dilation,
            groups=step.groups,
            weight_bits=weight_bits,
        )
    return ring.prepare_linear(weight, weight_bits=weight_bits)


def spread_bias(bias: Tensor, step: Linear) -> Tensor:
    """The bias in a shape that adds to the layer's output."""
    return bias[:, None, None] if isinstance(step, Conv) else bias


@dataclass(repr=False)
class PlainArithmetic:
    """Exact products, truncation to the nearest, and the largest number met before each comparison or output."""

    model: FixedPointModel
    largest: dict[str, float] = field(default_factory=dict)

    def linear(self, index: int, step: Linear, source: int, x: Tensor) -> Walk:
        product = self.model.maps[index](x) + spread_bias(self.model.layers[index].bias, step)
        shift = self.model.circuit.values[source].fraction_bits
        result = (product + (1 << (shift - 1))) >> shift
        self._note(f"{step.kind} {index}", result, FRACTION_BITS)
        return result
        yield  # a walk is a generator; this one never waits

    def positive_part(self, x: Tensor, fraction_bits: int) -> Walk:
        self._note("a comparison", x, fraction_bits)
        return x.clamp_min(0)
        yield

    def scaled(self, x: Tensor, factor: int, shift: int) -> Walk:
        return (x * factor + (1 << (shift - 1))) >> shift
        yield

    def dropped(self, step: Dropout | ChannelDropout, x: Tensor) -> Walk:
        """All of it: in the clear there is prediction only."""
        del step
        return x
        yield

    def _note(self, where: str, x: Tensor, fraction_bits: int) -> None:
        found = float(x.abs().max()) / 2**fraction_bits if x.numel() else 0.0
        self.largest[where] = max(found, self.largest.get(where, 0.0))


def predict(model: FixedPointModel, queries: Tensor, arithmetic: PlainArithmetic | None = None) -> Tensor:
    """Logits (float64) of float queries, computed with fixed-point numbers."""
    encoded = ring.encode(queries, FRACTION_BITS)
    output = _finish(walk(model.circuit, encoded, arithmetic or PlainArithmetic(model)))
    described = model.circuit.output
    return ring.decode(output, described.fraction_bits) / described.divisor


def _finish(steps: Generator[Any, Any, Tensor]) -> Tensor:
    try:
        next(steps)
    except StopIteration as end:
        result: Tensor = end.value
        return result
    raise RuntimeError("a walk in the clear waits for nobody")


def predict_in_batches(
    model: FixedPointModel, queries: Tensor, batch_size: int = 64, *, arithmetic: PlainArithmetic | None = None
) -> Tensor:
    """`predict`, for many queries."""
    arithmetic = arithmetic or PlainArithmetic(model)
    parts = [queries[start : start + batch_size] for start in range(0, len(queries), batch_size)]
    return torch.cat([predict(model, part, arithmetic) for part in parts])
