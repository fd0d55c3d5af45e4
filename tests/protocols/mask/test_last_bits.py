"""The last bits of what is summed: what they would tell if they were left alone or rounded, and that they do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from bilateral.audit.attacks.weights_in_sums import guess_weight, hits, odd_part
from bilateral.protocols.mask.fixed_point import FixedPointFormat, encode_upload
from bilateral.protocols.mask.last_bits import STEPS, LastBits
from bilateral.protocols.messages import Upload
from bilateral.randomness import SeededRandomness
from protocols.mask import last_bits_oracle

FORM = FixedPointFormat.for_bound_bits((10, 0), 5)
WEIGHTS = (287, 431, 86)


def values_of(seed, count=400, dtype=torch.float32):
    drawn = SeededRandomness(seed, "values")
    return (drawn.normal(count) * drawn.log_uniform(count, low=1e-6, high=1.0)).to(dtype)


def key(seed):
    return SeededRandomness(seed, "key").random_bytes(32)


def weighted(values, weight, last_bits):
    encoded = encode_upload(Upload(0, weight, values[None], torch.zeros(0)), FORM, "anna", last_bits)
    return encoded[:-1].numpy() * 2.0 ** -FORM.fraction_bits[0]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_products_as_they_are_tell_the_weight_and_products_with_drawn_last_bits_do_not(weight):
    values = values_of(weight)
    assert guess_weight(weighted(values, weight, None), 500) == odd_part(weight)
    assert guess_weight(weighted(values, weight, LastBits(key(weight))), 500) is None


def rounded(values, weight):
    return (values.double() * weight).float().double().numpy()


def reachable(sums, weight):
    """Whether some float32 times the weight rounds to the sum."""
    near = (sums / weight).astype(np.float32)
    around = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    return np.any([(a.astype(np.float64) * weight).astype(np.float32) == sums for a in around], axis=0)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_rounding_products_to_float32_would_not_be_enough(weight):
    """Some float32 are no rounded products: the right weight is the one that reaches all sums."""
    sums = rounded(values_of(weight, 4000), weight)
    left = [w for w in range(3, 500, 2) if reachable(sums, w).all()]
    assert left == [odd_part(weight)]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_who_knows_about_drawn_last_bits_cannot_tell_the_weight_by_what_sums_can_be_reached(weight):
    """All of the line is covered evenly: rounded back to float32, sums are reached as often as random ones are."""
    sums = weighted(values_of(weight, 4000), weight, LastBits(key(weight))).astype(np.float32).astype(np.float64)
    random = (values_of(1, 4000).double() * weight * (1 + SeededRandomness(2).uniform(4000))).numpy()
    random = random.astype(np.float32).astype(np.float64)
    for candidate in (odd_part(weight), 3, 101):
        got, chance = reachable(sums, candidate).mean(), reachable(random, candidate).mean()
        assert abs(got - chance) < 5 * np.sqrt(chance * (1 - chance) / 4000 + 1e-5) + 0.01


@pytest.mark.parametrize("weight", [1, 3, 287, 512])
def test_where_a_product_lies_between_the_steps_of_its_weight_is_uniform(weight):
    """The residue of a sum modulo weight times step, for the right weight, is what a wrong one gives: uniform."""
    values = (1 + torch.arange(4000, dtype=torch.float64) * 2.0**-23 * 17).float()  # steps of equal size
    sums = weighted(values, weight, LastBits(key(weight)))
    for candidate in (weight, weight + 2):
        parts = np.mod(sums / (candidate * 2.0**-23), 1.0)
        assert kstest(parts, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_are_what_one_value_at_a_time_gives(dtype):
    values = torch.cat([values_of(5, 300, dtype), torch.zeros(3, dtype=dtype), -values_of(5, 10, dtype)])
    for weight, bits in ((1, 40), (287, 49), (3, 20), (2**20, 10)):
        upload = Upload(0, weight, values[None], torch.zeros(0, dtype=dtype))
        form = FixedPointFormat((bits, bits), 2)
        got = encode_upload(upload, form, "anna", LastBits(key(1)))
        assert got[:-1].tolist() == last_bits_oracle.integers(upload, (bits, bits), key(1))[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_moves_by_at_most_half_of_its_steps_and_zero_stays_zero(dtype):
    values = values_of(9, 5000, torch.float64).to(dtype)
    values[7] = 0.0
    wide = FixedPointFormat.for_bound_bits((1, 0), 2)
    upload = Upload(0, 1, values[None], torch.zeros(0, dtype=dtype))
    unit = 2.0 ** -wide.fraction_bits[0]
    got = encode_upload(upload, wide, "anna", LastBits(key(3)))[:-1].double() * unit
    allowed = STEPS / 2 * torch.finfo(dtype).eps * values.double().abs() + unit
    assert bool(((got - values.double()).abs() <= allowed).all())
    assert got[7] == 0
    if dtype == torch.float32:
        assert float((got - values.double()).abs().max()) > 0


def test_equal_values_move_alike_and_another_round_or_client_moves_them_otherwise():
    values = values_of(4)
    twice = torch.cat([values, values, -values])
    first, second, third = np.split(weighted(twice, 287, LastBits(key(1))), 3)
    assert np.array_equal(first, second)
    assert np.abs(first + third).max() <= 2 * 2.0 ** -FORM.fraction_bits[0]
    assert (first != weighted(values, 287, LastBits(key(2)))).mean() > 0.9


def test_keys_of_another_length_are_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        LastBits(b"short")


def test_hits_count_the_values_that_are_a_weight_times_a_float32():
    values = np.array([3 * np.float64(np.float32(0.1)), 5 * np.float64(np.float32(0.3)), 0.1])
    assert hits(values, [3, 5, 7]).tolist() == [1, 1, 0]
