"""Patterns in blinded numbers, each against a loop that counts."""

from __future__ import annotations

import math

import torch

from bilateral.audit.topics.shared.attacks.activation_patterns import active_shares, seen_again, sorted_sizes


def some_views(num_views=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-(2**40), 2**40, (4, 50), generator=generator) for _ in range(num_views)]


def test_active_shares_count_positive_numbers_over_all_views():
    views = some_views()
    expected = [sum(int(x > 0) for view in views for x in view[query].tolist()) / 150 for query in range(4)]
    assert torch.allclose(active_shares(views), torch.tensor(expected, dtype=torch.float64))


def test_sorted_sizes_are_the_same_whatever_order_sign_and_common_factor():
    (numbers,) = some_views(1)
    shuffled = numbers[:, torch.randperm(50, generator=torch.Generator().manual_seed(1))]
    assert torch.allclose(sorted_sizes(numbers), sorted_sizes(-8 * shuffled))
    logs = sorted(math.log2(abs(x)) for x in numbers[0].tolist())
    assert torch.allclose(sorted_sizes(numbers)[0], torch.tensor([x - sum(logs) / 50 for x in logs]).double())


def test_a_number_is_seen_again_if_some_other_of_any_view_has_its_size():
    views = some_views()
    views[1][0, 7] = -views[0][0, 3]  # the other sign does not matter
    views[2][0, 9] = views[0][0, 3] + 1  # nor does the unit of truncation
    views[1][2, 0] = views[1][2, 1]
    pairs = torch.cat(views, 1).double().abs().log2()
    expected = [
        sum(any(abs(x - y) < 2.0**-14 for j, y in enumerate(row) if i != j) for i, x in enumerate(row)) / 150
        for row in pairs.tolist()
    ]
    assert seen_again(views).tolist() == expected
    assert expected[0] >= 3 / 150
