"""Rings of 32, 40, 43 and 48 bits: packed values, masks and whole rounds against Python integers."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.protocols.mask import last_bits_oracle
from tests.protocols.mask.harness import (
    BEFORE_REVEAL,
    BEFORE_SHARES,
    BEFORE_SIGNATURE,
    BEFORE_UPLOAD,
    MODEL,
    NAMES,
    Group,
    sent,
    upload_of,
)

from bilateral.errors import CheckpointError, NumericalRangeError, PlanError, ProtocolError
from bilateral.protocols.mask import prg, widths
from bilateral.protocols.mask.fixed_point import (
    NARROW_HEADROOM_BITS,
    FixedPointFormat,
    RowsOutOfRange,
    encode_upload,
)
from bilateral.protocols.mask.injective import injective
from bilateral.protocols.mask.last_bits import STEPS, LastBits
from bilateral.protocols.mask.messages import MaskOpening, RangeRefusal
from bilateral.protocols.mask.sealing import Occasion
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.widths import WIDTHS
from bilateral.protocols.messages import Upload

torch.set_num_threads(1)
NARROW = (32, 40, 43, 48)
FOUR = NAMES[:4]


def signed(number, width):
    """The one integer of `width` bits, with a sign, that a number is modulo 2^width."""
    number %= 1 << width
    return number - (1 << width) if number >> (width - 1) else number


def lain_out(values, width):
    """Slow oracle of a packed vector: its bytes, from Python integers one at a time."""
    *numbers, weight = values
    if width == 64:
        return b"".join((number % 2**64).to_bytes(8, "little") for number in values)
    lower = b"".join((number % 2**32).to_bytes(4, "little") for number in numbers)
    if width == 43:
        bytes_above = bytes(number >> 32 & 255 for number in numbers)
        groups = [numbers[start : start + 8] for start in range(0, len(numbers), 8)]
        tops = [sum((number >> 40 & 7) << 3 * place for place, number in enumerate(group)) for group in groups]
        upper = bytes_above + b"".join(top.to_bytes(3, "little") for top in tops)
        return lower + upper + bytes(-len(upper) % 4) + (weight % 2**64).to_bytes(8, "little")
    upper = b"".join(((number % 2**width) >> 32).to_bytes((width - 32) // 8, "little") for number in numbers)
    return lower + upper + bytes(-len(upper) % 4) + (weight % 2**64).to_bytes(8, "little")


values_of_any_size = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50)


@given(values_of_any_size, st.sampled_from(WIDTHS), st.sampled_from([4, 16, widths.CHUNK_VALUES]))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_packed_values_lie_as_they_are_said_to_and_come_back(values, width, chunk):
    original, widths.CHUNK_VALUES = widths.CHUNK_VALUES, chunk
    try:
        message = widths.packed(np.array(values, dtype=np.int64), width)
        total = np.arange(len(values), dtype=np.int64)
        widths.add_packed(total, message, width)
    finally:
        widths.CHUNK_VALUES = original
    assert message.numpy().tobytes() == lain_out(values, width)
    assert (message.dtype, len(message)) == (widths.dtype_of(width), widths.packed_length(len(values), width))
    expected = [signed(value, width) for value in values[:-1]] + values[-1:]
    assert widths.unpacked(message, width).tolist() == expected
    places = [signed(place + value, width) for place, value in enumerate(values[:-1])]
    assert widths.reduced(total, width).tolist() == [*places, signed(len(values) - 1 + values[-1], 64)]


def whole_stream(seed, label, count, size):
    """Slow oracle: HKDF-Expand by hand (RFC 5869, one block), AES-CTR in one piece, Python integers."""
    mac = hmac.HMAC(seed, hashes.SHA256())
    mac.update(label + b"\x01")
    stream = Cipher(algorithms.AES(mac.finalize()), modes.CTR(bytes(16))).encryptor().update(bytes(size * count))
    return [int.from_bytes(stream[size * i : size * i + size], "little") for i in range(count)]


def masks_of(seed, lengths, width):
    *rows, last = lengths
    found = []
    for row, length in enumerate([*rows, last - 1]):
        lower = whole_stream(seed, injective("bilateral mask plane v1", row, width, "lower"), length, 4)
        size = -(-(width - 32) // 8)
        upper = whole_stream(seed, injective("bilateral mask plane v1", row, width, "upper"), length, size)
        found += [low + (high << 32) for low, high in zip(lower, upper, strict=True)]
    return found + whole_stream(seed, injective("bilateral mask row v1", len(lengths)), 1, 8)


@given(
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(1, 20),
    st.lists(st.tuples(st.binary(min_size=32, max_size=32), st.sampled_from([1, -1])), max_size=4),
    st.sampled_from(NARROW),
    st.sampled_from([4, 16, prg.CHUNK_VALUES]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_narrow_masks_equal_whole_streams_added_modulo_the_ring(rows, last, seeds, width, chunk):
    lengths = [*rows, last]
    start = np.arange(sum(lengths), dtype=np.int64) - 5
    got = start.copy()
    original, prg.CHUNK_VALUES = prg.CHUNK_VALUES, chunk
    try:
        prg.add_masks(got, seeds, lengths, width)
    finally:
        prg.CHUNK_VALUES = original
    expected = start.tolist()
    for seed, sign in seeds:
        expected = [v + sign * mask for v, mask in zip(expected, masks_of(seed, lengths, width), strict=True)]
    assert widths.reduced(got, width).tolist() == [
        *(signed(value, width) for value in expected[:-1]),
        signed(expected[-1], 64),
    ]


@pytest.mark.parametrize("width", NARROW)
def test_a_narrow_vector_longer_than_a_chunk_equals_the_whole_stream(width):
    lengths = [prg.CHUNK_VALUES + 3, 6]
    got = np.zeros(sum(lengths), dtype=np.int64)
    prg.add_masks(got, [(bytes(32), 1)], lengths, width)
    expected = masks_of(bytes(32), lengths, width)
    assert [value % 2**width for value in got.tolist()[:-1]] == [value % 2**width for value in expected[:-1]]
    assert int(got[-1]) % 2**64 == expected[-1]


@pytest.mark.parametrize("width", NARROW)
def test_a_masked_value_is_uniform_in_its_ring_whatever_was_masked(width):
    """Every byte of values that are all alike; and streams of other seeds share no value."""
    values = np.full(40_001, 12_345, dtype=np.int64)
    prg.add_masks(values, [(bytes(32), 1)], [40_000, 1], width)
    message = widths.packed(values, width)
    for place in range(width // 8):
        counts = np.bincount((widths.unpacked(message, width)[:-1].numpy() >> (8 * place)) & 0xFF, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    others = np.zeros(40_001, dtype=np.int64)
    prg.add_masks(others, [(b"x" * 32, 1)], [40_000, 1], width)
    agreeing = np.sum((values - others)[:-1] % 2**width == 0)
    assert agreeing < 5


@st.composite
def cases(draw):
    num_clients, width = draw(st.integers(1, 9)), draw(st.sampled_from(WIDTHS))
    bits = draw(st.integers(-30, 40))
    weights = draw(st.lists(st.integers(1, 2**20), min_size=num_clients, max_size=num_clients))
    unit = st.one_of(st.sampled_from([-1.0, 1.0]), st.floats(-1, 1, width=32))
    rows = [[value * 2.0**bits / w for value in draw(st.lists(unit, min_size=3, max_size=3))] for w in weights]
    return FixedPointFormat.for_bound_bits((bits, bits), num_clients, width), weights, rows


@given(cases())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_sums_in_a_narrow_ring_are_exact_to_half_a_unit_a_client_and_never_wrap(case):
    form, weights, rows = case
    assert form.fraction_bits[0] == form.width - 2 - math.ceil(math.log2(form.num_clients)) - form.bound_bits[0]
    total, integers, exact = np.zeros(5, dtype=np.int64), [0] * 5, [Fraction(0)] * 3
    for weight, row in zip(weights, rows, strict=True):
        upload = Upload(0, weight, torch.tensor([row], dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
        encoded = encode_upload(upload, form, "anna")
        assert isinstance(encoded, torch.Tensor)
        integers = [one + other for one, other in zip(integers, encoded.tolist(), strict=True)]
        exact = [one + weight * Fraction(value) for one, value in zip(exact, row, strict=True)]
        widths.add_packed(total, widths.packed(encoded.numpy(), form.width), form.width)
    assert max(map(abs, integers[:-1])) < 2 ** (form.width - 1)
    assert widths.reduced(total, form.width).tolist() == integers
    unit = Fraction(2) ** -form.fraction_bits[0]
    for got, expected in zip(integers[:3], exact, strict=True):
        assert abs(got * unit - expected) <= len(weights) * (unit / 2 + Fraction(2) ** (form.bound_bits[0] - 53))


@pytest.mark.parametrize("width", NARROW)
@pytest.mark.parametrize("num_clients", [1, 2, 3, 64, 1000, 1 << 20])
def test_the_largest_sum_fits_whatever_is_drawn_and_the_next_larger_value_is_refused(width, num_clients):
    form = FixedPointFormat.for_bound_bits((0, 0), num_clients, width)
    largest = 2 ** (width - 2 - (num_clients - 1).bit_length())
    moved = largest * (1 + Fraction(STEPS, 2) * Fraction(torch.finfo(torch.float16).eps)) + 1  # the coarsest floats
    assert num_clients * moved < 2 ** (width - 1)
    at_bound = Upload(0, 1, torch.tensor([[-1.0]]), torch.zeros(1))
    assert encode_upload(at_bound, form, "anna").tolist() == [-largest, 0, 1]
    beyond = replace(at_bound, terms=torch.tensor([[-1.0000001]]))
    assert encode_upload(beyond, form, "anna") == RowsOutOfRange((0,), (1,))


@given(st.sampled_from([1e-3, 1e-5, 1e-7, 1e-9]), st.integers(2, 5000), st.integers(1, 12))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_width_that_a_resolution_needs_is_enough_and_no_narrower_one_is(resolution, count, room):
    """With the largest sum 1 and bounds of 2^room: half a unit a client is within the resolution."""
    width = widths.width_for(resolution, count, room)
    for other in WIDTHS:
        unit = Fraction(2) ** -FixedPointFormat.for_bound_bits((room,), count, other).fraction_bits[0]
        off = count * unit / 2 / Fraction(resolution)
        assert other != width or width == 64 or off <= 1 + Fraction(1, 10**9)
        assert other >= width or off > 1 - Fraction(1, 10**9)


def narrow_group(names=FOUR, *, width="auto", resolution=1e-7, seed=0, **settings_of):
    return Group(names, MaskSettings(width=width, resolution=resolution, **settings_of), seed=seed)


def uploads_for(names, round_index, **keys):
    return {name: upload_of(round_index, 10 * round_index + number, **keys) for number, name in enumerate(names)}


def oracle_sum(uploads, survivors, opening, seed=0):
    """Whole numbers of units, drawn and added one at a time."""
    rows = None
    for name in survivors:
        key = last_bits_oracle.key_of(name, uploads[name], seed)
        own = last_bits_oracle.integers(uploads[name], opening.fraction_bits, key)
        rows = (
            own
            if rows is None
            else [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(rows, own, strict=True)]
        )
    return [[n * Fraction(2) ** -bits for n in row] for row, bits in zip(rows, opening.fraction_bits, strict=True)]


@pytest.mark.parametrize("stage", [None, BEFORE_SHARES, BEFORE_UPLOAD, BEFORE_SIGNATURE, BEFORE_REVEAL])
@pytest.mark.parametrize(("width", "graph"), [(32, "auto"), (40, "auto"), (48, "n-out"), ("auto", "auto")])
def test_rounds_in_a_narrow_ring_give_the_sum_of_python_integers_whoever_dies(width, graph, stage):
    group = narrow_group(NAMES, width=width, graph=graph, **({"num_neighbours": 7} if graph == "n-out" else {}))
    _, first = group.run(0, uploads_for(NAMES, 0, size=0.1))
    assert first.width == 64
    uploads = uploads_for(NAMES, 1, size=0.1)
    drops = {} if stage is None else {"bela": stage, "jana": stage}
    total, opening = group.run(1, uploads, (drops,))
    assert opening.width == (40 if width == "auto" else width)
    lost = stage in (BEFORE_SHARES, BEFORE_UPLOAD)
    survivors = [name for name in NAMES if not (lost and name in drops)]
    assert list(total.contributors) == survivors
    expected = oracle_sum(uploads, survivors, opening)
    got = [[Fraction(value) for value in row.tolist()] for row in (*total.terms, total.statistics)]
    assert got == expected
    assert total.total_weight == sum(uploads[name].weight for name in survivors)


@pytest.mark.parametrize("resolution", [1e-4, 1e-7])
def test_sums_are_off_by_at_most_the_resolution_of_the_largest_sum_before(resolution):
    """In float64, whose own steps are no part of it; the same uploads again, so that the largest sum is the same."""
    group = narrow_group(NAMES[:5], resolution=resolution)
    names = group.names
    for number in range(3):
        uploads = {
            n: replace(u, round_index=number)
            for n, u in uploads_for(names, 0, parameters=300, dtype=torch.float64).items()
        }
        total, opening = group.run(number, uploads)
    assert opening.width == (32 if resolution == 1e-4 else 40)
    for row, *own in zip(
        [*total.terms, total.statistics],
        *([*(u.weight * u.terms), u.weight * u.statistics] for u in uploads.values()),
        strict=True,
    ):
        exact = sum(own)
        assert float((row - exact).abs().max()) <= resolution * float(exact.abs().max())
    if resolution == 1e-4:  # and not only since the ring is wide
        assert float((row - exact).abs().max()) > 1e-9 * float(exact.abs().max())


def test_masks_in_a_narrow_ring_take_the_bytes_that_are_promised():
    group = narrow_group(width=40)
    group.run(0, uploads_for(FOUR, 0, parameters=1000))
    opening = sent(group.server.open_round(1, FOUR, 3))
    group.share(opening, FOUR)
    group.route()
    answer = group.clients["anna"].mask(upload_of(1, 3, parameters=1000), context=MODEL)
    assert answer.values.numel() * 4 == 5 * 2003 + 1 + 8  # two terms and three statistics, up to a word, the weight


def test_a_value_out_of_range_is_refused_and_the_next_attempt_is_as_much_wider():
    group = narrow_group(NAMES[:5])
    group.run(0, uploads_for(group.names, 0))
    _, before = group.run(1, uploads_for(group.names, 1))
    uploads = uploads_for(group.names, 2)
    uploads["bela"] = upload_of(2, 99, size=2.0**14)
    total, opening = group.run(2, uploads)
    assert (before.width, opening.width) == (40, 43)
    assert opening.attempt == 1
    assert [[Fraction(v) for v in row.tolist()] for row in total.terms] == oracle_sum(uploads, group.names, opening)[
        :-1
    ]
    uploads = uploads_for(group.names, 3)
    group.server.open_round(3, group.names, 3)
    assert group.server._record.form.width == 40  # bounds follow the sum again


def test_a_refusal_says_what_it_said_in_a_wide_ring():
    group = narrow_group(width=32)
    group.run(0, uploads_for(FOUR, 0))
    opening = sent(group.server.open_round(1, FOUR, 3))
    group.share(opening, FOUR)
    group.route()
    answer = group.clients["anna"].mask(upload_of(1, 0, size=2.0**30), context=MODEL)
    assert isinstance(answer, RangeRefusal)
    assert len(answer.rows) == 3


def test_a_row_of_zeros_keeps_the_wide_ring_until_its_range_is_known():
    group = narrow_group()
    for number, size in enumerate((0.0, 0.0, 1.0, 1.0, 0.0, 0.0)):
        uploads = uploads_for(FOUR, number)
        uploads = {name: replace(u, statistics=size * u.statistics) for name, u in uploads.items()}
        _, opening = group.run(number, uploads)
        assert opening.width == (64 if number < 3 else 40)


def test_the_next_bounds_leave_room_for_values_sixteen_times_the_largest_sum():
    group = narrow_group()
    total, _ = group.run(0, uploads_for(FOUR, 0))
    following = FixedPointFormat(group.server.open_round(1, FOUR).fraction_bits, 4, 40)
    for row, bits in zip([*total.terms, total.statistics], following.bound_bits, strict=True):
        room = 2.0**NARROW_HEADROOM_BITS * float(row.abs().max())
        assert 2.0**bits / 2 < room <= 2.0**bits


def test_a_resumed_server_goes_on_in_the_same_ring():
    group, resumed = narrow_group(), narrow_group()
    group.run(0, uploads_for(FOUR, 0))
    state = group.server.state_tensors()
    resumed.server.load_state_tensors(state)
    following = group.server.open_round(1, FOUR)
    assert following.width == 40
    assert resumed.server.open_round(1, FOUR) == following
    with pytest.raises(CheckpointError, match="bound_bits, latest, range_known; got bound_bits, latest"):
        narrow_group().server.load_state_tensors({name: state[name] for name in ("bound_bits", "latest")})
    with pytest.raises(CheckpointError, match="bound_bits, latest; got bound_bits, latest, range_known"):
        Group(FOUR).server.load_state_tensors(state)


def test_openings_of_another_width_have_other_seeds_commitments_and_seals():
    openings = [MaskOpening(3, 0, FOUR, (20, 20), width) for width in WIDTHS]
    occasions = [Occasion.of(b"run", opening) for opening in openings]
    assert len({occasion.opening_digest for occasion in occasions}) == len(WIDTHS)
    ring = narrow_group().rings["anna"]
    assert len({occasion.pair_secret(ring, "bela", "mask") for occasion in occasions}) == len(WIDTHS)


@pytest.mark.parametrize(
    ("planned", "opened", "is_taken"),
    [
        (64, 40, False),
        (40, 64, True),
        (40, 48, False),
        (40, 32, False),
        ("auto", 32, True),
        ("auto", 41, False),
        ("auto", 0, False),
        ("auto", -40, False),
        ("auto", 128, False),
    ],
)
def test_a_client_takes_part_in_no_ring_that_the_plan_does_not_have(planned, opened, is_taken):
    group = narrow_group(width=planned)
    opening = MaskOpening(0, 0, FOUR, (10, 10, 10), opened)
    if is_taken:
        group.clients["anna"].open(opening)
    else:
        with pytest.raises(ProtocolError, match=r"MaskOpening from the server.* ring of"):
            group.clients["anna"].open(opening)


def test_where_bounds_are_fixed_so_is_the_ring():
    group = Group(FOUR, MaskSettings(width=40), fixed_bounds=[64.0, 64.0, 64.0])
    opening = group.server.open_round(0, FOUR)
    assert opening.width == 40
    wide = FixedPointFormat.for_bound_bits((6, 6, 6), 4)
    with pytest.raises(ProtocolError, match="a ring of 64 bits, where the plan says 40"):
        group.clients["bela"].open(replace(opening, width=64, fraction_bits=wide.fraction_bits))
    uploads = uploads_for(FOUR, 0, weight=1)
    group = Group(FOUR, MaskSettings(width=40), fixed_bounds=[64.0, 64.0, 64.0])
    total, _ = group.run(0, uploads)
    unit = 2.0 ** -FixedPointFormat.for_bound_bits((6,), 4, 40).fraction_bits[0]
    expected = sum(torch.round(u.terms.double() / unit) for u in uploads.values()) * unit
    assert torch.equal(total.terms, expected)
    with pytest.raises(NumericalRangeError, match="beyond the fixed bounds"):
        group.run(1, uploads_for(FOUR, 1, weight=1, size=1e3))


def test_ring_words_have_64_bits_and_an_opening_that_says_otherwise_is_refused():
    group = Group(FOUR, MaskSettings(), words=True)
    with pytest.raises(ProtocolError, match="Ring words have 64 bits"):
        group.clients["anna"].open(MaskOpening(0, 0, FOUR, (), 40))


def attempt_at(width):
    group = narrow_group(width=width)
    group.run(0, uploads_for(FOUR, 0))
    opening = sent(group.server.open_round(1, FOUR, 3, 14))
    group.share(opening, FOUR)
    group.route()
    uploads = uploads_for(FOUR, 1)
    return (
        group,
        uploads,
        {name: sent(group.clients[name].mask(uploads[name], context=MODEL)) for name in FOUR},
        opening,
    )


@pytest.mark.parametrize("width", NARROW)
def test_packed_uploads_of_the_wrong_form_are_refused_by_name_and_the_round_completes(width):
    group, uploads, masked, opening = attempt_at(width)
    right = masked["bela"].values
    wrong = {
        "as 64 bits": widths.unpacked(right, width),
        "shorter": right[:-1],
        "longer": torch.cat([right, right[:1]]),
        "floats": right.float(),
        "two dimensions": right[None],
        "a number": torch.tensor(3, dtype=torch.int32),
        "nothing": right[:0],
    }
    for values in wrong.values():
        with pytest.raises(ProtocolError, match="MaskedUpload from bela: expected"):
            group.server.collect_upload("bela", sent(replace(masked["bela"], values=values)))
    if width != 32:
        padded = right.clone()
        padded[-3] |= 1 << 30
        with pytest.raises(ProtocolError, match="MaskedUpload from bela: expected zeros up to the end"):
            group.server.collect_upload("bela", sent(replace(masked["bela"], values=padded)))
    for name, message in masked.items():
        group.server.collect_upload(name, message)
    group.sign()
    group.reveal()
    total = group.server.unmask((2, 5), 3)
    assert [[Fraction(v) for v in row.tolist()] for row in total.terms] == oracle_sum(uploads, FOUR, opening)[:-1]


@pytest.mark.parametrize("width", NARROW)
def test_padding_is_looked_at_too_where_the_length_is_known_only_in_the_end(width):
    group = narrow_group(width=width)
    group.run(0, uploads_for(FOUR, 0))
    opening = sent(group.server.open_round(1, FOUR, 3))
    group.share(opening, FOUR)
    group.route()
    masked = {name: sent(group.clients[name].mask(upload_of(1, 0), context=MODEL)) for name in FOUR}
    odd = replace(masked["dora"], values=masked["dora"].values[1:])
    for name, message in {**masked, "dora": odd}.items():
        group.server.collect_upload(name, message)
    with pytest.raises(ProtocolError, match="MaskedUpload from dora: expected"):
        group.server.close_uploads(context=MODEL)


@pytest.mark.parametrize("settings_of", [{"width": 33}, {"width": "narrow"}, {"width": True}, {"resolution": 0.0}])
def test_settings_that_mean_nothing_are_refused(settings_of):
    with pytest.raises(PlanError):
        MaskSettings(**settings_of)


@pytest.mark.parametrize("weight", [3, 287])
@pytest.mark.parametrize("fraction_bits", [14, 20, 26, 32])
def test_where_units_are_coarse_whole_numbers_are_hit_alike_whatever_the_weight(weight, fraction_bits):
    """What is drawn covers the line evenly, so it falls on the numbers of any grid alike: sums tell no weights."""
    values = 1.0 + np.random.default_rng(weight).integers(0, 2**23, size=60_000) * 2.0**-23
    form = FixedPointFormat((fraction_bits, fraction_bits), 2, 48)
    upload = Upload(0, weight, torch.from_numpy(values).float()[None], torch.zeros(0))
    sums = encode_upload(upload, form, "anna", LastBits(bytes(range(32))))[:-1].numpy()
    inside = sums[(sums > weight << fraction_bits) & (sums < 2 * weight << fraction_bits)]
    for odd in (2, 3, 5, 7, odd_part(weight)):
        counts = np.bincount(inside % odd, minlength=odd)
        if (weight << fraction_bits) > 1000 * odd:
            assert stats.chisquare(counts).pvalue > 1e-5


def odd_part(number):
    return number // (number & -number)
