"""How sure a single answer is: read from sizes that carry it, not from sizes that do not."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from bilateral.audit.topics.shared.attacks.answer_sureness import SeenAnswer, guess_sureness, sureness


def answer(seed, *, linked):
    """Logits of a random spread; blinded numbers of the same spread, or of another; a sum that says nothing of it."""
    generator = torch.Generator().manual_seed(seed)
    spread, other = (2 ** torch.randn(300, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    logits = spread * torch.randn(300, 10, generator=generator, dtype=torch.float64)
    numbers = (spread if linked else other) * torch.randn(300, 200, generator=generator, dtype=torch.float64) * 2**40
    return SeenAnswer([[numbers.long()]], torch.randn(300, 10, generator=generator)), logits


def correlation(*, linked, with_sizes):
    (own, own_logits), (seen, logits) = answer(1, linked=True), answer(2, linked=linked)
    guess = guess_sureness(own, own_logits, seen, with_sizes=with_sizes)
    return stats.spearmanr(guess, sureness(logits)).statistic


def test_sizes_of_the_last_layers_tell_how_sure_an_answer_is():
    assert correlation(linked=True, with_sizes=True) > 0.8


def test_sizes_of_something_else_and_the_sum_alone_do_not():
    assert abs(correlation(linked=False, with_sizes=True)) < 0.25
    assert abs(correlation(linked=True, with_sizes=False)) < 0.25


def test_sureness_is_the_log_of_the_spread():
    assert np.allclose(sureness(torch.tensor([[0.0, 2.0], [0.0, 8.0]])), [0.5, 2.5])
