"""Weighted uploads as integers modulo a power of two, with sums that never wrap.

The rows of a vector are the terms of an `Upload`, and one last row for its batch statistics; behind them stands the
weight itself. Row k holds `round(weight * value * 2^fraction_bits[k])`, where `last_bits` has drawn the last bits of
the value anew (None leaves them: only for values that all carry noise, with weights that are public). The bound of a
row is a power of two, `|weight * value| <= 2^bound_bits`, and in a ring of `width` bits (`widths`)

    fraction_bits = width - 2 - ceil(log2(num_clients)) - bound_bits

Guarantee: the sum over `num_clients` uploads stays within 2^(width-2) (1 + 2^-9) and half a unit a client, far below
2^(width-1), so it is the sum of the integers and not a remainder. It differs from the sum of the products
`weight * value` by at most half a unit (`2^-fraction_bits`) a client, and by two of the steps of each float that is
summed if last bits are drawn. A value beyond its bound is reported, never wrapped or clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import NumericalRangeError, ProtocolError
from bilateral.protocols.mask.last_bits import LastBits
from bilateral.protocols.mask.widths import WIDEST, WIDTHS, Width
from bilateral.protocols.messages import Aggregate, Upload

MIN_BOUND_BITS, MAX_BOUND_BITS = -64, 60
MAX_WEIGHT = 1 << 40
MAX_CLIENTS = 1 << 20
_CHUNK_VALUES = 1 << 14
WIDENING_BITS = 24
HEADROOM_BITS = 8
"""The next round's values may be 2^8 times the largest sum of this round."""
NARROW_HEADROOM_BITS = 4
"""The same where fewer than 64 bits are to do: every bit of room is one of resolution less."""


@dataclass(frozen=True)
class FixedPointFormat:
    """Public: fraction bits of every row, and how many uploads can be added."""

    fraction_bits: tuple[int, ...]
    num_clients: int
    width: Width = WIDEST
    """Bits of a value in the ring."""

    def __post_init__(self) -> None:
        if self.width not in WIDTHS:
            raise ProtocolError(
                f"Expected a ring of {', '.join(map(str, WIDTHS))} bits in a fixed-point format, got {self.width}."
            )
        if not 1 <= self.num_clients <= MAX_CLIENTS:
            raise ProtocolError(f"Expected 1 to {MAX_CLIENTS} clients in a fixed-point format, got {self.num_clients}.")
        if not self.fraction_bits:
            raise ProtocolError("A fixed-point format needs a row of statistics at least, got none.")
        if not all(MIN_BOUND_BITS <= bits <= MAX_BOUND_BITS for bits in self.bound_bits):
            raise ProtocolError(
                f"Expected bounds between 2^{MIN_BOUND_BITS} and 2^{MAX_BOUND_BITS} in every row of the fixed-point "
                f"format, got 2^{min(self.bound_bits)} to 2^{max(self.bound_bits)}."
            )

    @classmethod
    def for_bound_bits(cls, bound_bits: Sequence[int], num_clients: int, width: Width = WIDEST) -> FixedPointFormat:
        bits = _value_bits(width, num_clients)
        return cls(tuple(bits - bound for bound in bound_bits), num_clients, width)

    @classmethod
    def for_bounds(cls, bounds: Sequence[float], num_clients: int, width: Width = WIDEST) -> FixedPointFormat:
        """The finest format in which `|weight * value| <= bounds[k]` is accepted in row k."""
        return cls.for_bound_bits(bits_of_bounds(bounds), num_clients, width)

    @property
    def bound_bits(self) -> tuple[int, ...]:
        bits = _value_bits(self.width, self.num_clients)
        return tuple(bits - fraction for fraction in self.fraction_bits)

    @property
    def num_terms(self) -> int:
        return len(self.fraction_bits) - 1


@dataclass(frozen=True)
class RowsOutOfRange:
    """Rows with a value beyond their bound, and the bounds that would hold them."""

    rows: tuple[int, ...]
    bound_bits: tuple[int, ...]


def encode_upload(
    upload: Upload, form: FixedPointFormat, sender: str, last_bits: LastBits | None = None
) -> Tensor | RowsOutOfRange:
    """All rows of `upload`, then its weight, as one int64 vector; or which rows are out of range."""
    _check(upload, form, sender)
    limit = 2.0 ** _value_bits(form.width, form.num_clients)
    rows = [*upload.terms, upload.statistics]
    encoded = torch.empty(sum(row.numel() for row in rows) + 1, dtype=torch.int64)
    beyond: dict[int, int] = {}
    start = 0
    for number, (row, fraction_bits) in enumerate(zip(rows, form.fraction_bits, strict=True)):
        scale, target = math.ldexp(upload.weight, fraction_bits), encoded[start : start + row.numel()]
        largest = _encode_row(row, scale, target, last_bits)
        if largest > limit:
            beyond[number] = _bits_needed(largest, fraction_bits, sender, number)
        start += row.numel()
    if beyond:
        return RowsOutOfRange(tuple(beyond), tuple(beyond.values()))
    encoded[-1] = upload.weight
    return encoded


def decode_sum(
    total: Tensor, form: FixedPointFormat, round_index: int, terms_shape: tuple[int, int], num_statistics: int
) -> Aggregate:
    """The weighted sums in float64, and the total weight."""
    num_terms, num_parameters = terms_shape
    expected = num_terms * num_parameters + num_statistics + 1
    if num_terms != form.num_terms or total.shape != (expected,):
        raise ProtocolError(
            f"Expected {form.num_terms} terms, {expected} values in all, got {num_terms} terms and {total.numel()}.",
            remedy="Both sides must run the same plan.",
        )
    scales = torch.tensor([math.ldexp(1.0, -bits) for bits in form.fraction_bits], dtype=torch.float64)
    split = num_terms * num_parameters
    terms = total[:split].reshape(terms_shape).to(torch.float64).mul_(scales[:-1, None])
    statistics = total[split:-1].to(torch.float64).mul_(scales[-1])
    return Aggregate(round_index, int(total[-1]), terms, statistics)


def next_bound_bits(
    total: Aggregate, first_bound_bits: Sequence[int], headroom_bits: int = HEADROOM_BITS
) -> tuple[int, ...]:
    """Bounds of the next round: the smallest power of two above 2^headroom_bits times the largest sum of each row.

    A row of zeros says nothing about the next round and gets the bound with which this round was first opened: zeros
    may come of a bound that a refusal made too wide.
    """
    found = []
    for row, previous in zip([*total.terms, total.statistics], first_bound_bits, strict=True):
        largest = _largest(row)
        bits = _ceil_log2(largest) + headroom_bits if largest > 0 else previous
        found.append(min(max(bits, MIN_BOUND_BITS), MAX_BOUND_BITS))
    return tuple(found)


def granted_bits(demanded: Sequence[int], first_bits: int, initial_bits: int) -> int:
    """The bound of a row for which clients demanded these bounds, in a round first opened with `first_bits`.

    One client alone may widen it by 2^24 over that (or over a run's first bound, if that is larger); more is granted
    only if a second client demands it too. Otherwise one false refusal would round the sums of all others to zero.
    """
    largest, *others = sorted(demanded, reverse=True)
    alone = max(first_bits, initial_bits) + WIDENING_BITS
    return min(largest, max(alone, *others) if others else alone)


def bits_of_bounds(bounds: Sequence[float]) -> tuple[int, ...]:
    """The smallest power of two at or above each bound."""
    for number, bound in enumerate(bounds):
        if not 0 < bound <= 2.0**MAX_BOUND_BITS:
            raise ProtocolError(
                f"Expected the bound of row {number} above 0 and up to 2^{MAX_BOUND_BITS}, got {bound}."
            )
    return tuple(max(_ceil_log2(bound), MIN_BOUND_BITS) for bound in bounds)


def _encode_row(row: Tensor, scale: float, target: Tensor, last_bits: LastBits | None) -> float:
    """Write round(row * scale) to `target`; returns the largest absolute value, which says whether that is of use.

    Whether it fits is asked of the value as it is: that must not depend on what is drawn.

    One product: scaling by a power of two is exact, so it rounds as weight * value does. Chunks keep the scratch small.
    """
    largest = 0.0
    scratch = torch.empty(min(len(row), _CHUNK_VALUES), dtype=torch.float64)
    for start in range(0, len(row), _CHUNK_VALUES):
        values = row[start : start + _CHUNK_VALUES]
        wide = scratch[: len(values)].copy_(values)
        largest = max(largest, _largest(wide) * scale)
        if last_bits is None:
            target[start : start + len(values)] = wide.mul_(scale).round_()
        else:
            target[start : start + len(values)] = torch.from_numpy(last_bits.integers(wide.numpy(), scale, row.dtype))
    return largest


def _check(upload: Upload, form: FixedPointFormat, sender: str) -> None:
    if not 1 <= upload.weight <= MAX_WEIGHT:
        raise ProtocolError(
            f"Upload from {sender}: expected a weight between 1 and 2^40, got {upload.weight}.",
            remedy="Leave out clients without data.",
        )
    if upload.terms.dim() != 2 or len(upload.terms) != form.num_terms or upload.statistics.dim() != 1:
        raise ProtocolError(
            f"Upload from {sender}: expected {form.num_terms} terms and a vector of statistics, "
            f"got shapes {tuple(upload.terms.shape)} and {tuple(upload.statistics.shape)}.",
            remedy="Both sides must run the same plan.",
        )
    for name, values in upload.tensors():
        if not values.is_floating_point():
            raise ProtocolError(
                f"Upload from {sender}: expected real numbers in `{name}`, got {values.dtype}.",
                remedy="Upload float32 or float64.",
            )
    upload.check_finite(sender)


def _bits_needed(largest_scaled: float, fraction_bits: int, sender: str, row: int) -> int:
    bits = _ceil_log2(largest_scaled) - fraction_bits if math.isfinite(largest_scaled) else MAX_BOUND_BITS + 1
    if bits > MAX_BOUND_BITS:
        raise NumericalRangeError(
            f"Upload from {sender}: row {row} times its weight is beyond 2^{MAX_BOUND_BITS}, the largest bound.",
            remedy="Check that client's data and the learning rate.",
        )
    return bits


def _largest(row: Tensor) -> float:
    """Largest absolute value, in one pass without a copy."""
    if not row.numel():
        return 0.0
    low, high = torch.aminmax(row)
    return max(-float(low), float(high))


def _ceil_log2(value: float) -> int:
    """The smallest integer k with value <= 2^k."""
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 else exponent


def _value_bits(width: int, num_clients: int) -> int:
    """Of one client's value, without its sign: the sum of all of them must fit, and has a bit to spare."""
    return width - 2 - (num_clients - 1).bit_length()
