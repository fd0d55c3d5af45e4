"""The gates of a training step, as each of the three parties does them.

`script` is the step: which gate follows which. All three walk it, each with a role of its own, so that they agree on
the order of gates without a word:

| role | has | yields |
|---|---|---|
| `First` | weights, what was dealt; a share of every other value | what it tells the second, and hears from it |
| `Second` | masked weights; the other share | the same |
| `Dealing` | both seeds, and shapes (`device="meta"`) in place of values | nothing: it deals |

A mask is drawn from a stream that is named by its gate (a number that counts gates), its value or its layer, and no
stream hides two numbers (`test_no_stream_is_read_twice_for_two_purposes`). Guarantee
(`tests/protocols/share/training/test_views.py`): all that a party hears is under a mask that is uniform and unknown to
it, but for the one number that `settle` opens.

That is of what is heard in a step. Whoever learns the gradient afterwards, or a sum of several, learns it as it was
rounded; each truncation rounds by the last bits of both shares, and the first party knows its own. So the sum tells it
some bits below the last place of numbers in between, where the sum without any rounding would not.

Products of two shared numbers: X = x + a and Y = y + b are opened, and xy = XY - Xb - Ya + ab is linear in what is
dealt.

Of what is dealt the second party has its part by its seed alone, and the first is sent what is left. It is the server,
whom messages of the dealer reach first: so nothing that is dealt travels twice.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from bilateral.errors import MalformedMessageError
from bilateral.protocols.share.circuit.gradient_maps import input_gradient_map, weight_gradient
from bilateral.protocols.share.circuit.plaintext import PrivateLayer, linear_map
from bilateral.protocols.share.gates import planes, sealed, truncation
from bilateral.protocols.share.gates.expected import expect_tensor
from bilateral.protocols.share.gates.talk import Hear, Tell
from bilateral.protocols.share.ring.arithmetic import LinearMap
from bilateral.protocols.share.ring.packing import from_words, num_words, to_words
from bilateral.protocols.share.ring.streams import Keystream, Purpose, Stream
from bilateral.protocols.share.training import norms
from bilateral.protocols.share.training.terms import Norm, Order, StepTerms
from bilateral.protocols.share.training.watching import NUM_SUMS, groups_of, signed_sums

Gate = Generator[Any, Any, Tensor]
SUM_BITS: Final = 60
"""Sums of what is watched, and their distances from the limits, are below 2^this (`bounds` sees to that)."""
NUMBERED: Final = ("truncate", "multiply", "compare", "times")
"""Gates that `Role._next_gate` counts."""
MOST_READY: Final = 8
"""So many pieces are made ahead, at most: they take memory."""
Key = tuple[str, object]
Labelled = tuple[str, Callable[[], Tensor]]
T = TypeVar("T")
_DEALER_PIECE: Final = torch.device("meta")


class Bit(ABC):
    """[x >= 0] for every element of a value, shared."""

    @abstractmethod
    def positive_part(self) -> Tensor:
        """max(x, 0). No message."""

    @abstractmethod
    def share(self) -> Tensor:
        """The bit as a number, 0 or 1. No message."""

    @abstractmethod
    def times(self, value: Tensor) -> Gate:
        """The bit times a value of the same shape."""


@dataclass(frozen=True, repr=False)
class Masked:
    """A value whose second share is under a mask: `part` is what the first holds of it (the rest), or the mask."""

    part: Tensor


@dataclass(frozen=True, repr=False)
class Blinded:
    """A masked value, and what goes to the second party of the first's part: the part under a mask (or the mask)."""

    masked: Masked
    told: Tensor


class Role(ABC):
    """What `script` asks of a party. Values are shares, batch first; `Dealing` has their shapes alone."""

    def __init__(self, terms: StepTerms) -> None:
        self.terms = terms
        self.delta_bits: dict[int, int] = {}
        """Fraction bits of what comes back to each linear layer."""
        self._num_gates = 0
        self._watched: list[Labelled] = []
        self._norms: list[Labelled] = []

    # What needs no message.

    @abstractmethod
    def constant(self, x: Tensor, value: int) -> Tensor:
        """x + value."""

    @abstractmethod
    def secret_of_second(self, values: Tensor | None, shape: Sequence[int]) -> Tensor:
        """A share of what the second party alone knows; `values` is None elsewhere."""

    @abstractmethod
    def kept(self, number: int, shape: Sequence[int], threshold: int) -> Tensor:
        """A share of which elements dropout keeps, 0 or 1, drawn with threshold / 2^20 for a zero.

        The second party draws, and the dealer could: whoever sees sums and knew who was dropped could tell samples in
        them apart.
        """

    # Gates.

    @abstractmethod
    def mask(self, purpose: Purpose, number: int, x: Tensor) -> Generator[Any, Any, Masked]:
        """The second party's share goes to the first under a mask that the dealer knows."""

    @abstractmethod
    def apply(self, layer: int, masked: Masked, shift: int) -> Gate:
        """The linear layer of a masked value, with its bias, truncated."""

    @abstractmethod
    def apply_transposed(self, layer: int, masked: Masked, shift: int) -> Gate:
        """What the layer's transpose makes of a masked delta, truncated."""

    @abstractmethod
    def truncate(self, x: Tensor, shift: int) -> Gate:
        """x >> shift, rounded up or down at random."""

    @abstractmethod
    def multiply(self, x: Tensor, y: Tensor) -> Gate:
        """x y, element by element, not truncated."""

    @abstractmethod
    def compare(self, x: Tensor, bits: int) -> Generator[Any, Any, Bit]:
        """[x >= 0], for numbers below 2^bits in size."""

    @abstractmethod
    def blind(self, purpose: Purpose, number: int, masked: Masked, norm: Norm) -> Generator[Any, Any, Blinded]:
        """The first party's part of a masked value goes to the second under a mask that the dealer knows.

        With both parts at hand, the squared norm of every channel is worked out, for `settle`.
        """

    @abstractmethod
    def gradient(self, layer: int, value: Blinded, delta: Blinded) -> Gate:
        """delta (x) value, summed over the batch: of the shape of the layer's weights."""

    # Watching what must stay small.

    @abstractmethod
    def expect_gradient(self, layer: int, value: Blinded, delta: Blinded) -> Generator[Any, Any, None]:
        """`gradient` of these will be asked for, once numbers are known to be in their range."""

    def watch(self, label: str, x: Tensor) -> None:
        """Remember random sums of x, which `settle` compares with the first party's limits."""
        number = len(self._watched)
        self._watched.append((label, self._remembered(("watch", label), lambda: self._sums(x, number).reshape(-1))))

    def _remembered(self, key: Key, make: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Something that `settle` asks for. Whoever has time makes it before."""
        del key
        found = make()
        return lambda: found

    @abstractmethod
    def _sums(self, x: Tensor, number: int) -> Tensor:
        """Every group of x with random signs, `NUM_SUMS` times."""

    @abstractmethod
    def _limits(self, labelled: Sequence[tuple[str, Tensor]]) -> Tensor | int:
        """What the first party adds to all that is watched."""

    @abstractmethod
    def open_count(self, share: Tensor) -> Generator[Any, Any, int]:
        """One number, opened to both."""

    def settle(self) -> Generator[Any, Any, int]:
        """How many of the random sums and norms are beyond their limits. Both learn that, and nothing else."""
        watched, norms_of = ([(label, make()) for label, make in kind] for kind in (self._watched, self._norms))
        sums, limits = torch.cat([part for _, part in watched]), self._limits(watched)
        checked = [limits + sums, limits - sums]
        if norms_of:
            checked.append(self._limits(norms_of) - torch.cat([part for _, part in norms_of]))
        compared = torch.cat(checked)
        bit = yield from self.compare(compared, SUM_BITS)
        share = bit.share().sum(dim=0, keepdim=True)
        return (yield from self.open_count(self.constant(-share, len(compared))))

    def _next_gate(self) -> int:
        self._num_gates += 1
        return self._num_gates - 1

    def _width(self, count: int, bits: int) -> sealed.Width:
        return sealed.Width.of(count, 0, bits)


class _Computing(Role):
    """What the two computing parties have in common."""

    is_first: bool

    def __init__(self, terms: StepTerms, with_dealer: bytes, with_other: bytes) -> None:
        super().__init__(terms)
        self._with_dealer = Keystream(with_dealer, terms.batch_size)
        self._with_other = Keystream(with_other, terms.batch_size)
        self._later: deque[tuple[Key, Callable[[], Any]]] = deque()
        self._small: deque[tuple[Key, Callable[[], Any]]] = deque()
        """Pieces whose results take hardly any memory."""
        self._num_small = 0
        self._ready: dict[Key, Any] = {}
        self._asked: set[Key] = set()

    def work_ahead(self) -> bool:
        """One piece of what is needed later and waits for no message. False if there is none (or enough is there)."""
        for pieces in (self._small, self._later):
            while pieces and (pieces is self._small or len(self._ready) < MOST_READY + self._num_small):
                key, make = pieces.popleft()
                if key not in self._asked:
                    self._ready[key] = make()
                    self._num_small += pieces is self._small
                    return True
        return False

    def _remembered(self, key: Key, make: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self._small.append((key, make))
        return lambda: self._made(key, make)

    def _made(self, key: Key, make: Callable[[], T]) -> T:
        """What was made ahead; else it is made now."""
        self._asked.add(key)
        return self._ready.pop(key) if key in self._ready else make()

    def plan(self, orders: Iterable[Order]) -> None:
        """These gates come, in this order: from now on there is something to `work_ahead` on."""
        gate = 0
        for order in orders:
            self._later.extend(self._pieces(order, gate))
            gate += order.gate in NUMBERED

    @abstractmethod
    def _pieces(self, order: Order, gate: int) -> Iterable[tuple[Key, Callable[[], Any]]]:
        """What this gate needs that no message decides. `gate`: its number, if it has one."""

    def expect_gradient(self, layer: int, value: Blinded, delta: Blinded) -> Generator[Any, Any, None]:
        self._small.append((("gradient", layer), lambda: self._gradient_product(layer, value, delta)))
        return
        yield

    @abstractmethod
    def _gradient_product(self, layer: int, value: Blinded, delta: Blinded) -> Tensor: ...

    def _stream(self, purpose: Purpose, number: int) -> Stream:
        return self._with_dealer.stream(purpose, number)

    def _common(self, purpose: Purpose, number: int) -> Stream:
        return self._with_other.stream(purpose, number)

    def _sums(self, x: Tensor, number: int) -> Tensor:
        return signed_sums(x, self._common("signs", number).words(groups_of(x).size))

    def open_count(self, share: Tensor) -> Generator[Any, Any, int]:
        yield Tell(share)
        return int(share + (yield Hear("the number of sums beyond their limits", (1,))))

    def _open(self, x: Tensor, name: str) -> Gate:
        yield Tell(x)
        heard: Tensor = yield Hear(name, tuple(x.shape))
        return x + heard

    def multiply(self, x: Tensor, y: Tensor) -> Gate:
        shape = x.shape
        stream = self._stream("gate", self._next_gate())
        a, b = stream.words(*shape), stream.words(*shape)
        ab = self._product_share(stream, tuple(shape))
        opened = yield from self._open(torch.stack([x + a, y + b]), "masked factors")
        mine = ab - opened[0] * b - opened[1] * a
        return mine + opened[0] * opened[1] if self.is_first else mine

    @abstractmethod
    def _product_share(self, stream: Stream, shape: tuple[int, ...]) -> Tensor: ...

    def compare(self, x: Tensor, bits: int) -> Generator[Any, Any, Bit]:
        width, gate = self._width(x.numel(), bits), self._next_gate()
        compared = yield from sealed.compare(x, self._correlation(gate, width), width, is_first=self.is_first)
        return _ComputedBit(self, compared, tuple(x.shape))

    @abstractmethod
    def _correlation(self, gate: int, width: sealed.Width) -> sealed.Correlation: ...

    @abstractmethod
    def bit_product(self, gate: int, count: int) -> sealed.BitProduct: ...

    def next_bit_product(self, count: int) -> sealed.BitProduct:
        return self.bit_product(self._next_gate(), count)


@dataclass(frozen=True, repr=False)
class _ComputedBit(Bit):
    role: _Computing
    compared: sealed.Compared
    shape: tuple[int, ...]

    def positive_part(self) -> Tensor:
        return self.compared.positive_part().reshape(self.shape)

    def share(self) -> Tensor:
        return self.compared.bit_share().reshape(self.shape)

    def times(self, value: Tensor) -> Gate:
        own = self.role.next_bit_product(value.numel())
        return (yield from sealed.times_bit(value, self.compared, own))


class First(_Computing):
    """The party with the weights. `dealt` may come as it is taken; `dealer` is named in errors."""

    is_first = True

    def __init__(
        self,
        terms: StepTerms,
        model: FirstModel,
        dealt: Iterable[Tensor],
        with_dealer: bytes,
        with_other: bytes,
        dealer: str,
    ) -> None:
        super().__init__(terms, with_dealer, with_other)
        self._model, self._dealt, self._dealer = model, iter(dealt), dealer
        self._corrections: dict[int, Tensor] = {}

    def expect_all_used(self) -> None:
        """Nothing that was dealt is left."""
        if next(self._dealt, None) is not None:
            raise MalformedMessageError(f"{self._dealer} dealt more parts than expected.")

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
        part = next(self._dealt, None)
        if part is None:
            raise MalformedMessageError(f"{self._dealer} dealt too little: there is no `{name}`.")
        expect_tensor(self._dealer, name, part, shape, dtype)
        return part

    def constant(self, x: Tensor, value: int) -> Tensor:
        return x + value

    def secret_of_second(self, values: Tensor | None, shape: Sequence[int]) -> Tensor:
        del values
        return torch.zeros(tuple(shape), dtype=torch.int64)

    def kept(self, number: int, shape: Sequence[int], threshold: int) -> Tensor:
        del number, threshold
        return torch.zeros(tuple(shape), dtype=torch.int64)

    def mask(self, purpose: Purpose, number: int, x: Tensor) -> Generator[Any, Any, Masked]:
        del purpose, number
        return Masked(x + (yield Hear("a masked value", tuple(x.shape))))

    def apply(self, layer: int, masked: Masked, shift: int) -> Gate:
        y = self._model.maps[layer](masked.part)
        return (yield from self._truncated_product(2 * layer, y, self._model.layers[layer].bias, shift))

    def apply_transposed(self, layer: int, masked: Masked, shift: int) -> Gate:
        y = self._model.transposed[layer](masked.part)
        return (yield from self._truncated_product(2 * layer + 1, y, y.new_zeros(y.shape[1]), shift))

    def _truncated_product(self, number: int, y: Tensor, bias: Tensor, shift: int) -> Gate:
        dealt = self._take("a share of a product of masks", tuple(y.shape))
        return (yield from self._finish(y, dealt, bias, shift, self._stream("linear", number)))

    def truncate(self, x: Tensor, shift: int) -> Gate:
        flat = x.reshape(-1, 1)
        none = torch.zeros_like(flat)
        share = yield from self._finish(flat, none, none[0], shift, self._stream("gate", self._next_gate()))
        return share.reshape(x.shape)

    def _finish(self, y: Tensor, mask: Tensor, bias: Tensor, shift: int, stream: Stream) -> Gate:
        count = y.numel()
        alpha, product = stream.packed_bits(count), self._take("carries of a truncation", tuple(y.shape), torch.int32)
        epsilon = from_words((yield Hear("bits of a truncation", (num_words(count),))), count)
        share, delta = truncation.finish_first(y, mask, bias, shift, alpha, product, epsilon)
        yield Tell(to_words(delta))
        return share

    def _product_share(self, stream: Stream, shape: tuple[int, ...]) -> Tensor:
        del stream
        return self._take("a share of a product", shape)

    def _pieces(self, order: Order, gate: int) -> Iterator[tuple[Key, Callable[[], Any]]]:
        given = order.given
        match order.gate:
            case "compare":
                width = self._width(_size(given[0].shape), given[1])
                yield ("compare", gate), lambda: sealed.drawn_own(self._stream("gate", gate), width)
            case "times":
                yield ("times", gate), lambda: self._stream("gate", gate).words(_size(given[1].shape))

    def _correlation(self, gate: int, width: sealed.Width) -> sealed.Correlation:
        own = self._made(("compare", gate), lambda: sealed.drawn_own(self._stream("gate", gate), width))
        bits, words = (self._take("tables of a comparison", shape) for shape in width.dealt_shapes)
        return sealed.whole_part(own, (bits, words), width)

    def bit_product(self, gate: int, count: int) -> sealed.BitProduct:
        own = self._made(("times", gate), lambda: self._stream("gate", gate).words(count))
        return sealed.BitProduct(own, self._take("a share of a bit's product", (count,)))

    def blind(self, purpose: Purpose, number: int, masked: Masked, norm: Norm) -> Generator[Any, Any, Blinded]:
        mask = self._stream(purpose, number).words(*masked.part.shape)
        told = masked.part + mask
        yield Tell(told)
        dealt = self._take("a share of a norm's correction", (told.shape[1],))

        def squares() -> Tensor:
            return norms.first_part(told, mask, norm.shift) - (dealt << 1) << norm.shift

        self._norms.append((norm.label, self._remembered(("norm", norm.label), squares)))
        return Blinded(masked, told)

    def gradient(self, layer: int, value: Blinded, delta: Blinded) -> Gate:
        words = self._made(("gradient", layer), lambda: self._gradient_product(layer, value, delta))
        return words - self._corrections.pop(layer)
        yield

    def expect_gradient(self, layer: int, value: Blinded, delta: Blinded) -> Generator[Any, Any, None]:
        shape = self.terms.linear_steps[layer].weight_shape(self.terms.linear_sources[layer])
        self._corrections[layer] = self._take("a share of a gradient's correction", tuple(shape))
        yield from super().expect_gradient(layer, value, delta)

    def _gradient_product(self, layer: int, value: Blinded, delta: Blinded) -> Tensor:
        return weight_gradient(self.terms.linear_steps[layer], delta.masked.part, value.masked.part)

    def _limits(self, labelled: Sequence[tuple[str, Tensor]]) -> Tensor:
        return torch.cat([torch.full_like(part, self._model.limits[label]) for label, part in labelled])


@dataclass(frozen=True, repr=False)
class FirstModel:
    """What the first party has in the clear: layers, ready to be applied both ways, and limits of what is watched, by
    label, in units of the last place: its secret."""

    layers: Sequence[PrivateLayer]
    maps: Sequence[LinearMap]
    transposed: Sequence[LinearMap]
    limits: dict[str, int]

    @classmethod
    def of(cls, terms: StepTerms, layers: Sequence[PrivateLayer], limits: dict[str, int]) -> FirstModel:
        """For any number of steps with these weights."""
        steps = list(zip(terms.linear_steps, layers, terms.linear_sources, strict=True))
        return cls(
            layers,
            [linear_map(step, layer.weight, layer.weight_bits) for step, layer, _ in steps],
            [input_gradient_map(step, layer.weight, source.shape, layer.weight_bits) for step, layer, source in steps],
            limits,
        )


class _Truncation(NamedTuple):
    """What the second party holds of a truncation before it hears of it."""

    y: Tensor
    beta: Tensor
    carries: Tensor
    epsilon: Tensor


class Second(_Computing):
    """The party with the batch. Its part of what is dealt comes from its seed with the dealer."""

    is_first = False

    def __init__(
        self, terms: StepTerms, masked_weights: Sequence[Tensor], with_dealer: bytes, with_other: bytes
    ) -> None:
        super().__init__(terms, with_dealer, with_other)
        self._weights = masked_weights
        self._products: dict[tuple[int, bool], Tensor] = {}
        self._masks: dict[tuple[Purpose, int], Tensor] = {}

    def prepare(self) -> None:
        """All products of masked weights with its masks, which depend on no value: the longest work, done ahead."""
        terms = self.terms
        for layer, (source, needed) in enumerate(zip(terms.source_values, terms.transposes, strict=True)):
            shape = (terms.batch_size, *terms.circuit.values[source].shape)
            self._products[layer, False] = self._product(layer, self._stream("value mask", source).words(*shape))
            if needed:
                delta_shape = (terms.batch_size, *terms.linear_values[layer].shape)
                mask = self._stream("delta mask", layer).words(*delta_shape)
                self._products[layer, True] = self._transposed_product(layer, mask)

    def _pieces(self, order: Order, gate: int) -> Iterator[tuple[Key, Callable[[], Any]]]:
        given, batch_size = order.given, self.terms.batch_size
        match order.gate:
            case "apply":
                layer = given[0]
                source = self.terms.source_values[layer]
                shape = (batch_size, *self.terms.circuit.values[source].shape)
                yield ("apply", layer), lambda: self._started(layer, self._mask("value mask", source, shape))
            case "apply_transposed":
                layer = given[0]
                of_delta = (batch_size, *self.terms.linear_values[layer].shape)
                yield (
                    ("apply_transposed", layer),
                    lambda: self._started_transposed(layer, self._mask("delta mask", layer, of_delta)),
                )
            case "compare":
                width = self._width(_size(given[0].shape), given[1])
                yield ("compare", gate), lambda: sealed.drawn_part(self._stream("gate", gate), width)
            case "times":
                count = _size(given[1].shape)
                yield ("times", gate), lambda: sealed.drawn_bit_product(self._stream("gate", gate), count)

    def _mask(self, purpose: Purpose, number: int, shape: Sequence[int]) -> Tensor:
        """Drawn once, for whoever comes first: the value that it hides, or the product that is made of it ahead."""
        if (purpose, number) not in self._masks:
            self._masks[purpose, number] = self._stream(purpose, number).words(*shape)
        return self._masks[purpose, number]

    def _product(self, layer: int, mask: Tensor) -> Tensor:
        return linear_map(self.terms.linear_steps[layer], self._weights[layer])(mask)

    def _transposed_product(self, layer: int, mask: Tensor) -> Tensor:
        step, source = self.terms.linear_steps[layer], self.terms.linear_sources[layer]
        return input_gradient_map(step, self._weights[layer], source.shape)(mask)

    def constant(self, x: Tensor, value: int) -> Tensor:
        del value
        return x

    def secret_of_second(self, values: Tensor | None, shape: Sequence[int]) -> Tensor:
        assert values is not None and tuple(values.shape) == tuple(shape), "the second party knows it"
        return values

    def kept(self, number: int, shape: Sequence[int], threshold: int) -> Tensor:
        drawn = self._stream("dropout", number).words(*shape) & ((1 << 20) - 1)
        return (drawn >= threshold).long()

    def mask(self, purpose: Purpose, number: int, x: Tensor) -> Generator[Any, Any, Masked]:
        mask = self._mask(purpose, number, tuple(x.shape))
        yield Tell(x - mask)
        return Masked(mask)

    def apply(self, layer: int, masked: Masked, shift: int) -> Gate:
        started = self._made(("apply", layer), lambda: self._started(layer, masked.part))
        return (yield from self._finish(started, shift))

    def apply_transposed(self, layer: int, masked: Masked, shift: int) -> Gate:
        started = self._made(("apply_transposed", layer), lambda: self._started_transposed(layer, masked.part))
        return (yield from self._finish(started, shift))

    def _started(self, layer: int, mask: Tensor) -> _Truncation:
        done = self._products.pop((layer, False), None)
        return self._truncated_product(2 * layer, self._product(layer, mask) if done is None else done)

    def _started_transposed(self, layer: int, mask: Tensor) -> _Truncation:
        done = self._products.pop((layer, True), None)
        return self._truncated_product(2 * layer + 1, self._transposed_product(layer, mask) if done is None else done)

    def _truncated_product(self, number: int, y: Tensor) -> _Truncation:
        stream = self._stream("linear", number)
        return self._start(y, stream.words(*y.shape), stream)

    def truncate(self, x: Tensor, shift: int) -> Gate:
        flat = x.clone().reshape(-1, 1)
        started = self._start(flat, torch.zeros_like(flat), self._stream("gate", self._next_gate()))
        share = yield from self._finish(started, shift)
        return share.reshape(x.shape)

    def _start(self, y: Tensor, drawn: Tensor, stream: Stream) -> _Truncation:
        """`y` is used up."""
        beta, carries = stream.packed_bits(y.numel()), stream.half_words(*y.shape)
        y, epsilon = truncation.start_second(y, drawn, beta)
        return _Truncation(y, beta, carries, epsilon)

    def _finish(self, started: _Truncation, shift: int) -> Gate:
        y, beta, carries, epsilon = started
        count = y.numel()
        yield Tell(to_words(epsilon))
        delta = from_words((yield Hear("bits of a truncation", (num_words(count),))), count)
        return truncation.finish_second(y, shift, beta, carries, delta, epsilon)

    def _product_share(self, stream: Stream, shape: tuple[int, ...]) -> Tensor:
        return stream.words(*shape)

    def _correlation(self, gate: int, width: sealed.Width) -> sealed.Correlation:
        return self._made(("compare", gate), lambda: sealed.drawn_part(self._stream("gate", gate), width))

    def bit_product(self, gate: int, count: int) -> sealed.BitProduct:
        return self._made(("times", gate), lambda: sealed.drawn_bit_product(self._stream("gate", gate), count))

    def blind(self, purpose: Purpose, number: int, masked: Masked, norm: Norm) -> Generator[Any, Any, Blinded]:
        told = yield Hear("a blinded value", tuple(masked.part.shape))

        def squares() -> Tensor:
            drawn = self._stream(purpose, number).words(told.shape[1])
            return norms.second_part(told, masked.part, norm.shift) - (drawn << 1) << norm.shift

        self._norms.append((norm.label, self._remembered(("norm", norm.label), squares)))
        return Blinded(masked, told)

    def gradient(self, layer: int, value: Blinded, delta: Blinded) -> Gate:
        return self._made(("gradient", layer), lambda: self._gradient_product(layer, value, delta))
        yield

    def _gradient_product(self, layer: int, value: Blinded, delta: Blinded) -> Tensor:
        """All of its part."""
        left = torch.cat([delta.told + delta.masked.part, delta.masked.part])
        words = weight_gradient(self.terms.linear_steps[layer], left, torch.cat([value.masked.part, value.told]))
        return words - self._stream("gradient", layer).words(*words.shape)

    def _limits(self, labelled: Sequence[tuple[str, Tensor]]) -> int:
        del labelled
        return 0


class Dealing(Role):
    """The dealer. Without seeds it deals nothing and learns what there is to deal (`dealt_shapes`)."""

    def __init__(self, terms: StepTerms, seeds: tuple[bytes, bytes] | None) -> None:
        super().__init__(terms)
        self._seeds = seeds
        self._keystreams = seeds and tuple(Keystream(seed, terms.batch_size) for seed in seeds)
        self.dealt: list[Tensor] = []
        self.on_dealt: Callable[[], None] = _nobody
        """Called whenever something was added to `dealt`: it may be taken away from there."""
        self.dealt_shapes: list[tuple[tuple[int, ...], torch.dtype]] = []
        self.watched_shapes: list[tuple[str, tuple[int, ...]]] = []
        self.norms_dealt: list[Norm] = []
        self._weights: dict[int, Tensor] = {}

    def _streams(self, purpose: Purpose, number: int) -> tuple[Stream, Stream]:
        """With the first party, and with the second."""
        assert self._keystreams is not None
        first, second = self._keystreams
        return first.stream(purpose, number), second.stream(purpose, number)

    @property
    def is_dry(self) -> bool:
        return self._seeds is None

    def _deal(self, part: Tensor) -> None:
        self.dealt_shapes.append((tuple(part.shape), part.dtype))
        if not self.is_dry:
            self.dealt.append(part)
            self.on_dealt()

    def _weight_mask(self, layer: int) -> Tensor:
        if layer not in self._weights:
            self._weights[layer] = weight_masks(self.terms, self._seeds[0] if self._seeds else b"", layer)
        return self._weights[layer]

    def constant(self, x: Tensor, value: int) -> Tensor:
        del value
        return x

    def secret_of_second(self, values: Tensor | None, shape: Sequence[int]) -> Tensor:
        del values
        return _nothing(shape)

    def kept(self, number: int, shape: Sequence[int], threshold: int) -> Tensor:
        del number, threshold
        return _nothing(shape)

    def mask(self, purpose: Purpose, number: int, x: Tensor) -> Generator[Any, Any, Masked]:
        if self.is_dry:
            return Masked(x)
        return Masked(self._streams(purpose, number)[1].words(*x.shape))
        yield

    def apply(self, layer: int, masked: Masked, shift: int) -> Gate:
        value = self.terms.linear_values[layer]
        if self.is_dry:
            return (yield from self._dry_product((len(masked.part), *value.shape)))
        return self._deal_product(2 * layer, self._product_of_masks(layer, masked.part), shift)

    def _product_of_masks(self, layer: int, mask: Tensor) -> Tensor:
        return linear_map(self.terms.linear_steps[layer], self._weight_mask(layer))(mask)

    def apply_transposed(self, layer: int, masked: Masked, shift: int) -> Gate:
        step, source = self.terms.linear_steps[layer], self.terms.linear_sources[layer]
        if self.is_dry:
            return (yield from self._dry_product((len(masked.part), *source.shape)))
        product = input_gradient_map(step, self._weight_mask(layer), source.shape)(masked.part)
        return self._deal_product(2 * layer + 1, product, shift)

    def _dry_product(self, shape: tuple[int, ...]) -> Gate:
        y = _nothing(shape)
        self._deal(y)
        self._deal(_nothing(shape, torch.int32))
        return y
        yield

    def _deal_product(self, number: int, product: Tensor, shift: int) -> Tensor:
        del shift
        first, second = self._streams("linear", number)
        product -= second.words(*product.shape)
        self._deal(product)
        self._deal_carries(first, second, tuple(product.shape))
        return _nothing(product.shape)

    def _deal_carries(self, first: Stream, second: Stream, shape: tuple[int, ...]) -> None:
        count = _size(shape)
        beta, share = second.packed_bits(count), second.half_words(*shape)
        self._deal(truncation.deal(first.packed_bits(count), beta, share))

    def truncate(self, x: Tensor, shift: int) -> Gate:
        del shift
        gate, shape = self._next_gate(), (x.numel(), 1)
        if self.is_dry:
            self._deal(_nothing(shape, torch.int32))
        else:
            self._deal_carries(*self._streams("gate", gate), shape)
        return _nothing(x.shape)
        yield

    def multiply(self, x: Tensor, y: Tensor) -> Gate:
        del y
        gate, shape = self._next_gate(), tuple(x.shape)
        if self.is_dry:
            self._deal(_nothing(shape))
        else:
            first, second = self._streams("gate", gate)
            a, b = (first.words(*shape) + second.words(*shape) for _ in range(2))
            self._deal(a * b - second.words(*shape))
        return _nothing(shape)
        yield

    def compare(self, x: Tensor, bits: int) -> Generator[Any, Any, Bit]:
        width, gate = self._width(x.numel(), bits), self._next_gate()
        if self.is_dry:
            for shape in width.dealt_shapes:
                self._deal(_nothing(shape))
            return _DealtBit(self, tuple(x.shape), None)
        tables, words, betas = sealed.deal_and_keep(*self._streams("gate", gate)[::-1], width)
        self._deal(tables)
        self._deal(words)
        return _DealtBit(self, tuple(x.shape), betas)
        yield

    def deal_bit_product(self, count: int, betas: Tensor | None) -> None:
        gate = self._next_gate()
        if betas is None:
            self._deal(_nothing((count,)))
        else:
            self._deal(sealed.deal_bit_product(*self._streams("gate", gate)[::-1], planes.spread(betas, count)))

    def blind(self, purpose: Purpose, number: int, masked: Masked, norm: Norm) -> Generator[Any, Any, Blinded]:
        shape = tuple(masked.part.shape)
        self.norms_dealt.append(norm)
        nothing = _nothing(shape[1:2])
        self._norms.append((norm.label, lambda: nothing))
        if self.is_dry:
            self._deal(_nothing(shape[1:2]))
            return Blinded(masked, masked.part)
        first, second = self._streams(purpose, number)
        mask = first.words(*shape)
        cross = norms.dealt_part(mask, masked.part, norm.shift)
        self._deal(cross - second.words(len(cross)))
        return Blinded(masked, mask)
        yield

    def expect_gradient(self, layer: int, value: Blinded, delta: Blinded) -> Generator[Any, Any, None]:
        step = self.terms.linear_steps[layer]
        if self.is_dry:
            self._deal(_nothing(step.weight_shape(self.terms.linear_sources[layer])))
        else:
            left = torch.cat([delta.told, delta.masked.part])
            words = weight_gradient(step, left, torch.cat([value.masked.part, value.told]))
            self._deal(words - self._streams("gradient", layer)[1].words(*words.shape))
        return
        yield

    def gradient(self, layer: int, value: Blinded, delta: Blinded) -> Gate:
        del value, delta
        return _nothing(self.terms.linear_steps[layer].weight_shape(self.terms.linear_sources[layer]))
        yield

    def watch(self, label: str, x: Tensor) -> None:
        self.watched_shapes.append((label, tuple(x.shape[1:])))
        super().watch(label, x)

    def _sums(self, x: Tensor, number: int) -> Tensor:
        del number
        return _nothing((groups_of(x).count, NUM_SUMS))

    def _limits(self, labelled: Sequence[tuple[str, Tensor]]) -> int:
        del labelled
        return 0

    def open_count(self, share: Tensor) -> Generator[Any, Any, int]:
        del share
        return 0
        yield


@dataclass(frozen=True, repr=False)
class _DealtBit(Bit):
    role: Dealing
    shape: tuple[int, ...]
    betas: Tensor | None

    def positive_part(self) -> Tensor:
        return _nothing(self.shape)

    def share(self) -> Tensor:
        return _nothing(self.shape)

    def times(self, value: Tensor) -> Gate:
        self.role.deal_bit_product(value.numel(), self.betas)
        return value
        yield


def weight_masks(terms: StepTerms, seed: bytes, layer: int) -> Tensor:
    """A of one layer: known to the first party and the dealer."""
    shape = terms.linear_steps[layer].weight_shape(terms.linear_sources[layer])
    return Stream.of(seed, "weights", layer, terms.batch_size).words(*shape)


def _nobody() -> None:
    """Nobody waits for what is dealt."""


def _nothing(shape: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
    """A shape without numbers: what the dealer has of a value."""
    return torch.empty(tuple(shape), dtype=dtype, device=_DEALER_PIECE)


def _size(shape: Sequence[int]) -> int:
    return math.prod(shape)
