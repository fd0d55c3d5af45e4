import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.data import Split
from bilateral.errors import DataError
from bilateral.learning.client import (
    BatchSchedule,
    batch_size_in,
    invited_clients,
    largest_batch_size,
    prepare_targets,
    reordered,
    sample_clients,
)
from bilateral.randomness import SeededRandomness


@settings(deadline=None, derandomize=True)
@given(num_samples=st.integers(1, 80), batch_size=st.integers(0, 90), seed=st.integers(0, 5))
def test_every_sample_is_used_exactly_once_an_epoch(num_samples, batch_size, seed):
    schedule = BatchSchedule(num_samples, batch_size, SeededRandomness(seed))
    epoch = [schedule.batch(r) for r in range(schedule.batches_per_epoch)]
    assert torch.cat(epoch).sort().values.tolist() == list(range(num_samples))


def test_no_batch_is_smaller_than_asked_for():
    schedule = BatchSchedule(65, 32, SeededRandomness(0))
    assert [len(schedule.batch(r)) for r in range(2)] == [32, 33]


def test_a_batch_depends_on_the_round_alone():
    one, other = (BatchSchedule(50, 8, SeededRandomness(3, "x")) for _ in range(2))
    one.batch(0), one.batch(1)
    assert torch.equal(one.batch(17), other.batch(17))


def test_epochs_are_shuffled_anew():
    schedule = BatchSchedule(64, 32, SeededRandomness(0))
    assert not torch.equal(schedule.batch(0), schedule.batch(2))


@given(num_clients=st.integers(1, 30), participation=st.floats(0.01, 1.0), round_index=st.integers(0, 9))
@settings(deadline=None, derandomize=True)
def test_sampled_clients_are_distinct_and_as_many_as_asked(num_clients, participation, round_index):
    names = [f"client-{k}" for k in range(num_clients)]
    chosen = sample_clients(names, participation, round_index, SeededRandomness(1))
    assert len(set(chosen)) == len(chosen)
    assert max(1, participation * num_clients - 1e-6) <= len(chosen) <= participation * num_clients + 1
    assert list(chosen) == [name for name in names if name in chosen]


def test_mse_on_classes_uses_one_hot_targets():
    split = Split(torch.zeros(3, 2), torch.tensor([0, 2, 1]))
    assert prepare_targets(split, 3, "mse").targets.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_cross_entropy_on_regression_data_is_refused():
    split = Split(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(DataError, match="regression"):
        prepare_targets(split, 1, "ce")


@given(count=st.integers(1, 40), number=st.integers(1, 5))
@settings(deadline=None, derandomize=True)
def test_a_reordered_batch_has_the_same_samples(count, number):
    assert sorted(reordered(count, number).tolist()) == list(range(count))


def test_reorderings_differ():
    orders = {tuple(reordered(32, number).tolist()) for number in range(1, 6)}
    assert len(orders) == 5


def test_whom_a_run_invites_follows_from_its_seed_and_the_round_alone():
    names = [f"client-{number}" for number in range(20)]
    rounds = [invited_clients(names, 0.3, 4, round_index) for round_index in range(6)]
    draws = SeededRandomness(4, "federation")
    assert rounds == [sample_clients(names, 0.3, round_index, draws) for round_index in range(6)]
    assert rounds[5] == invited_clients(names, 0.3, 4, 5)  # whatever was asked before
    assert rounds != [invited_clients(names, 0.3, 5, round_index) for round_index in range(6)]


@pytest.mark.parametrize("num_samples", [1, 7, 8, 9, 31, 64])
@pytest.mark.parametrize("batch_size", [0, 1, 3, 8, 100])
def test_the_size_of_a_batch_is_known_without_its_samples(num_samples, batch_size):
    schedule = BatchSchedule(num_samples, batch_size, SeededRandomness(0))
    sizes = [len(schedule.batch(round_index)) for round_index in range(2 * num_samples)]
    assert [batch_size_in(num_samples, batch_size, number) for number in range(2 * num_samples)] == sizes
    assert largest_batch_size(num_samples, batch_size) == max(sizes)
