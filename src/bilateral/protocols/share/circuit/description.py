"""The public side of a network: which layers, in which order, of which shapes. All three parties walk it.

A circuit holds no weights. It travels as JSON from the answering party to the others, who infer every shape again, so
that a wrong one is refused at the edge and not in the middle of a batch.

Values are fixed-point: a ring element `v` stands for `v / 2^fraction_bits / divisor`. Average pooling only sums; its
division lives in these two numbers (a power of two in the first, anything else in the second, which the next linear
layer's weights take in).

A circuit that is trained has more kinds of steps (`TRAINING_KINDS`), and leaves nothing to the next layer: a value that
is still to be divided is scaled at once (`Scale`).
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Final

from bilateral.documents import parse_json
from bilateral.errors import MalformedMessageError, ModelError

FRACTION_BITS: Final = 20
"""Of weights, of inputs, and of what every linear layer gives (P4 section 4)."""
VALUE_BITS: Final = 12
"""Compared numbers must be below 2^12 in size, or what a circuit states. `compiler` checks it on the owner's own
samples; an input may lead beyond. A dealer that judges sees that in most cases (`judged.left_range`); otherwise nobody
does."""
MIN_VALUE_BITS: Final = 2
LARGEST_INPUT: Final = 1 << (VALUE_BITS - 2)
MAX_FRACTION_BITS: Final = 30
"""More would leave too few bits for the factor that blinds a comparison."""
FACTOR_BITS: Final = 20
"""Of public factors, which are applied by a product and a truncation: 2^20 is one."""
_MAX_DROPPED: Final = 15 << (FACTOR_BITS - 4)
_SCALE_ERROR_BITS: Final = 12
_MAX_STEPS: Final = 4096
_MAX_VALUES: Final = 1 << 26
_MAX_TOTAL: Final = 1 << 27
"""Words of a layer, and of a whole circuit: whoever hears of one makes masks for all of it, half a gigabyte and one."""

_DEALT_WORDS: Final = 5
"""Of a compared number, in a sealed comparison of the widest range: `gates/sealed` says how many bytes just so."""
_BATCH_WORDS: Final = 1 << 28

Shape = tuple[int, ...]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Value:
    """One sample's part of a shared tensor."""

    shape: Shape
    fraction_bits: int
    divisor: int = 1

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """No average that is still to be divided."""
        return self.divisor == 1 and self.fraction_bits == FRACTION_BITS


@dataclass(frozen=True)
class Step(ABC):
    """One layer. `sources` are indices of earlier values; value 0 is the query, value i + 1 comes from step i."""

    kind: ClassVar[str]
    sources: tuple[int, ...]

    @abstractmethod
    def infer(self, inputs: Sequence[Value]) -> Value:
        """What the layer gives for inputs of these shapes; `ModelError` if they do not fit."""


@dataclass(frozen=True)
class Dense(Step):
    """A fully connected layer, truncated back to `FRACTION_BITS`."""

    kind: ClassVar[str] = "dense"
    out_features: int

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        _require(len(x.shape) == 1, f"a dense layer takes a flat input, got {x.shape}")
        return Value((self.out_features,), FRACTION_BITS)

    def weight_shape(self, source: Value) -> Shape:
        return (self.out_features, *source.shape)


@dataclass(frozen=True)
class Conv(Step):
    """A two-dimensional convolution, truncated back to `FRACTION_BITS`."""

    kind: ClassVar[str] = "conv"
    out_channels: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        _require(len(x.shape) == 3, f"a convolution takes an image, got {x.shape}")
        _require(x.shape[0] % self.groups == 0 == self.out_channels % self.groups, "groups divide the channels")
        size = _window_counts(x.shape, self.kernel, self.stride, self.padding, self.dilation)
        return Value((self.out_channels, *size), FRACTION_BITS)

    def weight_shape(self, source: Value) -> Shape:
        return (self.out_channels, source.shape[0] // self.groups, *self.kernel)


@dataclass(frozen=True)
class Relu(Step):
    kind: ClassVar[str] = "relu"

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        return x


@dataclass(frozen=True)
class MaxPool(Step):
    """Padding is with zeros, so it is right only after a ReLU; the compiler sees to that."""

    kind: ClassVar[str] = "max_pool"
    kernel: Pair
    stride: Pair
    padding: Pair

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        _require(len(x.shape) == 3, f"max pooling takes an image, got {x.shape}")
        size = _window_counts(x.shape, self.kernel, self.stride, self.padding, (1, 1))
        return Value((x.shape[0], *size), x.fraction_bits, x.divisor)


@dataclass(frozen=True)
class AvgPool(Step):
    """The sum of each window; the division is in the value's `fraction_bits` and `divisor`."""

    kind: ClassVar[str] = "avg_pool"
    kernel: Pair
    stride: Pair
    padding: Pair

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        _require(len(x.shape) == 3, f"average pooling takes an image, got {x.shape}")
        size = _window_counts(x.shape, self.kernel, self.stride, self.padding, (1, 1))
        count = math.prod(self.kernel)
        twos = (count & -count).bit_length() - 1
        return Value((x.shape[0], *size), x.fraction_bits + twos, x.divisor * (count >> twos))


@dataclass(frozen=True)
class Add(Step):
    kind: ClassVar[str] = "add"

    def infer(self, inputs: Sequence[Value]) -> Value:
        _require(len(inputs) == 2 and inputs[0].shape == inputs[1].shape, "a sum takes two values of one shape")
        return Value(inputs[0].shape, *_aligned(inputs))


@dataclass(frozen=True)
class Concat(Step):
    """Along the first dimension of a sample: channels or features."""

    kind: ClassVar[str] = "concat"

    def infer(self, inputs: Sequence[Value]) -> Value:
        _require(len(inputs) > 0, "nothing to concatenate")
        rest = {x.shape[1:] for x in inputs}
        _require(len(rest) == 1, f"concatenated values differ outside the first dimension: {sorted(rest)}")
        return Value((sum(x.shape[0] for x in inputs), *rest.pop()), *_aligned(inputs))


@dataclass(frozen=True)
class Reshape(Step):
    kind: ClassVar[str] = "reshape"
    shape: Shape

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        _require(math.prod(self.shape) == x.size, f"{x.shape} does not reshape to {self.shape}")
        return Value(self.shape, x.fraction_bits, x.divisor)


@dataclass(frozen=True)
class LeakyRelu(Step):
    """`slope` (in units of 2^-20, less than one) times what is negative."""

    kind: ClassVar[str] = "leaky_relu"
    slope: int

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        _require(1 <= self.slope < 1 << FACTOR_BITS, f"a slope is between 0 and 1, got {self.slope} units of 2^-20")
        return x


@dataclass(frozen=True)
class Scale(Step):
    """Times `factor` (in units of 2^-20), truncated to 20 fraction bits: what an average still had to be divided by."""

    kind: ClassVar[str] = "scale"
    factor: int

    @classmethod
    def of(cls, source: int, divisor: int) -> Scale:
        return cls((source,), ((2 << FACTOR_BITS) // divisor + 1) // 2)

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        error = abs(self.factor * x.divisor - (1 << FACTOR_BITS))
        _require(
            error << _SCALE_ERROR_BITS <= 1 << FACTOR_BITS,
            f"{self.factor} units of 2^-20 do not divide by {x.divisor} within 2^-{_SCALE_ERROR_BITS}",
        )
        return Value(x.shape, FRACTION_BITS)

    def shift(self, source: Value) -> int:
        """So many bits are cut off after the product."""
        return FACTOR_BITS + source.fraction_bits - FRACTION_BITS


@dataclass(frozen=True)
class Dropout(Step):
    """In training, zeros with the probability `threshold` 2^-20; the rest is multiplied by `factor` 2^-20."""

    kind: ClassVar[str] = "dropout"
    threshold: int

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        return _checked_dropout(self.threshold, x)

    @property
    def factor(self) -> int:
        return _factor_of_kept(self.threshold)


@dataclass(frozen=True)
class ChannelDropout(Step):
    """The same for whole channels of images: one draw for each (channels, 1, 1)."""

    kind: ClassVar[str] = "channel_dropout"
    threshold: int

    def infer(self, inputs: Sequence[Value]) -> Value:
        (x,) = inputs
        _require(len(x.shape) == 3, f"channels are dropped of an image, got {x.shape}")
        return _checked_dropout(self.threshold, x)

    @property
    def factor(self) -> int:
        return _factor_of_kept(self.threshold)


def _checked_dropout(threshold: int, x: Value) -> Value:
    _require(1 <= threshold <= _MAX_DROPPED, f"dropout keeps a sixteenth or more, got {threshold} units of 2^-20")
    return x


def _factor_of_kept(threshold: int) -> int:
    return round((1 << 2 * FACTOR_BITS) / ((1 << FACTOR_BITS) - threshold))


Linear = Dense | Conv
KINDS: Final[dict[str, type[Step]]] = {
    cls.kind: cls for cls in (Dense, Conv, Relu, MaxPool, AvgPool, Add, Concat, Reshape)
}
"""Of steps that are predicted on shares."""
TRAINING_KINDS: Final[dict[str, type[Step]]] = KINDS | {
    cls.kind: cls for cls in (LeakyRelu, Scale, Dropout, ChannelDropout)
}
"""Of steps that are trained on shares."""


@dataclass(frozen=True)
class Comparison:
    """One layer of comparisons: how many numbers of a sample, and their fraction bits."""

    size: int
    fraction_bits: int


@dataclass(frozen=True)
class Circuit:
    """A network's public description. Every shape is inferred, and wrong ones are refused (`ModelError`)."""

    input_shape: Shape
    steps: tuple[Step, ...]
    largest_input: int = LARGEST_INPUT
    """No sample that the network was checked on is larger than this power of two; queries must not be much larger."""
    value_bits: int = VALUE_BITS
    """Compared numbers are below 2^this in size. Sealed comparisons are as wide as that, and cheaper the narrower."""

    def __post_init__(self) -> None:
        _require(1 <= self.largest_input <= LARGEST_INPUT, f"inputs are below {LARGEST_INPUT}")
        _require(
            MIN_VALUE_BITS <= self.value_bits <= VALUE_BITS,
            f"compared numbers have {MIN_VALUE_BITS} to {VALUE_BITS} bits before the point",
        )
        _require(0 < len(self.steps) <= _MAX_STEPS, f"a circuit has 1 to {_MAX_STEPS} steps, got {len(self.steps)}")
        _ = self.values

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The query, then what each step gives."""
        found = [Value(_checked_shape(self.input_shape), FRACTION_BITS)]
        held, dealt = found[0].size, 0
        for step in self.steps:
            _require(all(0 <= s < len(found) for s in step.sources), f"{step.kind} refers to a later value")
            _require(len(step.sources) >= 1, f"{step.kind} has no input")
            try:
                value = step.infer([found[s] for s in step.sources])
            except (ValueError, TypeError, ZeroDivisionError) as error:
                raise ModelError(f"{step.kind} does not fit its input: {error}.") from error
            _checked_shape(value.shape)
            _require(_work(step, found) <= _MAX_VALUES, f"{step.kind} has too many weights, or too large windows")
            _require(value.fraction_bits <= MAX_FRACTION_BITS, f"{step.kind}: average pooling adds up to too many bits")
            _require(value.divisor < 1 << 20, f"{step.kind}: average pooling divides by too much")
            found.append(value)
            held += value.size + _work(step, found)
            dealt += _DEALT_WORDS * _num_compared(step, value)
            _require(held <= _MAX_TOTAL, "all values and weights together are too many")
            _require(dealt <= _MAX_TOTAL, "all comparisons together are too many")
        return tuple(found)

    @property
    def output(self) -> Value:
        return self.values[-1]

    @cached_property
    def linear_steps(self) -> tuple[Linear, ...]:
        return tuple(step for step in self.steps if isinstance(step, Dense | Conv))

    @cached_property
    def linear_values(self) -> tuple[Value, ...]:
        """What each linear layer gives."""
        return tuple(v for v, step in zip(self.values[1:], self.steps, strict=True) if isinstance(step, Dense | Conv))

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """In the order of a walk: one a ReLU, one a level of a max pooling."""
        found = []
        for step, value in zip(self.steps, self.values[1:], strict=True):
            fraction_bits = self.values[step.sources[0]].fraction_bits
            if isinstance(step, Relu | LeakyRelu):
                found.append(Comparison(value.size, fraction_bits))
            elif isinstance(step, MaxPool):
                candidates = math.prod(step.kernel)
                while candidates > 1:
                    found.append(Comparison(candidates // 2 * value.size, fraction_bits))
                    candidates -= candidates // 2
        return tuple(found)

    @cached_property
    def largest_batch(self) -> int:
        """So many samples are computed together at most: two gigabytes of values and of what is dealt for them."""
        compared = sum(_num_compared(step, value) for step, value in zip(self.steps, self.values[1:], strict=True))
        return max(1, _BATCH_WORDS // (sum(value.size for value in self.values) + _DEALT_WORDS * compared))

    @cached_property
    def last_uses(self) -> tuple[int, ...]:
        """For every value the index of the last step that reads it: afterwards it can be freed."""
        last = [0] * len(self.values)
        for index, step in enumerate(self.steps):
            for source in step.sources:
                last[source] = index
        last[-1] = len(self.steps)
        return tuple(last)

    def expect_trainable(self) -> None:
        """Refuse a circuit whose values are still to be divided by something (`ModelError`)."""
        for step in self.steps:
            scaled = isinstance(step, Scale) or all(self.values[source].is_whole for source in step.sources)
            _require(scaled, f"{step.kind} reads an average that was not scaled")
        _require(self.output.is_whole, "the output is an average that was not scaled")

    def to_json(self) -> str:
        return self._json

    @cached_property
    def _json(self) -> str:
        steps = [{"kind": step.kind, **asdict(step)} for step in self.steps]
        described = {
            "input_shape": self.input_shape,
            "largest_input": self.largest_input,
            "value_bits": self.value_bits,
            "steps": steps,
        }
        return json.dumps(described, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, sender: str, *, is_trained: bool = False) -> Circuit:
        """The inverse of `to_json`, for text that another party wrote. Steps of training only where it `is_trained`."""
        try:
            found = parse_json(text)
            kinds = TRAINING_KINDS if is_trained else KINDS
            steps = tuple(_step(entry, kinds) for entry in found["steps"])
            circuit = cls(_ints(found["input_shape"]), steps, _int(found["largest_input"]), _int(found["value_bits"]))
            if is_trained:
                circuit.expect_trainable()
            return circuit
        except (ValueError, TypeError, KeyError, ModelError) as error:
            raise MalformedMessageError(
                f"The circuit from {sender} is not one: {error}.",
                remedy="Both sides must run the same version of the protocol.",
            ) from error


def _step(entry: dict[str, Any], kinds: Mapping[str, type[Step]]) -> Step:
    kind = kinds[entry["kind"]]
    expected = {item.name: item.type for item in fields(kind)}
    if set(entry) != {"kind", *expected}:
        raise ValueError(f"{kind.kind} has the fields {', '.join(expected)}")
    settings: dict[str, Any] = {}
    for name, annotation in expected.items():
        settings[name] = _int(entry[name]) if annotation == "int" else _ints(entry[name])
        if annotation == "Pair" and len(settings[name]) != 2:
            raise ValueError(f"{kind.kind}.{name} has two numbers")
    return kind(**settings)


def _int(value: object, low: int = 1) -> int:
    if type(value) is not int or not low <= value < 1 << 24:
        raise ValueError(f"expected a whole number from {low}, got {value!r}"[:80])
    return value


def _ints(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > _MAX_STEPS:
        raise ValueError("expected a list of whole numbers")
    return tuple(_int(value, 0) for value in values)


def _checked_shape(shape: Shape) -> Shape:
    _require(len(shape) in (1, 3), f"a value is flat or an image, got {shape}")
    _require(all(size >= 1 for size in shape) and math.prod(shape) <= _MAX_VALUES, f"no value has the shape {shape}")
    return shape


def _work(step: Step, found: Sequence[Value]) -> int:
    """Numbers that a step holds beside its inputs and outputs: weights, or the padded image."""
    source = found[step.sources[0]]
    if isinstance(step, Dense | Conv):
        held = math.prod(step.weight_shape(source))
    else:
        held = math.prod(step.kernel) if isinstance(step, MaxPool | AvgPool) else 0
    if isinstance(step, Conv | MaxPool | AvgPool):
        (_, height, width), (above, beside) = source.shape, step.padding
        held = max(held, source.shape[0] * (height + 2 * above) * (width + 2 * beside))
    return held


def _num_compared(step: Step, value: Value) -> int:
    """Numbers that a step compares, to give `value`: a maximum of n takes n - 1 comparisons."""
    if isinstance(step, MaxPool):
        return (math.prod(step.kernel) - 1) * value.size
    return value.size if isinstance(step, Relu | LeakyRelu) else 0


def _aligned(inputs: Sequence[Value]) -> tuple[int, int]:
    divisors = {x.divisor for x in inputs}
    _require(len(divisors) == 1, "values that were averaged over different windows (no powers of two) are joined")
    return max(x.fraction_bits for x in inputs), divisors.pop()


def _window_counts(shape: Shape, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    counts = []
    for size, k, s, p, d in zip(shape[1:], kernel, stride, padding, dilation, strict=True):
        _require(k >= 1 and s >= 1 and d >= 1 and p >= 0, "kernel, stride and dilation are positive")
        counts.append((size + 2 * p - d * (k - 1) - 1) // s + 1)
    return counts[0], counts[1]


def _require(is_so: bool, what: str) -> None:
    if not is_so:
        raise ModelError(f"No circuit: {what}.")
