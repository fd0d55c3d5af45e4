"""Sums of one client alone: exact products and rounded ones give its weight away, drawn last bits do not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.protocols.mask import last_bits_oracle
from tests.protocols.mask.harness import NAMES, Group, upload_of

from bilateral.audit.topics.masks.attacks.weight_lattice import (
    lattice_score,
    odd_part,
    reachable,
    used_bits,
    weight_scores,
)
from bilateral.errors import NumericalRangeError
from bilateral.protocols.mask import last_bits
from bilateral.protocols.mask.fixed_point import FixedPointFormat, encode_upload
from bilateral.protocols.mask.last_bits import STEPS, LastBits
from bilateral.protocols.messages import Upload

torch.set_num_threads(1)

KEY = bytes(range(32))
FRACTION_BITS = 42
WEIGHTS = (1, 2, 3, 5, 7, 21, 64, 287, 288, 431, 999)
"""Small ones, powers of two, and two that were found in runs of the default plan when products were exact."""
CANDIDATES = tuple(range(1, 1000, 2))


def values_of(count, seed=0, dtype=np.float32):
    draws = np.random.default_rng(seed)
    return (draws.normal(size=count) * np.exp(draws.normal(size=count))).astype(dtype).astype(np.float64)


def drawn(values, weight, key=KEY):
    return LastBits(key).integers(values, weight * 2.0**FRACTION_BITS, torch.float32).astype(np.float64)


def found_weight(sums):
    scores = weight_scores(sums, CANDIDATES, np.random.default_rng(0))
    return CANDIDATES[int(scores.argmax())], float(scores.max())


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_hundred_exact_products_are_more_than_enough_to_find_the_weight(weight):
    found, score = found_weight(np.rint(values_of(100) * weight * 2.0**FRACTION_BITS))
    assert found == odd_part(weight)
    assert score > 6


@pytest.mark.parametrize("weight", WEIGHTS)
def test_rounding_products_to_float32_leaves_a_handful_of_weights_of_which_one_is_right(weight):
    rounded = (np.abs(values_of(400)) * weight).astype(np.float32).astype(np.float64)
    left = [other for other in CANDIDATES if reachable(rounded, other).all()]
    assert odd_part(weight) in left
    assert len(left) <= 10


def test_rounding_products_to_twenty_bits_still_tells_weights():
    values = np.abs(values_of(200_000)) * 21
    grid = np.exp2(np.floor(np.log2(values)) - 19)
    assert lattice_score(np.rint(values / grid) * grid, 21) > 6


@pytest.mark.parametrize("weight", WEIGHTS)
def test_drawn_last_bits_tell_nothing_of_the_weight(weight):
    """Thirty thousand sums: three hundred times as many as are more than enough where products are exact."""
    sums = drawn(values_of(30_000, seed=weight), weight)
    others = [other for other in CANDIDATES[::7] if other != odd_part(weight)]
    right, *wrong = weight_scores(sums, [odd_part(weight), *others], np.random.default_rng(1))
    assert abs(right) < 4.5
    assert max(wrong) < 5


@pytest.mark.parametrize("weight", [3, 287])
def test_the_place_within_a_step_is_uniform_whatever_the_weight(weight):
    sums = np.abs(drawn(values_of(50_000, seed=9), weight)) / (weight * 2.0**FRACTION_BITS)
    steps = sums / np.exp2(np.floor(np.log2(sums)) - 23)
    assert stats.kstest(steps % 1.0, "uniform").pvalue > 1e-4


def test_the_reach_of_neighbouring_values_covers_every_whole_number_equally_often():
    """The guarantee itself: many keys on a run of neighbouring floats hit all whole numbers in their middle alike."""
    weight, count = 3, 64
    values = (np.float64(2**23 + 1000) + np.arange(count)) * 2.0**-23
    scale = weight * 2.0**23  # a step is three units of the ring
    hits = np.concatenate(
        [LastBits(number.to_bytes(32, "big")).integers(values, scale, torch.float32) for number in range(4000)]
    )
    first = int(values[0] * scale)
    inside = hits[(hits >= first + STEPS * weight) & (hits < first + (count - STEPS) * weight)]
    counts = np.bincount(inside - inside.min())
    assert len(counts) == (count - 2 * STEPS) * weight
    assert stats.chisquare(counts).pvalue > 1e-4


def test_which_of_two_weights_it_was_is_a_coin():
    """A game: 2,000 sums of one client alone, weight 3 or 5; the attacker says which explains them better."""
    right = 0
    for trial in range(200):
        weight = (3, 5)[trial % 2]
        sums = drawn(values_of(2000, seed=trial), weight, trial.to_bytes(32, "big"))
        scores = weight_scores(sums, [3, 5], np.random.default_rng(trial))
        right += (3, 5)[int(scores.argmax())] == weight
    assert stats.binomtest(right, 200).pvalue > 1e-3


def test_sums_of_one_client_and_of_two_use_the_ring_alike():
    """Exact products of one use fewer bits than those of two. Drawn ones all have coins as their last bits."""
    one, two = values_of(20_000, seed=1), values_of(20_000, seed=2)
    scale = 2.0**FRACTION_BITS
    exact = used_bits(np.rint(one * 287 * scale)), used_bits(np.rint(one * 287 * scale) + np.rint(two * 100 * scale))
    assert exact[0].max() <= 24 + 9
    assert np.mean(exact[1] > 24 + 9) > 0.15
    single, both = drawn(one, 287), drawn(one, 287) + drawn(two, 100, bytes(32))
    for bits in range(4):
        for sums in (single, both):
            share = np.mean((sums.astype(np.int64) >> bits) & 1)
            assert abs(share - 0.5) < 0.02


def test_equal_values_get_equal_last_bits_and_opposite_ones_opposite():
    values = values_of(100)
    once = drawn(values, 287)
    assert np.array_equal(drawn(values[::-1].copy(), 287)[::-1], once)
    assert np.array_equal(drawn(-values, 287), -once)
    assert not np.array_equal(drawn(values, 287, bytes(32)), once)


def crowded_cells(weight):
    """How many of 30,000 sums of values that lie closely have the next sum in their own step, by candidate weight.

    With one step to draw from, no two different values of the right weight can.
    """
    values = 1.0 + np.random.default_rng(3).integers(0, 2**18, size=30_000) * 2.0**-23
    sums = np.unique(drawn(values, weight))
    candidates = np.arange(weight - 20, weight + 21, 2)
    steps = [np.floor(sums / (other * 2.0 ** (FRACTION_BITS - 23)) + 0.5) for other in candidates]
    return candidates, np.array([np.mean(step[1:] == step[:-1]) / w for step, w in zip(steps, candidates, strict=True)])


def test_values_that_lie_closely_would_tell_the_weight_by_one_step_and_do_not_by_four(monkeypatch):
    candidates, shares = crowded_cells(287)
    others = shares[candidates != 287]
    assert abs(shares[candidates == 287][0] - others.mean()) < 4 * others.std()
    monkeypatch.setattr(last_bits, "STEPS", 1)
    candidates, shares = crowded_cells(287)
    assert shares[candidates == 287] == 0
    assert shares[candidates != 287].min() > 0


def test_values_that_come_often_show_no_more_than_one_of_them():
    """Were they drawn one by one, their mean would be the product, to a hundredth of a step."""
    assert len(np.unique(drawn(np.full(10_000, values_of(1)[0]), 287))) == 1


def weight_found_in_means(sums, weight):
    """Whether of 200 weights the right one makes these sums' mean whole numbers of steps best, and how clearly."""
    mean = np.mean(sums, axis=0)
    candidates = np.arange(200, 400)
    angles = mean[None] / (candidates[:, None] * 2.0 ** (FRACTION_BITS - 23))
    clear = np.abs(np.exp(2j * np.pi * angles).mean(1)) * np.sqrt(2 * len(mean))
    return candidates[clear.argmax()] == weight, clear.max()


def uploads_of_one_client_alone(rounds, weight=287, *, change=0.0):
    """Masked sums with one client's values alone, the same in every round, or (`change`) all but one."""
    names, values = NAMES[:4], 1.0 + np.random.default_rng(5).integers(0, 2**23, size=400) * 2.0**-23
    group, sums = Group(names), []
    for number in range(rounds + 1):
        given = {name: Upload(number, 1, torch.zeros(1, 400), torch.zeros(1)) for name in names}
        own = torch.from_numpy(values).float()[None]
        own[0, -1] += change * number
        given[names[0]] = Upload(number, weight, own, torch.zeros(1))
        sums.append(group.run(number, given)[0].terms[0, :-1].numpy() * 2.0**FRACTION_BITS)
    return sums[1:]  # the first has another format: ranges follow the sums


def test_the_same_upload_in_many_rounds_has_the_same_last_bits_so_that_their_mean_tells_no_weight():
    sums = uploads_of_one_client_alone(24)
    assert all(np.array_equal(sums[0], other) for other in sums[1:])
    assert weight_found_in_means(sums, 287)[1] < 5


def test_values_that_stay_while_others_of_the_upload_change_tell_the_weight_after_some_tens_of_rounds():
    """What is left, and is stated (ledger, line 12): a value's mean over independent draws is the value."""
    found, clear = weight_found_in_means(uploads_of_one_client_alone(64, change=0.125), 287)
    assert found
    assert clear > 8


def test_one_upload_has_one_key_and_any_other_another():
    upload = upload_of(0, seed=1, parameters=40)
    drawn_once = LastBits.of(upload, KEY).integers(values_of(50), 2.0**FRACTION_BITS, torch.float32)

    def again(other, secret=KEY):
        return np.array_equal(
            LastBits.of(other, secret).integers(values_of(50), 2.0**FRACTION_BITS, torch.float32), drawn_once
        )

    assert again(Upload(7, upload.weight, upload.terms.clone(), upload.statistics))
    assert not again(Upload(0, upload.weight + 1, upload.terms, upload.statistics))
    assert not again(Upload(0, upload.weight, upload.terms + 1, upload.statistics))
    assert not again(Upload(0, upload.weight, upload.terms, upload.statistics + 1))
    assert not again(Upload(0, upload.weight, upload.terms.double(), upload.statistics))
    assert not again(upload, bytes(32))


def test_products_of_few_numbers_tell_the_weight_by_their_sizes():
    """What is left, and is stated (ledger, line 12): a sample's pixels times the residuals of ten units, one client."""
    residuals = (1.0 + np.random.default_rng(2).integers(0, 2**23, size=(64, 1)) * 2.0**-23).astype(np.float32)
    pixels = np.arange(1, 256, dtype=np.float32)[None] / np.float32(255)
    products = (residuals * pixels).astype(np.float64)
    sums = drawn(products.reshape(-1), 287).reshape(products.shape) / pixels
    assert weight_found_in_means(sums.T, 287)[0]


def test_values_of_few_bits_tell_the_weight_by_their_sizes():
    """What is left, and is stated (ledger, line 12): 43 numbers of 8 bits, moved by less than their steps."""
    values = 1.0 + np.random.default_rng(2).integers(0, 2**7, size=43) * 2.0**-7
    angles = drawn(values, 287) / (np.arange(200, 400)[:, None] * 2.0 ** (FRACTION_BITS - 7))
    assert np.abs(np.exp(2j * np.pi * angles).mean(1)).argmax() + 200 == 287


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
    st.integers(1, 2**40),
    st.binary(min_size=32, max_size=32),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_product_moves_by_half_of_the_steps_and_half_a_unit_at_most_and_zero_stays(values, weight, key):
    form = FixedPointFormat.for_bound_bits((60, 60), 2)
    upload = Upload(0, weight, torch.tensor([values], dtype=torch.float32), torch.zeros(1))
    for value, got in zip(values, encode_upload(upload, form, "anna", LastBits(key)).tolist(), strict=False):
        unit = Fraction(2) ** -form.fraction_bits[0]
        exact = Fraction(value) * weight
        step = Fraction(float(np.spacing(np.float32(abs(value))))) if abs(value) > 1e-30 else 0
        assert abs(got * unit - exact) <= Fraction(STEPS, 2) * step * weight + unit / 2 + abs(exact) / 2**52
        assert value != 0 or got == 0


def test_refusals_do_not_depend_on_what_is_drawn():
    form = FixedPointFormat.for_bound_bits((3, 3), 2)
    for key in range(20):
        at_bound = Upload(0, 1, torch.tensor([[8.0, -8.0]]), torch.zeros(1))
        assert isinstance(encode_upload(at_bound, form, "anna", LastBits(key.to_bytes(32, "big"))), torch.Tensor)


def test_clients_draw_last_bits_and_the_masked_sum_is_right_to_float32():
    group = Group(NAMES[:4])
    uploads = {name: upload_of(0, seed=number, parameters=400) for number, name in enumerate(NAMES[:4])}
    total, _ = group.run(0, uploads)
    exact = sum(u.terms.double() * u.weight for u in uploads.values())
    largest = sum(u.terms.double().abs() * u.weight for u in uploads.values())
    error = (total.terms - exact).abs()
    assert bool((error <= 2.0**-21 * largest + 2.0**-30).all())
    assert float((error / largest).max()) > 2.0**-26


def test_where_bounds_are_fixed_nothing_is_drawn():
    """There values carry noise on a grid, and the accounting counts on it that masks round nothing."""
    group = Group(NAMES[:4], fixed_bounds=[1e4] * 3)
    uploads = {name: upload_of(0, seed=number, parameters=400, weight=1) for number, name in enumerate(NAMES[:4])}
    total, _ = group.run(0, uploads)
    exact = sum(u.terms.double() for u in uploads.values())
    assert torch.equal(total.terms, exact)


def test_uploads_of_whole_numbers_are_refused_by_name():
    form = FixedPointFormat.for_bound_bits((3, 3), 2)
    upload = Upload(0, 1, torch.ones(1, 2, dtype=torch.int64), torch.zeros(1))
    with pytest.raises(Exception, match="from anna: expected real numbers in `terms`"):
        encode_upload(upload, form, "anna")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_are_what_one_value_at_a_time_gives(dtype):
    values = torch.from_numpy(np.concatenate([values_of(300), np.zeros(3), -values_of(10)])).to(dtype)
    for weight, bits in ((1, 40), (287, 49), (3, 20), (2**20, 10)):
        upload = Upload(0, weight, values[None], torch.zeros(0, dtype=dtype))
        got = encode_upload(upload, FixedPointFormat((bits, bits), 2), "anna", LastBits(KEY))
        assert got[:-1].tolist() == last_bits_oracle.integers(upload, (bits, bits), KEY)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [1, 287, 431, 2**26 - 1, 2**26 + 1, 2**29 + 1, 3**25, 2**40 - 1, 2**40])
def test_large_products_are_exact_before_their_last_bits_are_drawn(dtype, weight):
    """Up to 2^62: beyond 2^53 a product in float64 has lost some of its bits."""
    values = torch.from_numpy(values_of(300, seed=weight % 1000, dtype=np.float64)).to(dtype)
    largest = float(values.abs().max()) * weight
    for bits in (60 - math.frexp(largest)[1], 53 - math.frexp(largest)[1], 30 - math.frexp(largest)[1]):
        got = LastBits(KEY).integers(values.double().numpy(), math.ldexp(weight, bits), dtype)
        assert got.tolist() == [last_bits_oracle.integer(value, weight, bits, KEY, dtype) for value in values.tolist()]


@given(st.lists(st.floats(-(2.0**20), 2.0**20), min_size=1, max_size=20), st.integers(1, 2**40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_what_a_product_has_lost_is_found_exactly(values, weight):
    values = np.array([value for value in values if value == 0 or abs(value) > 2.0**-900])
    products = values * math.ldexp(weight, 2)
    lost = last_bits._lost(values, math.ldexp(weight, 2), products)
    for value, product, rest in zip(values.tolist(), products.tolist(), lost.tolist(), strict=True):
        assert Fraction(product) + Fraction(rest) == Fraction(value) * weight * 4


def test_values_beyond_all_range_are_reported_without_a_warning():
    form = FixedPointFormat.for_bound_bits((3, 3), 2)
    upload = Upload(0, 2**40 - 1, torch.tensor([[1e200, -1e290, 1.0]], dtype=torch.float64), torch.zeros(1))
    with pytest.raises(NumericalRangeError, match="anna: row 0"):
        encode_upload(upload, form, "anna", LastBits(KEY))


LARGE_BITS = 46
"""Weights of nine bits times values below 2 are around 2^56: a float64 loses three bits of such a product."""


def large_products(weight, count, seed):
    """Values whose products are spread over the same range for every weight, with last bits that say nothing."""
    draws = np.random.default_rng(seed)
    values = draws.uniform(2.0**55, 2.0**56, count) / (weight * 2.0**LARGE_BITS)
    last = draws.integers(0, 2**24, count, dtype=np.uint64)
    return ((values.view(np.uint64) & ~np.uint64(2**24 - 1)) | last).view(np.float64)


def rounded_first(values, weight):
    """Last bits drawn around products as a float64 has them."""
    uniform = LastBits(KEY)._uniform(values.view(np.uint64))
    reach = np.exp2(np.floor(np.log2(values)) - 50) * weight * 2.0**LARGE_BITS
    return (values * (weight * 2.0**LARGE_BITS)).astype(np.int64) + np.rint(uniform * reach).astype(np.int64)


def log_likelihood(sums, weight):
    """Of sums, if they were drawn around rounded products: how much of each one's place the intervals cover."""
    scale = weight * 2.0**LARGE_BITS
    nearest = sums.astype(np.float64) / scale
    step = np.spacing(nearest)
    covered = np.zeros(len(sums))
    for number in range(-8, 9):
        centres = ((nearest + number * step) * scale).astype(np.int64)
        away = np.abs((sums - centres).astype(np.float64))
        half = STEPS / 2 * step * scale
        covered += np.clip(half - away + 0.5, 0, 1)
    return float(np.log(np.maximum(covered, 1e-3) / STEPS).sum())


def told_apart(draw, count=10_000):
    """Nats by which the likelihoods of 287 and 431 tell the one's sums from the other's: 0 if they say nothing."""
    differences = []
    for weight in (287, 431):
        sums = draw(large_products(weight, count, seed=weight), weight)
        differences.append(log_likelihood(sums, 287) - log_likelihood(sums, 431))
    return differences[0] - differences[1]


def test_products_that_are_rounded_before_tell_the_weight_and_exact_ones_do_not():
    def exact(values, weight):
        return LastBits(KEY).integers(values, weight * 2.0**LARGE_BITS, torch.float64)

    assert told_apart(rounded_first) > 400
    assert abs(told_apart(exact)) < 150


def test_keys_of_another_length_are_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        LastBits(b"short")
