"""Batches: Poisson coins keep every limit, and batches that are too large or can be foretold do not."""

from __future__ import annotations

import torch

from bilateral.audit.topics.noise.attacks.batch_sampling import sampling_limits
from bilateral.learning.client import BatchSchedule
from bilateral.randomness import SeededRandomness

RISK, RATE, SIZE, ROUNDS = 1e-3, 0.1, 300, 6
CLIENTS = ("a", "b", "c")
CLAIMED = dict.fromkeys(CLIENTS, RATE)


def drawn(rate=RATE, seed=0, *, shared=False):
    stream = SeededRandomness(seed, "test")
    return {
        (name, number): stream.child("" if shared else name, number).uniform(SIZE) < rate
        for number in range(ROUNDS)
        for name in CLIENTS
    }


def test_poisson_batches_keep_every_limit():
    for seed in range(60):
        found = sampling_limits(drawn(seed=seed), CLAIMED, RISK)
        assert found.known == 0
        assert found.implied_rate(RATE) <= RATE


def test_batches_that_are_too_large_are_found():
    assert sampling_limits(drawn(0.2), CLAIMED, RISK).rate > RATE
    everything = {key: torch.ones_like(used) for key, used in drawn().items()}
    assert sampling_limits(everything, CLAIMED, RISK).implied_rate(RATE) > 0.9


def test_batches_of_one_size_can_be_foretold():
    schedules = {name: BatchSchedule(SIZE, int(RATE * SIZE), SeededRandomness(1, name)) for name in CLIENTS}
    used = {key: torch.zeros(SIZE, dtype=torch.bool) for key in drawn()}
    for (name, number), batch in used.items():
        batch[schedules[name].batch(number)] = True
    assert sampling_limits(used, CLAIMED, RISK).known > 0.9


def test_the_same_coins_in_every_round_or_for_every_client_can_be_foretold():
    same = drawn()
    same = {(name, number): same[name, 0] for name, number in same}
    assert sampling_limits(same, CLAIMED, RISK).known > 0.5
    assert sampling_limits(drawn(shared=True), CLAIMED, RISK).known > 0.5


def test_small_batches_are_not_taken_for_batches_of_one_size():
    few = {("a", number): SeededRandomness(number).uniform(4) < 0.5 for number in range(8)}
    assert sampling_limits(few, {"a": 0.5}, RISK).known == 0
