"""Sound distributed noise: the sum carries the central noise, on a grid, and nothing in it depends on the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bilateral.errors import NumericalRangeError, PlanError, ProtocolError
from bilateral.protocols.mask.fixed_point import FixedPointFormat, encode_upload
from bilateral.protocols.messages import Upload, aggregate
from bilateral.protocols.noise.adaptive import AdaptiveClip
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.noise.sound import (
    MISSING_TAIL,
    DistributedGaussian,
    SoundNoiseSettings,
    effective_multiplier,
    grid_bits,
    grid_exponent,
    missing_tails,
    standard_normal,
)
from bilateral.randomness import Randomness, SecureRandomness, SeededRandomness

TERMS, PARAMETERS = 3, 4000


class Fixed(Randomness):
    """A stream that only says one byte."""

    def __init__(self, byte):
        self.byte = byte

    def random_bytes(self, num_bytes):
        return self.byte * num_bytes

    def child(self, *labels):
        return self


def sound(min_honest=4, z=1.3, clip=None, **options):
    return SoundNoiseSettings(clip or ClipSettings(0.8, "sample", 16.0), z, min_honest, **options)


def zeros(round_index=0, statistics=0):
    return Upload(round_index, 1, torch.zeros(TERMS, PARAMETERS, dtype=torch.float64), torch.zeros(statistics))


def noise_of(plan, clients, round_index=0, seed=0):
    """What each client adds to an upload of zeros."""
    return {
        k: DistributedGaussian(f"client-{k}", plan, SeededRandomness(seed, k)).add_noise(
            zeros(round_index), round_index
        )
        for k in clients
    }


def assert_variance(values, expected):
    """The sum of squares of normal numbers is chi-square: a two-sided interval that holds but once in 10^9."""
    statistic = float(values.square().sum()) / expected
    low, high = stats.chi2.ppf([0.5e-9, 1 - 0.5e-9], values.numel())
    assert low < statistic < high


@pytest.mark.parametrize("survivors", [4, 7, 10])
def test_sum_over_honest_survivors_carries_at_least_the_central_noise(survivors):
    plan = sound(min_honest=4)
    total = aggregate({str(k): u for k, u in noise_of(plan, range(survivors)).items()}, 0).terms
    central = (1.3 * 0.8 / 16.0) ** 2
    assert_variance(total, central * survivors / 4)
    assert stats.kstest(total.flatten().numpy() / math.sqrt(central * survivors / 4), "norm").pvalue > 1e-6


def test_noise_of_a_scaled_term_is_smaller_by_its_scale():
    plan = sound(clip=ClipSettings(0.8, "sample", 16.0, (1.0, 4.0, 0.5)))
    terms = noise_of(plan, [0])[0].terms
    for row, scale in zip(terms, (1.0, 4.0, 0.5), strict=True):
        assert_variance(row, (1.3 * 0.8 / 16.0 / scale) ** 2 / 4)


def test_noise_is_independent_across_clients_rounds_and_coordinates():
    plan = sound()
    streams = [u.terms.flatten() for r in (0, 1) for u in noise_of(plan, range(3), r).values()]
    streams.append(streams[0].roll(1))
    streams.append(streams[0].roll(PARAMETERS))
    correlation = np.corrcoef(torch.stack(streams).numpy())
    off_diagonal = correlation[~np.eye(len(streams), dtype=bool)]
    assert np.abs(off_diagonal).max() < 6 / math.sqrt(TERMS * PARAMETERS)


def test_noise_repeats_for_a_seed_and_never_from_the_operating_system():
    plan = sound()
    first, second = (noise_of(plan, [0], 5)[0].terms for _ in range(2))
    assert torch.equal(first, second)
    fresh = DistributedGaussian("c", plan)
    assert isinstance(fresh._randomness, SecureRandomness)
    assert not torch.equal(fresh.add_noise(zeros(), 0).terms, fresh.add_noise(zeros(), 0).terms)


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(0.05, 50.0), st.integers(1, 30), st.integers(0, 99))
def test_noise_is_the_same_to_the_last_bit_whatever_the_data_are(norm, z, min_honest, seed):
    plan = sound(min_honest, z, ClipSettings(norm, "sample", 3.0))
    generator = torch.Generator().manual_seed(seed)
    data = norm * torch.randn(2, 50, generator=generator, dtype=torch.float64)
    client = DistributedGaussian("c", plan, SeededRandomness(seed))
    noise = client.add_noise(Upload(0, 1, torch.zeros_like(data), torch.zeros(0)), 0).terms
    noisy = client.add_noise(Upload(0, 1, data, torch.zeros(0)), 0).terms
    unit = math.ldexp(1.0, grid_exponent(plan.term_deviations(2)[0]))
    assert torch.equal(noisy - noise, (data / unit).round() * unit)
    assert torch.equal(noisy / unit, (noisy / unit).round())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10_000_000), st.floats(0.1, 20.0), st.integers(1, 100))
def test_rounding_costs_little_and_always_something(num_parameters, z, min_honest):
    plan = sound(min_honest, z, ClipSettings(1.0, "sample", 8.0))
    effective = effective_multiplier(plan, 3, num_parameters)
    # At most sqrt(coordinates) units of 2^-24 deviations each.
    least = z / (1 + math.sqrt(3 * num_parameters) * z * 2.0**-24)
    assert least * (1 - 1e-12) <= effective < z


def test_terms_and_count_together_spend_what_the_multiplier_says():
    plan = sound(z=1.5, adaptive=AdaptiveClip(count_noise=8.0))
    combined = (plan.terms_multiplier**-2 + (0.5 / 8.0) ** 2) ** -0.5
    assert combined == pytest.approx(1.5)
    assert effective_multiplier(plan, 1, 10) == pytest.approx(1.5, rel=1e-5)
    assert effective_multiplier(plan, 1, 10) < 1.5


def test_count_of_adaptive_clipping_carries_its_own_noise():
    plan = sound(min_honest=2, adaptive=AdaptiveClip(count_noise=8.0))
    counts = [
        float(
            DistributedGaussian("c", plan, SeededRandomness(k))
            .add_noise(Upload(0, 1, torch.zeros(1, 1), torch.zeros(1)), 0)
            .statistics
        )
        for k in range(1000)
    ]
    assert_variance(torch.tensor(counts), (8.0 / 16.0) ** 2 / 2)


def test_an_encoder_with_the_grid_bits_keeps_every_bit():
    plan = sound()
    upload = noise_of(plan, [0])[0]
    bits = grid_bits(plan, TERMS)
    assert len(bits) == TERMS + 1
    encoded = encode_upload(upload, FixedPointFormat(bits, 10), "c")
    assert torch.equal(encoded[:-1].double().view(TERMS, -1) * 2.0 ** -bits[0], upload.terms)


def test_normal_numbers_pass_a_kolmogorov_smirnov_test():
    values = standard_normal(200_001, SeededRandomness(3))
    assert values.shape == (200_001,)
    assert stats.kstest(values.numpy(), "norm").pvalue > 1e-6


def test_tails_reach_13_standard_deviations_and_what_is_missing_is_charged():
    # All words zero: the smallest uniform number, angle 0; all ones: the largest, radius 0.
    assert float(standard_normal(1, Fixed(b"\0"))) == pytest.approx(math.sqrt(2 * 128 * math.log(2)))
    assert float(standard_normal(1, Fixed(b"\xff"))) == 0.0
    assert MISSING_TAIL == 2.0**-128
    assert missing_tails(10**9, 10**5, 10**4) < 1e-20


class Words(Randomness):
    """A stream of chosen 64-bit words."""

    def __init__(self, *words):
        self._bytes = np.array(words, dtype="<u8").tobytes()

    def random_bytes(self, num_bytes):
        taken, self._bytes = self._bytes[:num_bytes], self._bytes[num_bytes:]
        return taken

    def child(self, *labels):
        return self


def test_radius_is_as_fine_in_the_tail_as_elsewhere():
    """Two neighbouring uniform numbers near 2^-100 give normal numbers that differ by less than 1e-15 of their size."""
    low = 2**28
    first, second = (float(standard_normal(1, Words(0, word, 0))[0]) for word in (low, low + 1))
    assert 11 < second < first < 12
    assert (first - second) / first < 1e-10  # one part in 2^28 of the uniform number
    assert float(standard_normal(1, Words(0, 0, 0))[0]) == pytest.approx(math.sqrt(2 * 128 * math.log(2)))


def test_a_client_refuses_more_rounds_than_its_budget_has():
    noise = DistributedGaussian("anna", sound(), SeededRandomness(0), max_rounds=2)
    for round_index in range(2):
        noise.add_noise(Upload(round_index, 1, torch.zeros(1, 4), torch.zeros(0)), round_index)
    with pytest.raises(ProtocolError, match="anna has taken part in 2 rounds"):
        noise.add_noise(Upload(2, 1, torch.zeros(1, 4), torch.zeros(0)), 2)


@pytest.mark.parametrize(
    ("upload", "message"),
    [
        (Upload(1, 1, torch.zeros(1, 2), torch.zeros(0)), "of round 1, not 0"),
        (Upload(0, 7, torch.zeros(1, 2), torch.zeros(0)), "weight 7"),
        (Upload(0, 1, torch.zeros(1, 2), torch.zeros(3)), "and 3"),
    ],
)
def test_an_upload_that_is_not_clipped_is_refused_by_its_client_name(upload, message):
    with pytest.raises(ProtocolError, match=f"client-9.*{message}"):
        DistributedGaussian("client-9", sound()).add_noise(upload, 0)


def test_a_client_upload_above_the_norm_is_refused():
    client = DistributedGaussian("client-9", sound(clip=ClipSettings(1.0, "client")))
    client.add_noise(Upload(0, 1, torch.full((1, 4), 0.5), torch.zeros(0)), 0)
    with pytest.raises(ProtocolError, match=r"client-9.*norm 1\.2 is above 1"):
        client.add_noise(Upload(0, 1, torch.full((1, 4), 0.6), torch.zeros(0)), 0)


def test_values_beyond_the_exact_range_are_refused():
    with pytest.raises(NumericalRangeError, match="client-9"):
        DistributedGaussian("client-9", sound()).add_noise(Upload(0, 1, torch.full((1, 1), 1e9), torch.zeros(0)), 0)
    with pytest.raises(NumericalRangeError, match="no grid"):
        grid_exponent(1e-305)


@pytest.mark.parametrize("wrong", [{"z": 0.0}, {"z": math.nan}, {"min_honest": 0}, {"delta": 0.0}, {"delta": 1.0}])
def test_settings_that_protect_nothing_are_refused(wrong):
    with pytest.raises(PlanError, match="Expected"):
        sound(**wrong)
