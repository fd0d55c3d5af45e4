"""A copy learns from sums, and learns nothing from sums that belong to other queries."""

from __future__ import annotations

import pytest
import torch
from tests.audit.shared_samples import small_network

from bilateral.audit.topics.shared.attacks.answer_copying import copy_answers


@pytest.mark.parametrize("targets", ["classes", "logits"])
def test_a_copy_of_a_network_agrees_with_it_and_one_of_shuffled_answers_does_not(targets):
    teacher, student = small_network(1), small_network(2)
    generator = torch.Generator().manual_seed(0)
    queries, fresh = (2 * torch.randn(n, 1, 4, 4, generator=generator) for n in (600, 400))
    for inputs in (queries, fresh):
        inputs[:, :, 1:] = 0  # four numbers that matter: 600 queries are many
    with torch.no_grad():
        middle = teacher(queries).mean(0)  # taken off, or one class would nearly always win
        answers, truth = teacher(queries) - middle, (teacher(fresh) - middle).argmax(1)

    def agreement(sums):
        copied = copy_answers(
            student, queries, sums, targets=targets, steps=300, generator=torch.Generator().manual_seed(1)
        )
        with torch.no_grad():
            return float((copied(fresh).argmax(1) == truth).double().mean())

    right, wrong = agreement(answers), agreement(answers[torch.randperm(600, generator=generator)])
    assert right > 0.6
    assert right > wrong + 0.2
