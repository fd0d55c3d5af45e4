"""Poisson batches: every sample by itself, repeatable by round, empty ones included."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from bilateral.errors import PlanError
from bilateral.learning.sampling import PoissonSchedule
from bilateral.randomness import SeededRandomness


def test_batch_sizes_are_binomial_and_samples_are_drawn_independently():
    schedule = PoissonSchedule(50, 0.1, SeededRandomness(1))
    drawn = torch.zeros(4000, 50)
    for number in range(4000):
        drawn[number, schedule.batch(number)] = 1
    counts = torch.bincount(drawn.sum(1).long(), minlength=16)
    expected = stats.binom.pmf(range(16), 50, 0.1) * 4000
    expected[-1] += stats.binom.sf(15, 50, 0.1) * 4000
    observed = torch.cat([counts[:15], counts[15:].sum()[None]])
    assert stats.chisquare(observed.double().numpy(), expected * (observed.sum().item() / expected.sum())).pvalue > 1e-6
    assert float(torch.corrcoef(drawn.T).fill_diagonal_(0).abs().max()) < 6 / 4000**0.5


def test_a_batch_belongs_to_its_round_alone_and_is_ascending():
    first, second = (PoissonSchedule(100, 0.3, SeededRandomness(2)) for _ in range(2))
    second.batch(4)
    assert torch.equal(first.batch(9), second.batch(9))
    assert not torch.equal(first.batch(9), first.batch(10))
    assert torch.equal(first.batch(9), first.batch(9).sort().values)


def test_batches_may_be_empty_and_at_rate_one_are_everything():
    sizes = [len(PoissonSchedule(3, 0.05, SeededRandomness(3)).batch(number)) for number in range(20)]
    assert 0 in sizes
    empty = PoissonSchedule(3, 1e-9, SeededRandomness(3)).batch(0)
    assert empty.dtype == torch.int64
    assert torch.zeros(3, 2)[empty].shape == (0, 2)
    assert PoissonSchedule(5, 1.0, SeededRandomness(4)).batch(0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_rates_outside_zero_to_one_are_refused(rate):
    with pytest.raises(PlanError, match="sampling rate"):
        PoissonSchedule(10, rate, SeededRandomness(0))
