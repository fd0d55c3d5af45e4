"""Pools hold what they say: every query is checked against the samples that it can be made of."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.errors import DataError
from bilateral.learning.hetero.pools import build_pool


def _samples(count=5, shape=(2, 6, 6), seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def _generator(seed):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 20), shape=st.sampled_from([(7,), (1, 4, 4), (2, 6, 5)]))
def test_every_mixup_is_a_mean_of_two_different_samples_with_a_weight_in_tenths(seed, count, shape):
    samples = _samples(shape=shape)
    weights = torch.arange(1, 10) / 10
    # The oracle: all means there are, by loops.
    every = torch.stack([w * a + (1 - w) * b for i, a in enumerate(samples) for j, b in enumerate(samples) if i != j
                         for w in weights])  # fmt: skip
    pool = build_pool("mixup", samples, count, _generator(seed))
    assert pool.shape == (count, *shape)
    distances = (pool.unsqueeze(1) - every).flatten(2).abs().amax(2)
    assert float(distances.min(1).values.max()) < 1e-5


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_every_cutmix_pixel_is_of_one_of_two_samples_and_the_second_fills_a_rectangle(seed):
    samples = _samples(count=3, shape=(2, 8, 6))
    for query in build_pool("cutmix", samples, 4, _generator(seed)):
        owner = (query == samples).all(1)  # [sample, height, width]: every pixel is of exactly one sample
        assert bool((owner.sum(0) == 1).all())
        present = [mask for mask in owner if mask.any()]
        assert len(present) <= 2
        assert any(_is_rectangle(mask) for mask in present)


def test_cutouts_set_a_square_to_zero_and_leave_the_rest():
    samples = _samples(count=4, shape=(3, 8, 8))
    for query in build_pool("cutout", samples, 12, _generator(1)):
        hole = (query == 0).all(0)
        assert _is_rectangle(hole)
        assert 4 <= int(hole.sum()) <= 16  # a half of either side, less where the border cuts it off
        assert any(bool(((query == sample) | hole).all()) for sample in samples)


def test_flips_are_mirror_images_and_never_the_sample_itself():
    samples = _samples()
    mirrored = torch.cat([samples.flip(3), samples.flip(2), samples.flip(2, 3)]).flatten(1)
    pool = build_pool("flips", samples, 60, _generator(2)).flatten(1)
    found = (pool.unsqueeze(1) == mirrored).all(2)
    assert bool(found.any(1).all())
    assert bool(found.any(0).all())  # all three kinds, of all samples


def test_gaussian_queries_are_samples_with_noise_of_their_own_size():
    samples = 3 * _samples(count=1, shape=(50, 50))
    noise = build_pool("gaussian", samples, 20, _generator(3)) - samples
    assert float(noise.mean()) == pytest.approx(0, abs=0.1)
    assert float(noise.std()) == pytest.approx(float(samples.std()), rel=0.02)


def test_the_private_pool_holds_every_sample_once():
    samples = _samples(count=9, shape=(4,))
    pool = build_pool("private", samples, 100, _generator(4))
    assert sorted(map(tuple, pool.tolist())) == sorted(map(tuple, samples.tolist()))
    assert len(build_pool("private", samples, 4, _generator(4))) == 4


@pytest.mark.parametrize("name", ["mixup", "cutmix", "cutout", "flips", "gaussian", "private"])
def test_a_pool_depends_on_the_samples_and_the_generator_only(name):
    samples = _samples()
    first, again, other = (build_pool(name, samples, 5, _generator(seed)) for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", ["cutmix", "cutout", "flips"])
def test_pools_of_images_refuse_rows_of_a_table(name):
    with pytest.raises(DataError, match=f"images.*{name}"):
        build_pool(name, torch.randn(4, 3), 5, _generator(0))


def test_pairs_need_two_samples():
    with pytest.raises(DataError, match="at least 2"):
        build_pool("mixup", torch.randn(1, 3), 5, _generator(0))


def _is_rectangle(mask):
    rows, columns = mask.any(1), mask.any(0)
    full = rows.unsqueeze(1) & columns.unsqueeze(0)
    return bool(mask.any()) and torch.equal(mask, full) and _is_run(rows) and _is_run(columns)


def _is_run(line):
    places = line.nonzero().flatten()
    return int(places[-1] - places[0]) + 1 == len(places)


def test_a_fixed_weight_is_that_of_every_mixup_and_draws_the_same_pairs():
    samples = torch.eye(6)
    drawn = build_pool("mixup", samples, 40, _generator(3))
    fixed = build_pool("mixup", samples, 40, _generator(3), 0.3)
    assert torch.equal(drawn > 0, fixed > 0)
    assert torch.allclose(fixed.sort(1).values[:, -2:], torch.tensor([0.3, 0.7]).expand(40, 2))
