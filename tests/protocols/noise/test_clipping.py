"""Clipping: the bound holds for every sample and client, whatever the values are; adaptive norms follow a quantile."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.errors import NumericalRangeError, PlanError, ProtocolError
from bilateral.protocols.messages import Aggregate, aggregate
from bilateral.protocols.noise.adaptive import AdaptiveClip, AdaptiveNorm, upload_of
from bilateral.protocols.noise.clipping import ClipSettings, clip_client, clip_samples
from bilateral.protocols.noise.sound import DistributedGaussian, SoundNoiseSettings
from bilateral.randomness import SeededRandomness

sizes = st.sampled_from([0.0, 5e-324, 1e-300, 1e-150, 1e-20, 1.0, 3.7, 1e10, 1e150, 1e300])
scales = st.sampled_from([(), (1.0, 1.0, 1.0), (0.1, 5.0, 1.0), (1e-6, 1e6, 1.0)])


def draws(count, size, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, 3, 7, generator=generator, dtype=torch.float64)
    return (size * values / values.abs().max()).to(dtype)


def scaled_norm(terms, clip):
    """Written out in Python floats, each brought to size first."""
    factors = clip.term_scales or (1.0,) * len(terms)
    values = [abs(v) * s for row, s in zip(terms.double().tolist(), factors, strict=True) for v in row]
    largest = max(values)
    return largest * math.sqrt(math.fsum((v / largest) ** 2 for v in values)) if largest else 0.0


@settings(max_examples=150, deadline=None)
@given(sizes, scales, st.floats(1e-3, 1e3), st.integers(0, 99), st.sampled_from([torch.float32, torch.float64]))
def test_no_sample_or_client_ever_exceeds_the_clipping_norm(size, term_scales, norm, seed, dtype):
    sample = ClipSettings(norm, "sample", 1.0, term_scales)
    terms = draws(1, size, seed, dtype)
    for got in (
        clip_samples([terms], (3, 7), sample).terms,
        clip_client(terms[0], ClipSettings(norm, "client", 1.0, term_scales)).terms,
    ):
        assert bool(torch.isfinite(got).all())
        assert scaled_norm(got, sample) <= norm


@settings(max_examples=50, deadline=None)
@given(scales, st.floats(1e-2, 1e2), st.integers(1, 6), st.integers(0, 99))
def test_adding_one_sample_moves_the_upload_by_at_most_the_sensitivity(term_scales, norm, count, seed):
    clip = ClipSettings(norm, "sample", 4.0, term_scales)
    samples = draws(count + 1, 10.0, seed)
    with_it = clip_samples([samples], (3, 7), clip)
    without = clip_samples([samples[:count]], (3, 7), clip)
    assert with_it.sensitivity == norm / 4.0
    assert scaled_norm(with_it.terms - without.terms, clip) <= with_it.sensitivity


def test_what_lies_below_the_norm_is_not_changed():
    clip = ClipSettings(100.0, "sample", 2.0)
    samples = draws(4, 1.0, 0)
    torch.testing.assert_close(clip_samples([samples], (3, 7), clip).terms, samples.sum(0) / 2, rtol=1e-14, atol=0)
    client = clip_client(samples[0], ClipSettings(100.0, "client"))
    assert torch.equal(client.terms, samples[0])


def test_a_sample_that_overflows_counts_as_zero_and_stops_nobody():
    samples = draws(3, 1.0, 0)
    samples[1, 0, 0], samples[2, 1, 1] = math.nan, math.inf
    got = clip_samples([samples], (3, 7), ClipSettings(1.0))
    torch.testing.assert_close(got.terms, clip_samples([samples[:1]], (3, 7), ClipSettings(1.0)).terms)


def test_counts_are_those_of_samples_at_or_below_the_norm_minus_one_half():
    samples = torch.zeros(5, 1, 2, dtype=torch.float64)
    samples[:, 0, 0] = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    got = clip_samples(samples.split(2), (1, 2), ClipSettings(2.0, expected_batch_size=5.0))
    assert got.below_minus_half == (3 - 2.5) / 5
    assert clip_client(samples[3], ClipSettings(2.0, "client")).below_minus_half == -0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"norm": 0.0},
        {"norm": math.inf},
        {"norm": 1.0, "unit": "site"},
        {"norm": 1.0, "expected_batch_size": -1.0},
        {"norm": 1.0, "term_scales": (1.0, 0.0)},
        {"norm": 1.0, "unit": "client", "expected_batch_size": 8.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(PlanError, match=r"Expected|Clipping whole"):
        ClipSettings(**wrong)


def test_another_number_of_term_scales_is_refused():
    with pytest.raises(PlanError, match=r"Expected 3 term scales .* got 2"):
        clip_client(torch.zeros(3, 2), ClipSettings(1.0, "client", term_scales=(1.0, 2.0)))


def adapted(seed, rounds=120, num_clients=4, start=50.0, tensors=None, first=0):
    """Clients whose samples have norms uniform on (0, 2): the norm must go to 2 * quantile."""
    adaptive = AdaptiveClip(target_quantile=0.25, learning_rate=0.2, count_noise=5.0)
    state = AdaptiveNorm(adaptive, ClipSettings(start, "sample", 25.0))
    state.load_state_tensors(tensors or {})
    noises = [
        DistributedGaussian(f"client-{k}", SoundNoiseSettings(state.clip, 1.0, num_clients, adaptive=adaptive), s)
        for k, s in enumerate(SeededRandomness(seed, "noise", k) for k in range(num_clients))
    ]
    norms = []
    for number in range(first, first + rounds):
        uploads = {}
        for k, noise in enumerate(noises):
            noise.set_norm(state.clip.norm)
            samples = 2.0 * SeededRandomness(seed, "data", number, k).uniform(25, 1, 1)
            upload = upload_of(clip_samples([samples], (1, 1), state.clip), number, with_count=True)
            uploads[noise.name] = noise.add_noise(upload, number)
        left = state.take(aggregate(uploads, number))
        assert left.statistics.numel() == 0
        norms.append(state.clip.norm)
    return norms, state


def test_adaptive_norm_finds_the_quantile_from_noisy_counts_alone():
    norms, _ = adapted(seed=1)
    late = sum(norms[60:]) / len(norms[60:])
    assert 0.4 < late < 0.6  # a quarter of the samples lies below 0.5; it began at 50


def test_adaptive_norm_is_repeatable_and_resumes_from_its_tensors():
    whole, _ = adapted(seed=2, rounds=20)
    _, state = adapted(seed=2, rounds=10)
    rest, _ = adapted(seed=2, rounds=10, tensors=state.state_tensors(), first=10)
    assert rest == whole[10:]


def test_norm_of_adaptive_clipping_moves_by_the_formula():
    state = AdaptiveNorm(AdaptiveClip(0.5, 0.2, 10.0), ClipSettings(3.0, "client"))
    # Four clients, all below: the sum of b - 1/2 is 2, the share is 1.
    state.take(Aggregate(0, 4, torch.zeros(1, 1), torch.tensor([2.0])))
    assert state.clip.norm == pytest.approx(3.0 * math.exp(-0.2 * 0.5))


def test_adaptive_clipping_refuses_what_it_cannot_use():
    state = AdaptiveNorm(AdaptiveClip(), ClipSettings(1.0))
    with pytest.raises(ProtocolError, match="2 statistics"):
        state.take(Aggregate(3, 4, torch.zeros(1, 1), torch.zeros(2)))
    with pytest.raises(NumericalRangeError, match="norm became"):
        state.take(Aggregate(3, 1, torch.zeros(1, 1), torch.tensor([1e9])))
    with pytest.raises(PlanError, match="target quantile"):
        AdaptiveClip(target_quantile=1.0)
    with pytest.raises(PlanError, match="spends more"):
        SoundNoiseSettings(ClipSettings(1.0), 3.0, 1, adaptive=AdaptiveClip(count_noise=1.5))
