"""Matching in the ring on made-up uploads: every way to reuse or shorten masks tells the world, uniform ones do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bilateral.audit.topics.inversion.attacks.stripped_masks import RingUpload
from bilateral.audit.topics.swapped.attacks.ring_matching import as_ring, encoded, guess_worlds, is_weight, residual
from bilateral.protocols.mask.fixed_point import FixedPointFormat, encode_upload
from bilateral.protocols.messages import Upload

TERMS, LENGTH, ROUNDS = 2, 500, 30
FORM = FixedPointFormat.for_bounds([64.0, 512.0, 1.0], 5)


def random_upload(draws):
    terms = draws.normal(size=(TERMS, LENGTH)) * [[0.1], [1.0]]
    return Upload(0, 40, torch.tensor(terms, dtype=torch.float32), torch.zeros(0))


def uniform(draws):
    return draws.integers(0, 2**64, TERMS * LENGTH + 1, dtype=np.uint64)


def told(make_mask, seed=0):
    """How many worlds are told, where the masks of a client and round are `make_mask(draws, its first mask)`."""
    draws = np.random.default_rng(seed)
    worlds = draws.integers(0, 2, ROUNDS)
    clients = []
    for _ in range(2):
        kept = uniform(draws)
        found = []
        for world in worlds:
            both = random_upload(draws), random_upload(draws)
            sent = encode_upload(both[world], FORM, "a").numpy().view(np.uint64) + make_mask(draws, kept)
            found.append(residual(RingUpload(torch.from_numpy(sent.view(np.int64)), FORM, LENGTH), both))
        clients.append(found)
    return float(np.mean(guess_worlds(*clients) == worlds))


def bare_in_places(draws, _kept):
    mask = uniform(draws)
    mask[123:126] = 0
    return mask


def period(draws, _kept):
    return np.resize(uniform(draws)[:377], TERMS * LENGTH + 1)


def repeated_with_other_sign(draws, _kept):
    mask = uniform(draws)
    mask[LENGTH : 2 * LENGTH] = np.uint64(0) - mask[:LENGTH][::-1]
    return mask


def every_round(_draws, kept):
    return kept


def equal_steps(draws, _kept):
    start, step = uniform(draws)[:2]
    return start + step * np.arange(TERMS * LENGTH + 1, dtype=np.uint64)


def multiples_of_neighbours(draws, _kept):
    mask = uniform(draws)
    mask[1::2] = np.uint64(3) * mask[:-1:2]
    return mask


def short(draws, _kept):
    return uniform(draws) >> np.uint64(20)


@pytest.mark.parametrize(
    "weak",
    [
        bare_in_places,
        period,
        repeated_with_other_sign,
        every_round,
        short,
        equal_steps,
        multiples_of_neighbours,
    ],
)
def test_weak_masks_tell_the_world(weak):
    assert told(weak) == 1.0


def test_uniform_masks_leave_a_coin():
    rates = [told(lambda draws, _kept: uniform(draws), seed) for seed in range(12)]
    assert 0.4 < np.mean(rates) < 0.6
    assert max(rates) < 0.85


def test_a_candidate_is_encoded_as_a_client_encodes():
    upload = random_upload(np.random.default_rng(0))
    assert np.array_equal(encoded(upload, FORM), encode_upload(upload, FORM, "a").numpy()[:-1])


def test_coordinates_at_which_both_candidates_agree_say_nothing():
    upload = random_upload(np.random.default_rng(0))
    found = residual(as_ring(upload), (upload, upload))
    assert not found.telling.any()
    assert guess_worlds([found] * 3, [found] * 3) == [0, 0, 0]


def test_a_masked_weight_is_a_coin_and_a_bare_one_is_read():
    upload = as_ring(random_upload(np.random.default_rng(0)))
    assert is_weight(upload, 40)
    draws = np.random.default_rng(1)
    nearer = []
    for word in draws.integers(-(2**63), 2**63, 400):
        upload.values[-1] = int(word)
        nearer.append(is_weight(upload, 40))
    assert 0.4 < np.mean(nearer) < 0.6
