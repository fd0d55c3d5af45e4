"""One walk over a circuit for everyone who holds values: the plaintext oracle, the answering party, the server.

Sums, reshaping, concatenation and pooling windows are linear, so each party does them to its share alone. What differs
between parties is how a linear layer and a positive part are computed: that is what `Arithmetic` has.

A walk is a generator, because a party may have to wait for a message in the middle of a layer; what it yields and is
sent belongs to its `Arithmetic`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.protocols.share.circuit.description import (
    FACTOR_BITS,
    Add,
    AvgPool,
    ChannelDropout,
    Circuit,
    Concat,
    Conv,
    Dense,
    Dropout,
    LeakyRelu,
    Linear,
    MaxPool,
    Pair,
    Relu,
    Reshape,
    Scale,
    Step,
    Value,
)

Walk = Generator[Any, Any, Tensor]


class Arithmetic(Protocol):
    """How one party computes what is not local. Tensors have the batch first; ring elements are int64."""

    def linear(self, index: int, step: Linear, source: int, x: Tensor) -> Walk:
        """The layer `index` (of the linear ones) applied to value `source`, truncated."""
        ...

    def positive_part(self, x: Tensor, fraction_bits: int) -> Walk:
        """max(x, 0), element by element."""
        ...


@runtime_checkable
class TrainedArithmetic(Arithmetic, Protocol):
    """Of a circuit that is trained: it has steps that nobody predicts on shares."""

    def scaled(self, x: Tensor, factor: int, shift: int) -> Walk:
        """x times a public whole number, truncated by so many bits."""
        ...

    def dropped(self, step: Dropout | ChannelDropout, x: Tensor) -> Walk:
        """x after dropout."""
        ...


def walk(circuit: Circuit, x: Tensor, arithmetic: Arithmetic) -> Walk:
    """The circuit's output on `x` (batch first), or one party's share of it."""
    values: list[Tensor | None] = [x]
    num_linear = 0
    for index, step in enumerate(circuit.steps):
        inputs = [_held(values, source) for source in step.sources]
        described = [circuit.values[source] for source in step.sources]
        match step:
            case Dense() | Conv():
                result = yield from arithmetic.linear(num_linear, step, step.sources[0], inputs[0])
                num_linear += 1
            case Relu():
                result = yield from arithmetic.positive_part(inputs[0], described[0].fraction_bits)
            case MaxPool():
                result = yield from _max_pool(step, inputs[0], described[0].fraction_bits, arithmetic)
            case AvgPool():
                result = _sum_windows(step, inputs[0])
            case Add():
                first, second = _aligned(inputs, described)
                result = first + second
            case Concat():
                result = torch.cat(_aligned(inputs, described), dim=1)
            case Reshape():
                result = inputs[0].reshape(len(x), *step.shape)
            case _:
                if not isinstance(arithmetic, TrainedArithmetic):
                    raise TypeError(f"no step: {step!r}")
                result = yield from _trained(step, inputs[0], described[0], arithmetic)
        values.append(result)
        for source in step.sources:
            if circuit.last_uses[source] == index:
                values[source] = None
    return _held(values, -1)


def _trained(step: Step, x: Tensor, source: Value, arithmetic: TrainedArithmetic) -> Walk:
    match step:
        case LeakyRelu():
            positive = yield from arithmetic.positive_part(x, source.fraction_bits)
            return positive + (yield from arithmetic.scaled(x - positive, step.slope, FACTOR_BITS))
        case Scale():
            return (yield from arithmetic.scaled(x, step.factor, step.shift(source)))
        case Dropout() | ChannelDropout():
            return (yield from arithmetic.dropped(step, x))
        case _:
            raise TypeError(f"no step: {step!r}")


def _held(values: list[Tensor | None], source: int) -> Tensor:
    value = values[source]
    assert value is not None
    return value


def _aligned(inputs: Sequence[Tensor], described: Sequence[Value]) -> list[Tensor]:
    """All with as many fraction bits as the finest of them: a shift, which shares allow."""
    finest = max(value.fraction_bits for value in described)
    return [
        x if value.fraction_bits == finest else x << (finest - value.fraction_bits)
        for x, value in zip(inputs, described, strict=True)
    ]


def windows(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> list[Tensor]:
    """For every place in the kernel the values that the windows have there."""
    (kh, kw), (sh, sw), (ph, pw) = kernel, stride, padding
    padded = F.pad(x, (pw, pw, ph, ph)) if ph or pw else x
    height, width = (padded.shape[-2] - kh) // sh + 1, (padded.shape[-1] - kw) // sw + 1
    return [
        padded[..., i : i + (height - 1) * sh + 1 : sh, j : j + (width - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]


def _sum_windows(step: AvgPool, x: Tensor) -> Tensor:
    if step.kernel == tuple(x.shape[-2:]) and step.padding == (0, 0):
        return x.sum(dim=(-2, -1), keepdim=True)
    parts = windows(x, step.kernel, step.stride, step.padding)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _max_pool(step: MaxPool, x: Tensor, fraction_bits: int, arithmetic: Arithmetic) -> Walk:
    """By tree: max(a, b) = b + positive part of (a - b), half of the candidates a round."""
    candidates = torch.stack(windows(x, step.kernel, step.stride, step.padding), dim=1)  # batch, places, ...
    while candidates.shape[1] > 1:
        half = candidates.shape[1] // 2
        first, second, odd = candidates[:, :half], candidates[:, half : 2 * half], candidates[:, 2 * half :]
        gain = yield from arithmetic.positive_part(first - second, fraction_bits)
        candidates = torch.cat([second + gain, odd], dim=1) if odd.shape[1] else second + gain
    return candidates[:, 0]
