"""Fixed point against Fractions: exact to half a unit a client, never wraps, refuses what is beyond."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.errors import NumericalRangeError, ProtocolError
from bilateral.protocols.mask.fixed_point import (
    MAX_BOUND_BITS,
    MAX_WEIGHT,
    MIN_BOUND_BITS,
    FixedPointFormat,
    RowsOutOfRange,
    decode_sum,
    encode_upload,
    granted_bits,
    next_bound_bits,
)
from bilateral.protocols.messages import Aggregate, Upload

torch.set_num_threads(1)


def one_term(values, statistics=(0.0,), weight=1, dtype=torch.float64):
    return Upload(0, weight, torch.tensor([values], dtype=dtype), torch.tensor(statistics, dtype=dtype))


@st.composite
def cases(draw):
    num_clients = draw(st.integers(1, 9))
    bound_bits = draw(st.tuples(st.integers(-30, 40), st.integers(-30, 40)))
    uploads = []
    for _ in range(num_clients):
        weight = draw(st.integers(1, 2**20))
        rows = []
        for bits in bound_bits:
            largest = 2.0**bits / weight
            unit = st.floats(-1, 1, width=32) if draw(st.booleans()) else st.sampled_from([-1.0, 1.0])
            rows.append([value * largest for value in draw(st.lists(unit, min_size=3, max_size=3))])
        uploads.append(one_term(rows[0], rows[1], weight))
    return FixedPointFormat.for_bound_bits(bound_bits, num_clients), uploads


@given(cases())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_sum_is_exact_to_half_a_unit_a_client_and_never_wraps(case):
    form, uploads = case
    encoded = [encode_upload(upload, form, "anna") for upload in uploads]
    integers = [sum(column) for column in zip(*(e.tolist() for e in encoded), strict=True)]
    assert max(map(abs, integers)) <= 2**62
    total = torch.stack(encoded).sum(0)
    assert total.tolist() == integers  # torch's sum is modulo 2^64: equal to Python's means that it did not wrap
    got = decode_sum(total, form, 0, (1, 3), 3)
    assert got.total_weight == sum(upload.weight for upload in uploads)
    for number, bits in enumerate(form.fraction_bits):
        for place in range(3):
            exact = sum(
                Fraction(upload.weight * [*upload.terms, upload.statistics][number][place].item()) for upload in uploads
            )
            decoded = Fraction([*got.terms, got.statistics][number][place].item())
            unit = Fraction(2) ** -bits
            rounding_of_decode = abs(exact) * Fraction(2) ** -52
            assert abs(decoded - exact) <= len(uploads) * unit / 2 + rounding_of_decode
            assert abs(integers[3 * number + place] * unit - exact) <= len(uploads) * unit / 2


@given(st.integers(1, 1000), st.integers(-40, 40), st.integers(1, 2**30), st.booleans())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_bound_is_accepted_and_the_next_number_is_refused(num_clients, bits, weight, negative):
    form = FixedPointFormat.for_bound_bits((bits, bits), num_clients)
    sign = -1.0 if negative else 1.0
    power = 1 << (weight.bit_length() - 1)  # a weight whose product is exact
    at_bound = sign * math.ldexp(1.0, bits) / power
    assert isinstance(encode_upload(one_term([at_bound], weight=power), form, "anna"), torch.Tensor)
    beyond = math.nextafter(at_bound, sign * math.inf)
    assert encode_upload(one_term([beyond], weight=power), form, "anna") == RowsOutOfRange((0,), (bits + 1,))


@pytest.mark.parametrize("length", [(1 << 14) - 1, 1 << 14, (1 << 15) + 3])
def test_long_rows_are_encoded_as_if_in_one_piece(length):
    values = torch.randn(2, length, generator=torch.Generator().manual_seed(0))
    form = FixedPointFormat.for_bound_bits((10, 12, 20), 5)
    got = encode_upload(Upload(0, 3, values, torch.zeros(2)), form, "anna")
    for number in range(2):
        expected = (values[number].double() * 3 * 2.0 ** form.fraction_bits[number]).round().long()
        assert torch.equal(got[number * length : (number + 1) * length], expected)
    values[1, -1] = 2000.0
    assert encode_upload(Upload(0, 3, values, torch.zeros(2)), form, "anna") == RowsOutOfRange((1,), (13,))


def test_a_refusal_names_all_rows_and_the_smallest_bounds_that_hold_them():
    upload = Upload(0, 3, torch.tensor([[1.0, -5.0], [0.1, 0.2], [40.0, 0.0]]), torch.tensor([100.0]))
    refused = encode_upload(upload, FixedPointFormat.for_bound_bits((2, 2, 2, 2), 5), "anna")
    assert refused == RowsOutOfRange((0, 2, 3), (4, 7, 9))
    bounds = (4, 2, 7, 9)
    assert isinstance(encode_upload(upload, FixedPointFormat.for_bound_bits(bounds, 5), "anna"), torch.Tensor)
    for row in refused.rows:
        tighter = tuple(bits - (number == row) for number, bits in enumerate(bounds))
        assert isinstance(encode_upload(upload, FixedPointFormat.for_bound_bits(tighter, 5), "anna"), RowsOutOfRange)


@pytest.mark.parametrize("weight", [0, -3, MAX_WEIGHT + 1])
def test_weights_out_of_range_are_refused_by_name(weight):
    with pytest.raises(ProtocolError, match="from anna: expected a weight between 1 and 2"):
        encode_upload(one_term([1.0], weight=weight), FixedPointFormat.for_bound_bits((20, 20), 2), "anna")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_by_name(value):
    form = FixedPointFormat.for_bound_bits((20, 20), 2)
    for upload in (one_term([1.0, value]), one_term([1.0], [value])):
        with pytest.raises(NumericalRangeError, match="anna"):
            encode_upload(upload, form, "anna")


def test_values_beyond_every_bound_are_refused_by_name():
    form = FixedPointFormat.for_bound_bits((20, 20), 2)
    for value in (1e19, 1e300):
        with pytest.raises(NumericalRangeError, match=r"from anna: row 0 times its weight is beyond 2\^60"):
            encode_upload(one_term([value], weight=2**30), form, "anna")


def test_the_weight_is_exact_up_to_the_largest():
    form = FixedPointFormat.for_bound_bits((60, 60), 1 << 20)
    encoded = encode_upload(one_term([1.0], weight=MAX_WEIGHT), form, "anna")
    assert int(encoded[-1]) == MAX_WEIGHT
    assert MAX_WEIGHT * (1 << 20) < 2**62


@pytest.mark.parametrize("shape", [(2, 3), (3,)])
def test_an_upload_of_another_shape_is_refused_by_name(shape):
    form = FixedPointFormat.for_bound_bits((20, 20), 2)
    with pytest.raises(ProtocolError, match="from anna: expected 1 terms"):
        encode_upload(Upload(0, 1, torch.zeros(shape), torch.zeros(1)), form, "anna")


def test_formats_outside_the_limits_are_refused():
    for bits, clients in (((), 2), ((61,), 2), ((-65,), 2), ((20,), 0), ((20,), (1 << 20) + 1)):
        with pytest.raises(ProtocolError):
            FixedPointFormat.for_bound_bits(bits, clients)
    for bound in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ProtocolError, match="row 1"):
            FixedPointFormat.for_bounds([1.0, bound], 2)


def test_fixed_bounds_give_the_finest_format_that_holds_them():
    assert FixedPointFormat.for_bounds([1.0, 1.5, 0.25, 2.0], 5).bound_bits == (0, 1, -2, 1)


@given(st.floats(1e-30, 1e30))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_next_bound_is_the_smallest_power_above_256_times_the_largest_sum(largest):
    total = Aggregate(0, 1, torch.tensor([[0.0, -largest]]).double(), torch.zeros(2).double())
    bits, zeros = next_bound_bits(total, (20, 7))
    wanted = 256 * Fraction(float(total.terms[0, 1].abs()))
    slow = next((b for b in range(MIN_BOUND_BITS, MAX_BOUND_BITS + 1) if Fraction(2) ** b >= wanted), MAX_BOUND_BITS)
    assert bits == slow
    assert zeros == 7  # a row of zeros keeps its bound


@given(st.lists(st.integers(-64, 60), min_size=1, max_size=6), st.integers(-64, 60), st.integers(-64, 60))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_one_refusal_alone_widens_a_bound_by_24_bits_at_most_and_two_as_far_as_both_ask(demanded, first, initial):
    granted = granted_bits(demanded, first, initial)
    asking = {bits: sum(demand >= bits for demand in demanded) for bits in range(-64, 61)}
    allowed = [
        bits for bits, count in asking.items() if count >= 2 or (count == 1 and bits <= max(first, initial) + 24)
    ]
    alone_beyond = max(first, initial) + 24 if max(demanded) > max(first, initial) + 24 else None
    assert granted == max([*allowed, *([alone_beyond] if alone_beyond is not None else [])])


def test_rows_without_elements_keep_their_bounds():
    total = Aggregate(0, 1, torch.zeros(1, 2).double(), torch.zeros(0).double())
    assert next_bound_bits(total, (3, 9)) == (3, 9)
    form = FixedPointFormat.for_bound_bits((3, 9), 2)
    assert encode_upload(one_term([1.0], []), form, "anna").shape == (2,)


def test_decoding_another_number_of_values_is_refused():
    form = FixedPointFormat.for_bound_bits((3, 9), 2)
    with pytest.raises(ProtocolError, match="Expected 1 terms, 6 values"):
        decode_sum(torch.zeros(7, dtype=torch.int64), form, 0, (1, 3), 2)
