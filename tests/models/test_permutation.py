"""Cells of exchangeable neurons: what may change places, and that draws respect it."""

from __future__ import annotations

import torch

from bilateral.models.builder import Axis, Grouping
from bilateral.models.permutation import find_cells
from bilateral.randomness import SeededRandomness


def axis(neurons, roles=None):
    return Axis(torch.tensor(neurons), torch.tensor(roles or [0] * len(neurons)))


def draws(cells, count=200):
    return [cells.draw(SeededRandomness(seed)) for seed in range(count)]


def test_neurons_on_the_same_axes_exchange_freely_and_uniformly():
    cells = find_cells(4, [axis([1, 2, 3])], [axis([1, 2, 3])], [])
    seen = [tuple(d.tolist()) for d in draws(cells, 600)]
    assert cells.num_movable == 3
    assert {d[0] for d in seen} == {0}
    assert len(set(seen)) == 6
    assert min(seen.count(order) for order in set(seen)) > 60


def test_neurons_on_different_axes_do_not_exchange():
    cells = find_cells(5, [axis([1, 2, 3, 4]), axis([1, 2])], [], [])
    for exchange in draws(cells, 50):
        assert set(exchange[1:3].tolist()) == {1, 2}


def test_neurons_in_different_roles_do_not_exchange():
    cells = find_cells(5, [axis([1, 2, 3, 4], [0, 0, 1, 1])], [], [])
    for exchange in draws(cells, 50):
        assert set(exchange[1:3].tolist()) == {1, 2}


def test_neurons_that_occur_unequally_often_do_not_exchange():
    cells = find_cells(4, [axis([1, 1, 2, 3])], [], [])
    assert all(int(exchange[1]) == 1 for exchange in draws(cells, 30))


def test_neurons_tied_inside_one_layer_stay():
    cells = find_cells(4, [axis([1, 2, 1, 3])], [axis([1, 2, 1, 3])], [])
    assert all(int(exchange[1]) == 1 for exchange in draws(cells, 30))
    assert cells.num_movable == 2


def test_neurons_tied_in_different_roles_of_one_layer_move():
    """As a query's and a key's channel do, which come from one Linear layer."""
    rows = axis([1, 2, 3, 1, 2, 3], [0, 0, 0, 1, 1, 1])
    cells = find_cells(4, [rows], [rows], [])
    assert cells.num_movable == 3


def test_groups_move_as_wholes():
    into, out = axis([1, 2, 3, 4]), axis([5, 6, 7, 8])
    cells = find_cells(9, [into, out], [], [Grouping(2, (into, out))])
    assert cells.num_movable == 8
    for exchange in draws(cells, 60):
        group_in = {(n - 1) // 2 for n in exchange[1:3].tolist()}
        group_out = {(n - 5) // 2 for n in exchange[5:7].tolist()}
        assert len(group_in) == 1
        assert group_in == group_out


def test_groups_with_input_channels_stay_and_their_members_move_inside():
    into, out = axis([0, 0, 0, 0]), axis([1, 2, 3, 4])
    cells = find_cells(5, [into, out], [], [Grouping(2, (into, out))])
    seen = [exchange.tolist() for exchange in draws(cells, 60)]
    assert all({e[1], e[2]} == {1, 2} for e in seen)
    assert any(e[1] == 2 for e in seen)


def test_groupings_that_cross_keep_both_partitions():
    rows, columns = axis([1, 2, 3, 4]), axis([1, 3, 2, 4])
    cells = find_cells(5, [rows, columns], [], [Grouping(2, (rows,)), Grouping(2, (columns,))])
    assert all(exchange.tolist() == [0, 1, 2, 3, 4] for exchange in draws(cells, 20))


def test_a_group_seen_differently_from_outside_does_not_exchange():
    groups = axis([1, 2, 3, 4])
    cells = find_cells(5, [groups, axis([1, 2])], [], [Grouping(2, (groups,))])
    assert all(set(exchange[1:3].tolist()) == {1, 2} for exchange in draws(cells, 40))
